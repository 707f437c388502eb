"""`monodraft generate`: continue a prompt with a drafter and its target, and show what was accepted."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import sys
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from monodraft.checkpoint.shipped import DRAFTER, TARGET
from monodraft.errors import Fault, InputError, visible
from monodraft.loop.prompts import default_prompt

if TYPE_CHECKING:  # torch and transformers take seconds to import; --help and usage errors need neither
    from transformers import PreTrainedTokenizerBase

    from monodraft.checkpoint.config import DraftConfig
    from monodraft.loop.plain import PlainRun
    from monodraft.loop.report import PlainReport
    from monodraft.loop.request import Request
    from monodraft.loop.session import Session
    from monodraft.loop.speculate import Speculation

HELP = """
Continue a prompt: the drafter proposes a block of tokens, the target verifies them in one pass, and what it accepts
is kept. The text is what the target alone would write (greedy), or follows its distribution (with a temperature).

Without arguments the pair that comes with monodraft continues the start of a Python module:

    monodraft generate

Your own prompt, sampled, without the comparison run:

    monodraft generate 'def parse(line):' --temperature 0.8 --seed 3 --no-compare

Your own pair, each a local Hugging Face folder:

    monodraft generate --target Qwen3-4B --drafter dspark_qwen3_4b_block7 --chat 'Why is the sky blue?'

