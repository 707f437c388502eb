"""The split, the vocabulary and the excerpts."""

from pathlib import Path

import pytest

from monodraft.errors import InputError
from monodraft.training.corpus import SourceFile, is_held_out, read_corpus
from monodraft.training.excerpts import LINES, held_out_excerpts
from monodraft.training.vocabulary import BEGIN_ID, END_ID, MASK_ID, train_tokenizer

pytestmark = pytest.mark.numbers


def test_split_depends_on_the_relative_path_only(tmp_path: Path) -> None:
    for root in (tmp_path / "a", tmp_path / "b" / "deep"):
        (root / "json").mkdir(parents=True)
        for name in ("opcode.py", "copyreg.py", "json/tool.py"):
            (root / name).write_text("x = 1\n")
    splits = [{s.path: s.held_out for s in read_corpus(root)} for root in (tmp_path / "a", tmp_path / "b" / "deep")]
    assert splits[0] == splits[1] == {"opcode.py": True, "copyreg.py": True, "json/tool.py": False}


def test_about_five_per_cent_is_held_out() -> None:
    share = sum(is_held_out(f"package{i}/module{i * 7}.py") for i in range(20_000)) / 20_000
    # 13 / 256 = 0.0508; four standard deviations of the mean are 0.0062.
    assert abs(share - 13 / 256) < 0.0062


def test_folder_without_sources_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"found no \.py file"):
        read_corpus(tmp_path)


def test_tables_syntax_errors_and_other_encodings_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "encodings").mkdir()
    (tmp_path / "encodings" / "cp037.py").write_text("x = 1\n")
    (tmp_path / "latin.py").write_bytes(b"# -*- coding: latin-1 -*-\n# \xe9\n")
    (tmp_path / "kept.py").write_text("x = 1\n")
    assert [s.path for s in read_corpus(tmp_path)] == ["kept.py"]


def test_tokenizer_round_trips_any_text() -> None:
    tokenizer = train_tokenizer(["def f(x):\n    return x + 1\n" * 50], vocab_size=300)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.mask_token_id) == (BEGIN_ID, END_ID, MASK_ID)
    for text in ("def f(x):\n    return x\n", "\tif x:\n\n\n  é 漢字 🙂\r\n", "a  b   c "):
        ids = tokenizer(text)["input_ids"]
        assert ids[0] == BEGIN_ID
        assert tokenizer.decode(ids[1:]) == text


def test_excerpts_come_from_held_out_files_and_start_at_a_definition() -> None:
    body = "def f():\n" + "    x = 1\n" * 30
    sources = [SourceFile("a.py", body, True), SourceFile("b.py", body, False), SourceFile("c.py", "x = 1\n", True)]
    excerpts = held_out_excerpts(sources)
    assert [e["path"] for e in excerpts] == ["a.py"]
    assert excerpts[0]["text"].startswith("def f():")
    assert excerpts[0]["text"].count("\n") == LINES
