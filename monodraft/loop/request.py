"""A request: what to continue and how, and where it stands."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum

from monodraft.loop.sampling import GREEDY, Sampling
from monodraft.loop.statistics import RequestStatistics
from monodraft.loop.verify import Finish


@dataclass(frozen=True)
class Request:
    """A prompt of token ids and how to continue it.

    `confidence_threshold`: drafts from the first with a lower confidence on are not verified; 0 verifies all.
    `stop_tokens` end the text and are part of it. `seed` keys all draws of the request. `prefix_of`: an earlier
    request of the session, running or finished, whose common prefix is restored instead of computed.
    """

    prompt: tuple[int, ...]
    max_new_tokens: int = 128
    sampling: Sampling = GREEDY
    seed: int = 0
    confidence_threshold: float = 0.0
    stop_tokens: frozenset[int] = frozenset()
    prefix_of: int | None = None


class Source(StrEnum):
    """Where a token comes from: a draft that the target accepted, the target's correction of a rejected draft, or
    the target's own (the first after the prompt, or after a block with nothing to reject)."""

    ACCEPTED = "accepted"
    CORRECTED = "corrected"
    TARGET = "target"


@dataclass(frozen=True)
class Emission:
    """New tokens of a request, in order, each with its source; `finish` is set with the last ones."""

    request: int
    tokens: tuple[int, ...]
    sources: tuple[Source, ...]
    finish: Finish | None


class Phase(Enum):
    """A request reads its prompt, then decodes, then lies idle until it is released."""

    PREFILL = 1
    DECODE = 2
    FINISHED = 3


@dataclass
class RequestState:
    """Where a request stands. `tokens` are prompt and output; `committed` is L, the positions whose target K/V and
    features are stored. While it decodes, `committed` = len(tokens) - 1: the last token is the anchor."""

    id: int
    request: Request
    limit: int  # longest text: prompt + max_new_tokens, or the model's positions
    statistics: RequestStatistics
    tokens: list[int]
    committed: int = 0
    phase: Phase = Phase.PREFILL
    finish: Finish | None = None

    @property
    def room(self) -> int:
        """Tokens that may still come."""
        return self.limit - len(self.tokens)

    @property
    def output(self) -> list[int]:
        return self.tokens[len(self.request.prompt) :]
