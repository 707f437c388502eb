"""What a run of the loop came to: the one set of figures that the terminal, `--json` and the benchmark show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from monodraft.loop.plain import Comparison, PlainRun
from monodraft.loop.statistics import RequestStatistics


@dataclass(frozen=True)
class PlainReport:
    """The plain runs of the same prompts, together: tokens a second, and where each text parts from the speculative
    one. `comparisons` is None where the texts are sampled: they follow one distribution and need not be equal."""

    tokens: int
    tokens_per_second: float
    comparisons: tuple[Comparison, ...] | None

    @property
    def equal(self) -> bool | None:
        return None if self.comparisons is None else all(c.equal for c in self.comparisons)


@dataclass(frozen=True)
class Report:
    """`tokens` of all requests; `seconds` inside the session's steps, so without printing."""

    statistics: RequestStatistics
    requests: int
    tokens: int
    seconds: float
    plain: PlainReport | None = None
    interrupted: bool = False

    @property
    def other_seconds(self) -> float:
        """Time of the steps outside prefill, draft, verify and commit."""
        s = self.statistics
        return max(0.0, self.seconds - s.prefill_seconds - s.draft_seconds - s.verify_seconds - s.commit_seconds)

    @property
    def decode_seconds(self) -> float:
        return self.seconds - self.statistics.prefill_seconds

    @property
    def tokens_per_second(self) -> float:
        """Of the rounds; the first token of each request comes from its prompt and counts for neither side."""
        return self.statistics.round_tokens / self.decode_seconds if self.decode_seconds > 0 else 0.0

    @property
    def speedup(self) -> float | None:
        """Tokens a second with speculation over those without; under 1 speculation lost."""
        plain = self.plain
        return self.tokens_per_second / plain.tokens_per_second if plain and plain.tokens_per_second else None

    def as_dict(self) -> dict[str, object]:
        """Plain data for JSON."""
        plain = None
        if self.plain is not None:
            plain = asdict(self.plain) | {"equal": self.plain.equal}
        return {
            "requests": self.requests,
            "tokens": self.tokens,
            "interrupted": self.interrupted,
            "tokens_per_round": self.statistics.tokens_per_round,
            "tokens_per_second": self.tokens_per_second,
            "speedup": self.speedup,
            "seconds": self.seconds,
            "other_seconds": self.other_seconds,
            "statistics": self.statistics.as_dict(),
            "plain": plain,
        }


def plain_report(runs: Sequence[PlainRun], comparisons: Sequence[Comparison] | None) -> PlainReport:
    """Sum of plain runs."""
    seconds = sum(run.decode_seconds for run in runs)
    tokens = sum(len(run.tokens) for run in runs)
    rate = (tokens - len(runs)) / seconds if seconds else 0.0
    return PlainReport(tokens, rate, None if comparisons is None else tuple(comparisons))
