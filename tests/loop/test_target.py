"""The Hugging Face target: captured features, caches cut, forked and chunked, requests that do not see each other."""

from __future__ import annotations

import pytest
import torch
from tiny_models import ARCHITECTURES, LAYERS, VOCAB, tiny_model
from transformers import MambaConfig, MambaForCausalLM

from monodraft.errors import InputError, UnsupportedCheckpoint
from monodraft.loop.target import Target
from monodraft.loop.target_model import TargetOutput, TargetRows

pytestmark = pytest.mark.numbers

TOKENS = tuple(torch.randint(0, VOCAB, (40,), generator=torch.Generator().manual_seed(1)).tolist())
# The same rows through matrix kernels of another width: float32 sums of at most 64 terms of size < 10.
CLOSE = {"rtol": 1e-4, "atol": 1e-4}


def features(output: TargetOutput) -> torch.Tensor:
    assert output.features is not None
    return output.features


def read(target: Target, request: int, tokens: tuple[int, ...], *widths: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and features of all tokens, run in pieces of the given widths."""
    parts, start = [], 0
    for width in widths:
        chunk = tokens[start : start + width]
        parts += target.forward([TargetRows(request, start, chunk, logits=len(chunk))])
        start += len(chunk)
    assert start == len(tokens)
    return torch.cat([p.logits for p in parts]), torch.cat([features(p) for p in parts])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_pitfall_23_features_are_the_raw_stream_after_each_captured_layer(architecture: str) -> None:
    """Layer l is Hugging Face's hidden_states[l + 1], the last layer before the final norm, -1 the embedding."""
    model = tiny_model(architecture)
    target = Target(model, (-1, 0, 2, 3))
    target.open(0)
    _, got = read(target, 0, TOKENS, len(TOKENS))
    with torch.inference_mode():
        states = model(input_ids=torch.tensor([TOKENS]), output_hidden_states=True).hidden_states
    embedding, first, third, last = got.chunk(4, dim=-1)
    torch.testing.assert_close(embedding, states[0][0])
    torch.testing.assert_close(first, states[1][0])
    torch.testing.assert_close(third, states[3][0])
    # Hugging Face gives the last state only after the norm; ours is the one from which the norm makes it.
    assert not torch.allclose(last, states[4][0], atol=0.1)
    with torch.inference_mode():
        torch.testing.assert_close(model.get_decoder().norm(last), states[4][0])
        model.get_decoder().norm = torch.nn.Identity()  # which shows it as it is: a norm forgets the scale
        raw = model(input_ids=torch.tensor([TOKENS]), output_hidden_states=True).hidden_states[4][0]
    torch.testing.assert_close(last, raw)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_chunked_prefill_and_cut_caches_give_the_same_rows(architecture: str) -> None:
    target = Target(tiny_model(architecture), LAYERS)
    for request in range(3):
        target.open(request)
    whole = read(target, 0, TOKENS, 40)
    for got, wanted in zip(read(target, 1, TOKENS, 7, 1, 20, 12), whole, strict=True):
        torch.testing.assert_close(got, wanted, **CLOSE)
    read(target, 2, (*TOKENS[:25], 1, 2, 3, 4, 5), 21, 9)  # five rejected drafts behind 25 kept tokens
    target.truncate(2, 25)
    assert target.length(2) == 25
    [output] = target.forward([TargetRows(2, 25, TOKENS[25:], logits=15)])
    torch.testing.assert_close(output.logits, whole[0][25:], **CLOSE)
    torch.testing.assert_close(features(output), whole[1][25:], **CLOSE)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_fork_continues_as_its_source_and_does_not_touch_it(architecture: str) -> None:
    target = Target(tiny_model(architecture), LAYERS)
    for request in (0, 2):
        target.open(request)
        read(target, request, TOKENS[:30], 30)
    target.fork(0, 1, 20)
    read_on = [TargetRows(1, 20, TOKENS[20:], logits=20)]
    [forked] = target.forward(read_on)
    target.close(1)
    target.truncate(2, 20)
    [cut] = target.forward([TargetRows(2, 20, TOKENS[20:], logits=20)])
    assert torch.equal(forked.logits, cut.logits)
    [source] = target.forward([TargetRows(0, 30, TOKENS[30:], logits=10)])
    torch.testing.assert_close(source.logits, cut.logits[10:], **CLOSE)


def test_a_requests_bits_do_not_depend_on_the_others_in_the_call() -> None:
    def rows(request: int) -> TargetRows:
        return TargetRows(request, 0, TOKENS[: 8 + request], logits=3)

    target = Target(tiny_model(), LAYERS)
    target.open(1)
    [alone] = target.forward([rows(1)])
    target.close(1)
    for request in range(4):
        target.open(request)
    together = target.forward([rows(request) for request in (3, 1, 0, 2)])
    assert torch.equal(alone.logits, together[1].logits)
    assert torch.equal(features(alone), features(together[1]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_pitfall_26_rows_differ_by_rounding_alone_between_1_and_8_at_once(dtype: torch.dtype) -> None:
    """Bound: relative to the logits' spread, a few hundred roundings of the dtype (measured: docs/loop.md)."""
    target = Target(tiny_model(dtype=dtype), LAYERS)
    target.open(0)
    target.open(1)
    ones, _ = read(target, 0, TOKENS, *[1] * 40)
    eights, _ = read(target, 1, TOKENS, *[8] * 5)
    spread = ones.double().std()
    assert (ones.double() - eights.double()).abs().max() < 64 * torch.finfo(dtype).eps * spread * 4


def test_a_recurrent_target_is_refused_with_its_reason() -> None:
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4, "intermediate_size": 32}
    with pytest.raises(UnsupportedCheckpoint, match="cut back"):
        Target(MambaForCausalLM(MambaConfig(**sizes)), (0,), name="mamba")


@pytest.mark.parametrize("layers", [(0, 4), (-2, 1)])
def test_layers_that_the_target_does_not_have_are_refused(layers: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"target_layer_ids, for target tiny.*-1 \(embedding\) to 3"):
        Target(tiny_model(), layers, name="tiny")


def test_length_without_a_forward_is_zero() -> None:
    target = Target(tiny_model(), LAYERS)
    target.open(0)
    assert target.length(0) == 0
    target.truncate(0, 0)
