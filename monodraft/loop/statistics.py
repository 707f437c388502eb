"""What a request's rounds did: counts by block position and time by phase."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class RequestStatistics:
    """Counts and times of one request. Lists have one entry a block position (position 1 of the block first).

    `drafted`: rounds that proposed a token there; `verified`: rounds whose proposal the target saw (not cut by
    confidence, limits or unusable ids); `accepted`: rounds that kept it. `rounds` are target steps after the prompt;
    each yields its accepted drafts and one token of the target, so tokens = first token + sum(accepted) + rounds,
    less the round's own token where a stop token or the limit ended it inside the block. A call that serves several
    requests counts for each with an equal share of its time, in seconds.
    """

    block_size: int
    drafted: list[int] = field(init=False)
    verified: list[int] = field(init=False)
    accepted: list[int] = field(init=False)
    rounds: int = 0
    round_tokens: int = 0
    restored_positions: int = 0
    prefilled_positions: int = 0
    zero_accept_rounds: int = 0
    longest_zero_streak: int = 0
    unusable_drafts: int = 0
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    commit_seconds: float = 0.0
    _streak: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        self.drafted = [0] * self.block_size
        self.verified = [0] * self.block_size
        self.accepted = [0] * self.block_size

    def count_round(self, *, drafted: int, verified: int, accepted: int, tokens: int) -> None:
        """Add one round; a round that verified no draft neither lengthens nor ends a streak of zero acceptance."""
        self.rounds += 1
        self.round_tokens += tokens
        for counts, upto in ((self.drafted, drafted), (self.verified, verified), (self.accepted, accepted)):
            for position in range(upto):
                counts[position] += 1
        if verified:
            self._streak = 0 if accepted else self._streak + 1
            self.zero_accept_rounds += not accepted
            self.longest_zero_streak = max(self.longest_zero_streak, self._streak)

    @property
    def tokens_per_round(self) -> float:
        """Tokens a round, counting the target's own; 0 before the first round."""
        return self.round_tokens / self.rounds if self.rounds else 0.0

    @property
    def never_accepted(self) -> bool:
        """Drafts were verified in 5 rounds or more and not one was kept: a sign of a wrong drafter. Fewer rounds say
        nothing (the shipped pair rejects the first draft in one round of four)."""
        return self.verified[0] >= 5 and self.accepted[0] == 0

    def as_dict(self) -> dict[str, object]:
        """Plain data for JSON."""
        names = [name for name in self.__dataclass_fields__ if not name.startswith("_")]
        return {name: getattr(self, name) for name in names} | {"tokens_per_round": self.tokens_per_round}


def total(statistics: Iterable[RequestStatistics]) -> RequestStatistics:
    """Sum over requests (the longest streak is the longest of any)."""
    parts = list(statistics)
    result = RequestStatistics(max((part.block_size for part in parts), default=0))
    for part in parts:
        for name in ("drafted", "verified", "accepted"):
            for position, count in enumerate(getattr(part, name)):
                getattr(result, name)[position] += count
        for name, value in vars(part).items():
            if isinstance(value, int | float) and name not in ("block_size", "longest_zero_streak", "_streak"):
                setattr(result, name, getattr(result, name) + value)
        result.longest_zero_streak = max(result.longest_zero_streak, part.longest_zero_streak)
    return result