The text goes to standard output, everything else to standard error. Figures for a script: --json.
"""

SHIPPED = "the pair that comes with monodraft"
DEFAULT_NUMERICS = {"executor": "mxfp8", "rocm": "mxfp8", "reference": "bf16"}
WARM_UP_TOKENS = 32
"""More than the text of `warm_up`."""
DTYPES = ("float32", "float64", "bfloat16")


@dataclass(frozen=True)
class Options:
    """The command line, checked as far as it can be without reading a file."""

    prompts: tuple[str, ...]
    target: Path
    drafter: Path
    backend: str
    numerics: str
    ranks: int
    device: str
    target_dtype: str
    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int
    confidence_threshold: float
    chat: bool
    compare: bool
    json: bool


def generate(
    prompt: Annotated[
        list[str] | None, typer.Argument(metavar="PROMPT", help="Text to continue; several run side by side.")
    ] = None,
    prompt_file: Annotated[
        list[Path] | None, typer.Option(help="Read a prompt from this UTF-8 file, - for standard input; repeatable.")
    ] = None,
    requests: Annotated[
        int, typer.Option(min=1, help="Run each prompt this many times side by side, with seeds SEED, SEED + 1, ...")
    ] = 1,
    target: Annotated[
        Path, typer.Option(help="Folder of the target, a Hugging Face causal LM.", show_default=SHIPPED)
    ] = TARGET,
    drafter: Annotated[Path, typer.Option(help="Folder of the DSpark drafter.", show_default=SHIPPED)] = DRAFTER,
    backend: Annotated[
        str,
        typer.Option(
            help="What runs the drafter: reference (PyTorch), executor (gfx950 on a CPU), hopper, rocm (not run by us)."
        ),
    ] = "reference",
    numerics: Annotated[
        str | None,
        typer.Option(
            help="How the drafter computes: exact, bf16, w8a16 or mxfp8 (what gfx950 does).",
            show_default="bf16; mxfp8 with the executor",
        ),
    ] = None,
    ranks: Annotated[int, typer.Option(min=1, help="Tensor-parallel ranks of the drafter.")] = 1,
    device: Annotated[str, typer.Option(help="Where target and drafter run: cpu, cuda, cuda:1, ...")] = "cpu",
    target_dtype: Annotated[
        str, typer.Option(help=f"What the target computes in: {', '.join(DTYPES)}. Wider means fewer near ties.")
    ] = "float32",
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Tokens to add at most.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Keep the k likeliest tokens of the target; 0 keeps all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Keep the likeliest tokens up to this probability; 1 keeps all.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Same seed, same text.")] = 0,
    confidence_threshold: Annotated[
        float, typer.Option(help="Verify only drafts before the first with a confidence under this; 0 verifies all.")
    ] = 0.0,
    chat: Annotated[bool, typer.Option("--chat", help="Put the prompt through the tokenizer's chat template.")] = False,
    compare: Annotated[bool, typer.Option(help="Also run the target alone, for equality and speed.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    prompts = [*(prompt or []), *(read_prompt(path) for path in prompt_file or [])] or [default_prompt()]
    check_prompts(prompts)
    options = Options(
        prompts=tuple(text for text in prompts for _ in range(requests)),
        target=target,
        drafter=drafter,
        backend=backend,
        numerics=DEFAULT_NUMERICS.get(backend, "bf16") if numerics is None else numerics,
        ranks=ranks,
        device=device,
        target_dtype=target_dtype,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        confidence_threshold=confidence_threshold,
        chat=chat,
        compare=compare,
        json=as_json,
    )
    stderr = Console(stderr=True, highlight=False, quiet=as_json)
    try:
        interrupted = run(options, stderr)
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted before the first token")
        raise typer.Exit(130) from None
    if interrupted:
        raise typer.Exit(130)


generate.__doc__ = HELP


def read_prompt(path: Path) -> str:
    """Text of a prompt file. Raises `InputError` naming it if it cannot be read or is not UTF-8."""
    try:
        return read_standard_input() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        found = (error.strerror if isinstance(error, OSError) else None) or str(error)
        raise InputError("unreadable prompt", [Fault(str(path), found, "a readable UTF-8 file")]) from error


def read_standard_input() -> str:
    """All of standard input as UTF-8, whatever encoding the locale names. Raises `OSError` where it is closed."""
    if sys.stdin is None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="strict")
    return sys.stdin.read()


def check_prompts(prompts: list[str]) -> None:
    """Raise `InputError` for a prompt without text (an empty variable or file, most likely) or with bytes that are not
    text, which Python passes on as surrogates."""
    faults = []
    for place, text in enumerate(prompts, 1):
        if not text:
            faults.append(Fault(f"prompt {place}", "no text", "text to continue"))
        elif any("\ud800" <= character <= "\udfff" for character in text):
            faults.append(Fault(f"prompt {place}", "bytes that are not UTF-8", "text"))
    if faults:
        raise InputError("unusable prompt", faults)


def run(options: Options, stderr: Console) -> bool:
    """Load, stream, compare, sum up. True if the user interrupted it on the way."""
    session, tokenizer, requests = load(options, stderr)
    from monodraft.loop.speculate import Speculation, warm_up

    with stderr.status("warming up"):
        warm_up(session, requests[0])
    speculation = Speculation(session, requests)
    interrupted = stream(options, speculation, tokenizer, stderr)
    report = replace(speculation.report(), interrupted=interrupted)
    if options.compare and not interrupted:
        try:
            report = replace(report, plain=plain_runs(speculation, stderr))
        except KeyboardInterrupt:
            interrupted = True
            report = replace(report, interrupted=True)
    if options.json:
        print(json.dumps(as_json(options, speculation, tokenizer, report.as_dict())))
    else:
        from monodraft.cli.speculation_view import summary

        stderr.print()
        stderr.print(summary(report))
    return interrupted


def load(options: Options, stderr: Console) -> tuple[Session, PreTrainedTokenizerBase, list[Request]]:
    """Everything that can be wrong is found here, the cheap things first, before a token is computed."""
    with stderr.status("loading torch and transformers"):
        quiet_libraries()
        import torch

        from monodraft.checkpoint import load_drafter, read_config
        from monodraft.cli.backends import register_all
        from monodraft.loop.backends import check_backend, make_drafter
        from monodraft.loop.pair import (
            check_folder,
            check_sizes,
            check_tokenizer,
            encode_prompt,
            load_target,
            load_tokenizer,
        )
        from monodraft.loop.request import Request
        from monodraft.loop.sampling import Sampling
        from monodraft.loop.session import Session

    sampling = Sampling(options.temperature, options.top_k, options.top_p)
    register_all()
    check_backend(options.backend)
    dtype = check_dtype(options.target_dtype)
    check_device(options.device)
    check_folder(options.drafter, "drafter")
    config = read_config(options.drafter)
    check_sizes(config, options.drafter, check_folder(options.target, "target"), options.target)
    tokenizer = load_tokenizer(options.target)
    check_tokenizer(tokenizer, options.target, config.vocab_size)
    prompts = [encode_prompt(tokenizer, text, options.chat, options.target) for text in options.prompts]
    with stderr.status(f"loading drafter {escape(visible(options.drafter.name))}"):
        config, weights = load_drafter(options.drafter, options.target)
        drafter = make_drafter(
            options.backend,
            config,
            weights,
            numerics=options.numerics,
            ranks=options.ranks,
            device=options.device,
            max_requests=len(prompts) + 1,
            positions=positions_needed(config, max(map(len, prompts)) + options.max_new_tokens),
        )
    with stderr.status(f"loading target {escape(visible(options.target.name))}"):
        target = load_target(options.target, config, dtype=getattr(torch, dtype), device=options.device)
    requests = [
        Request(
            prompt=prompt,
            max_new_tokens=options.max_new_tokens,
            sampling=sampling,
            seed=options.seed + i,
            confidence_threshold=options.confidence_threshold,
            stop_tokens=target.stop_tokens,
        )
        for i, prompt in enumerate(prompts)
    ]
    session = Session(target, drafter)
    session.check(requests)
    return session, tokenizer, requests


def positions_needed(config: DraftConfig, text: int) -> int:
    """Positions a request for which a backend must have room: the longest text and a block behind it, and no less than
    the warm-up takes. Backends have defaults that a long prompt would not fit."""
    return min(config.max_positions, max(text, WARM_UP_TOKENS) + config.block_size)


def stream(options: Options, speculation: Speculation, tokenizer: PreTrainedTokenizerBase, stderr: Console) -> bool:
    """Show the first request's text as it comes and the others' when all are done. True if interrupted."""
    from monodraft.cli.speculation_view import StreamView, legend
    from monodraft.loop.text import decoder, printable

    stdout = Console(highlight=False, quiet=options.json)
    interrupted = False
    if options.json:
        try:
            speculation.run()
        except KeyboardInterrupt:
            interrupted = True
        return interrupted
    if stdout.is_terminal:
        stderr.print(legend())
    first, *others = speculation.ids
    view = StreamView(stdout, decoder(tokenizer), speculation.requests[0].prompt)
    view.show_prompt(options.prompts[0])
    try:
        speculation.run(lambda emission: view.show(emission) if emission.request == first else None)
    except KeyboardInterrupt:
        interrupted = True
    view.end()
    for id, request, prompt in zip(others, speculation.requests[1:], options.prompts[1:], strict=True):
        stderr.rule(f"request {id + 1 - first}, seed {request.seed}")
        text = decoder(tokenizer)(speculation.session.output(id))
        stdout.print(printable(prompt + text) if stdout.is_terminal else prompt + text, markup=False, soft_wrap=True)
    return interrupted


def plain_runs(speculation: Speculation, stderr: Console) -> PlainReport:
    """The target alone on the same prompts, with a progress bar."""
    from monodraft.loop.plain import compare, generate_plain
    from monodraft.loop.report import plain_report

    session = speculation.session
    runs: list[PlainRun] = []
    columns = (TextColumn("the target alone"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    outputs = speculation.outputs()
    with Progress(*columns, console=stderr, transient=True, disable=stderr.quiet) as progress:
        task = progress.add_task("plain", total=sum(len(output) for output in outputs))
        for request in speculation.requests:
            advance = lambda _count: progress.advance(task)  # noqa: E731
            runs.append(generate_plain(session.target, request, limit=session.longest_text, on_token=advance))
    greedy = speculation.requests[0].sampling.greedy
    comparisons = [compare(output, run) for output, run in zip(outputs, runs, strict=True)]
    return plain_report(runs, comparisons if greedy else None)


def as_json(
    options: Options, speculation: Speculation, tokenizer: PreTrainedTokenizerBase, figures: dict[str, object]
) -> dict[str, object]:
    """The one object that --json prints."""
    from monodraft.loop.text import decoder

    session, decode = speculation.session, decoder(tokenizer)
    texts = [
        {
            "prompt": prompt,
            "seed": request.seed,
            "prompt_tokens": len(request.prompt),
            "tokens": session.output(id),
            "text": decode(session.output(id)),
            "finish": session.finish(id),
            "statistics": session.statistics(id).as_dict(),
        }
        for id, request, prompt in zip(speculation.ids, speculation.requests, options.prompts, strict=True)
    ]
    setup = {
        "target": str(options.target),
        "drafter": str(options.drafter),
        "backend": options.backend,
        "numerics": options.numerics,
        "ranks": options.ranks,
        "device": options.device,
        "target_dtype": options.target_dtype,
        "temperature": options.temperature,
    }
    return setup | figures | {"texts": texts}


def check_dtype(name: str) -> str:
    """Raise `InputError` for a dtype that the target cannot compute in."""
    if name not in DTYPES:
        raise InputError("unknown dtype", [Fault("--target-dtype", name, " or ".join(DTYPES))])
    return name


def check_device(name: str) -> None:
    """Raise `InputError` with the reason for a device that torch does not know or this machine does not have."""
    import torch

    try:
        torch.empty(1, device=name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        fault = Fault(f"--device {name}", reason, "cpu, or a GPU that is there")
        raise InputError("the device cannot be used", [fault]) from error


def quiet_libraries() -> None:
    """Keep the libraries' progress bars and notices out of the text; their errors come as ours."""
    import torch  # noqa: F401 - it sets the levels of its loggers when it is imported
    import transformers

    # transformers imports torchao where it is installed, which tells of GPU libraries that this machine cannot load.
    for name in ("torchao", "torch.utils._pytree"):
        logging.getLogger(name).setLevel(logging.ERROR)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    warnings.filterwarnings("ignore", module="torch|transformers")
