"""How a speculative run looks in a terminal: coloured text as it comes, and the figures at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from monodraft.loop.report import Report
from monodraft.loop.request import Emission, Source
from monodraft.loop.text import TextStream, printable

STYLES = {Source.ACCEPTED: "green", Source.CORRECTED: "bold underline red", Source.TARGET: "bold cyan"}
MEANINGS = {
    Source.ACCEPTED: "accepted draft",
    Source.CORRECTED: "the target's correction",
    Source.TARGET: "the target's own",
}
BAR_WIDTH = 30
EIGHTHS = " ▏▎▍▌▋▊▉█"


class StreamView:
    """Writes one request's text as it comes. On a terminal each piece has the style of the token that completed it
    (without colour: accepted plain, corrections underlined, the target's own bold); elsewhere the text alone."""

    def __init__(self, console: Console, decode: Callable[[Sequence[int]], str], context: Sequence[int]) -> None:
        self._console = console
        self._stream = TextStream(decode, context)

    def show_prompt(self, prompt: str) -> None:
        self._write(prompt, "dim")

    def show(self, emission: Emission) -> None:
        for token, source in zip(emission.tokens, emission.sources, strict=True):
            self._write(self._stream.push(token), STYLES[source])

    def end(self) -> None:
        """Write what was held back, and end the line."""
        self._write(self._stream.flush(), "")
        self._write("\n", "")

    def _write(self, text: str, style: str) -> None:
        if not text:
            return
        if self._console.is_terminal:
            self._console.print(Text(printable(text), style), end="", soft_wrap=True)
        else:
            self._console.file.write(text)
        self._console.file.flush()


def legend() -> Text:
    """What the styles mean, each in its own."""
    return Text("   ").join(Text(MEANINGS[source], style) for source, style in STYLES.items())


def summary(report: Report) -> RenderableType:
    """The figures of a run, as lines for a terminal or a log."""
    statistics = report.statistics
    if not statistics.rounds:
        return Text("no round was run")
    lines: list[RenderableType] = [_rounds_line(report), _acceptance_table(report), _time_line(report)]
    lines.append(_speed_line(report))
    if report.plain is not None:
        lines.append(_equality_line(report))
    if statistics.never_accepted:
        lines.append(Text("no draft was accepted at all: is this the drafter of this target?", "bold red"))
    if statistics.unusable_drafts:
        lines.append(Text(f"{statistics.unusable_drafts} blocks cut at a draft that could not be judged", "bold red"))
    return Group(*lines)


def _rounds_line(report: Report) -> Text:
    statistics = report.statistics
    of = f" for {report.requests} requests" if report.requests > 1 else ""
    stopped = "interrupted: " if report.interrupted else ""
    rounds = "1 round" if statistics.rounds == 1 else f"{statistics.rounds} rounds"
    text = Text(f"{stopped}{report.tokens} tokens in {rounds}{of}: ")
    text.append(f"{statistics.tokens_per_round:.2f} tokens a round", "bold")
    return text.append(f" (at most {statistics.block_size + 1}, with the target's)")


def _acceptance_table(report: Report) -> Table:
    """One bar a block position: rounds that accepted it over rounds that verified it."""
    statistics = report.statistics
    table = Table.grid(padding=(0, 2))
    for column in range(4):
        table.add_column(no_wrap=column != 2)  # on a narrow terminal the bars shrink, and nothing else
    for position, (verified, accepted) in enumerate(zip(statistics.verified, statistics.accepted, strict=True), 1):
        share = accepted / verified if verified else 0.0
        name = "accepted at position" if position == 1 else ""
        count = f"{share:4.0%}  ({accepted} of {verified})" if verified else "never verified"
        table.add_row(name, str(position), _Bar(share), count)
    return table


class _Bar:
    """A green bar of `share` as wide as there is room, at most BAR_WIDTH cells."""

    def __init__(self, share: float) -> None:
        self._share = share

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(4, BAR_WIDTH)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(bar(self._share, min(BAR_WIDTH, options.max_width)), "green")


def bar(share: float, width: int = BAR_WIDTH) -> str:
    """A bar of `share` (0 to 1) of `width` cells, to an eighth of a cell."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (EIGHTHS[rest] if rest else "")).ljust(width)


def _time_line(report: Report) -> Text:
    s = report.statistics
    parts = {
        "prompt": s.prefill_seconds,
        "draft": s.draft_seconds,
        "verify": s.verify_seconds,
        "commit": s.commit_seconds,
        "other": report.other_seconds,
    }
    whole = report.seconds or 1.0
    split = ", ".join(f"{name} {seconds / whole:.0%}" for name, seconds in parts.items())
    return Text(f"time {report.seconds:.2f} s: {split}")


def _speed_line(report: Report) -> Text:
    text = Text(f"{report.tokens_per_second:.1f} tokens/s with speculation")
    if report.plain is not None and report.speedup is not None:
        text.append(f", {report.plain.tokens_per_second:.1f} without: ")
        text.append(f"{report.speedup:.2f}x", "bold")
    return text


def _equality_line(report: Report) -> Text:
    assert report.plain is not None
    comparisons = report.plain.comparisons
    if comparisons is None:
        return Text("sampled texts follow the target's distribution; they are not compared token for token")
    differing = [c for c in comparisons if not c.equal]
    if not differing:
        return Text(f"equal to the non-speculative text: yes, all {report.plain.tokens} tokens", "bold green")
    first = differing[0]
    text = Text("equal to the non-speculative text: no", "bold red")
    text.append(f", {len(differing)} of {len(comparisons)} differ; first at token {(first.first_difference or 0) + 1}")
    if first.margin is not None:
        text.append(f", where the target's best logit leads by {first.margin:.3g} (a near tie, if of rounding size)")
    return text
