"""Several requests at once through propose, verify, accept, commit; requests join and leave at any round."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from monodraft.drafter import Anchor, ContextRows, Draft, Drafter
from monodraft.errors import Fault, InputError
from monodraft.loop.request import Emission, Phase, Request, RequestState, Source
from monodraft.loop.sampling import derive_seed
from monodraft.loop.statistics import RequestStatistics
from monodraft.loop.target_model import TargetModel, TargetOutput, TargetRows
from monodraft.loop.verify import (
    Finish,
    Verdict,
    accept_greedy,
    accept_sampled,
    confident_prefix,
    kept_tokens,
    usable_prefix,
)


class Session:
    """Speculative decoding of several requests with independent lengths.

    Between steps, for a decoding request: target K/V and draft context cover exactly positions 0 .. L - 1 and the
    anchor, its last token, stands at L. `step` prefills one chunk of every request that still reads its prompt,
    then runs one round for those that decode. Finished requests lie idle (no call names them) and can serve as a
    prefix until `release`.

    The target must capture the drafter's layers (pair.py checks it). Request ids are the session's own: one session
    at a time on a target and a drafter. If `propose` raises, the requests stand as before the step and can go on; if
    a later call of the step raises, release those that took part.
    """

    def __init__(self, target: TargetModel, drafter: Drafter, *, prefill_chunk: int = 512) -> None:
        if prefill_chunk < 1:
            raise InputError("prefill chunk out of range", [Fault("prefill_chunk", str(prefill_chunk), "1 or more")])
        self.target = target
        self.drafter = drafter
        self.prefill_chunk = prefill_chunk
        self._states: dict[int, RequestState] = {}
        self._next_id = 0

    # -- requests --

    def add(self, request: Request) -> int:
        """Take a request in and return its id; nothing runs until `step`.

        Raises `InputError` naming every fault of the request, before anything is opened.
        """
        self.check([request])
        longest = self.longest_text
        wanted = len(request.prompt) + request.max_new_tokens
        state = RequestState(
            id=self._next_id,
            request=request,
            limit=wanted if longest is None else min(wanted, longest),
            statistics=RequestStatistics(self.drafter.config.block_size),
            tokens=list(request.prompt),
        )
        self._open(state)
        self._states[state.id] = state
        self._next_id += 1
        return state.id

    def check(self, requests: Sequence[Request]) -> None:
        """Raise `InputError` naming every fault of the requests; nothing is opened."""
        faults = [
            replace(fault, where=f"request {i}: {fault.where}" if len(requests) > 1 else fault.where)
            for i, request in enumerate(requests, 1)
            for fault in self._request_faults(request, self.longest_text)
        ]
        if faults:
            raise InputError("the request cannot run", faults)

    def cancel(self, request: int) -> None:
        """End a request where it stands; it keeps its text and can still serve as a prefix."""
        state = self._states[request]
        if state.phase is not Phase.FINISHED:
            state.phase, state.finish = Phase.FINISHED, Finish.CANCELLED

    def release(self, request: int) -> None:
        """Forget a request and free its caches; a running one is dropped."""
        del self._states[request]
        self.target.close(request)
        self.drafter.close(request)

    def output(self, request: int) -> list[int]:
        """Tokens generated so far."""
        return list(self._states[request].output)

    def finish(self, request: int) -> Finish | None:
        """Why the request ended, or None while it runs."""
        return self._states[request].finish

    def statistics(self, request: int) -> RequestStatistics:
        """What its rounds did so far; it keeps counting while the request runs."""
        return self._states[request].statistics

    @property
    def running(self) -> list[int]:
        """Ids of requests that are not finished."""
        return [state.id for state in self._states.values() if state.phase is not Phase.FINISHED]

    @property
    def longest_text(self) -> int | None:
        """Positions that the target and the drafter both have."""
        limits = [n for n in (self.target.max_positions, self.drafter.config.max_positions) if n]
        return min(limits) if limits else None

    # -- one step --

    def step(self) -> list[Emission]:
        """One prefill chunk for each request that reads its prompt and one round for each that decodes."""
        states = list(self._states.values())
        decoding = [state for state in states if state.phase is Phase.DECODE]
        emissions = self._prefill([state for state in states if state.phase is Phase.PREFILL])
        if decoding:
            emissions += self._round(decoding)
        return emissions

    def _prefill(self, states: list[RequestState]) -> list[Emission]:
        """Run the next chunk of each prompt; behind its last token the target gives the first anchor."""
        if not states:
            return []
        with _timed(states, "prefill_seconds"):
            chunks = [self._chunk(state) for state in states]
            outputs = self.target.forward(chunks)
            self._commit(states, outputs, [len(chunk.tokens) for chunk in chunks])
        emissions = []
        for state, chunk, output in zip(states, chunks, outputs, strict=True):
            state.statistics.prefilled_positions += len(chunk.tokens)
            if state.committed == len(state.request.prompt):
                state.phase = Phase.DECODE
                verdict = self._judge(state, [], None, output.logits)
                emissions.append(self._emit(state, [], verdict, Source.TARGET))
        return emissions

    def _chunk(self, state: RequestState) -> TargetRows:
        tokens = state.request.prompt[state.committed : state.committed + self.prefill_chunk]
        last = state.committed + len(tokens) == len(state.request.prompt)
        return TargetRows(state.id, state.committed, tokens, logits=int(last))

    def _round(self, states: list[RequestState]) -> list[Emission]:
        """Propose, verify, accept and commit one block for each request."""
        with _timed(states, "draft_seconds"):
            drafts = self._propose(states)
        drafted = [self._verified_draft(state, drafts.get(state.id)) for state in states]
        with _timed(states, "verify_seconds"):
            outputs = self.target.forward(
                [
                    TargetRows(state.id, state.committed, (state.tokens[-1], *tokens), logits=len(tokens) + 1)
                    for state, tokens in zip(states, drafted, strict=True)
                ]
            )
            verdicts = [
                self._judge(state, tokens, drafts.get(state.id), output.logits)
                for state, tokens, output in zip(states, drafted, outputs, strict=True)
            ]
        emissions = []
        for state, tokens, verdict in zip(states, drafted, verdicts, strict=True):
            own = Source.CORRECTED if verdict.accepted < len(tokens) else Source.TARGET
            emissions.append(self._emit(state, tokens, verdict, own))
            kept = emissions[-1]
            state.statistics.count_round(
                drafted=len(drafts[state.id].tokens) if state.id in drafts else 0,
                verified=len(tokens),
                accepted=kept.sources.count(Source.ACCEPTED),
                tokens=len(kept.tokens),
            )
        with _timed(states, "commit_seconds"):
            # Row 0 is the old anchor; the kept tokens but the last follow it. The last is the new anchor (no features).
            self._commit(states, outputs, [len(emission.tokens) for emission in emissions])
        return emissions

    def _propose(self, states: list[RequestState]) -> dict[int, Draft]:
        """Blocks of those that can use one: with a single token to come, or no positions left for the block, the
        target alone makes it."""
        block = self.drafter.config.block_size
        last = self.drafter.config.max_positions
        able = [state for state in states if state.room > 1 and (not last or state.committed + block <= last)]
        anchors = [
            Anchor(
                request=state.id,
                token=state.tokens[-1],
                position=state.committed,
                temperature=0.0 if state.request.sampling.greedy else state.request.sampling.temperature,
                seed=derive_seed(state.request.seed, "draft"),
            )
            for state in able
        ]
        drafts = self.drafter.propose(anchors) if anchors else []
        return {draft.request: draft for draft in drafts}

    def _verified_draft(self, state: RequestState, draft: Draft | None) -> list[int]:
        """The leading drafts worth a row of the target. Verifying fewer is always safe."""
        if draft is None:
            return []
        tokens: list[int] = draft.tokens.tolist()
        usable = usable_prefix(tokens, draft.logits, self.target.vocab_size)
        state.statistics.unusable_drafts += usable < len(tokens)
        confident = confident_prefix(draft.confidence, state.request.confidence_threshold)
        width = min(usable, state.room - 1, len(tokens) if confident is None else confident)
        return tokens[:width]

    def _judge(self, state: RequestState, tokens: list[int], draft: Draft | None, logits: torch.Tensor) -> Verdict:
        sampling = state.request.sampling
        if sampling.greedy:
            return accept_greedy(tokens, logits)
        draft_logits = draft.logits if draft is not None else None
        position, seed = len(state.tokens), state.request.seed
        return accept_sampled(tokens, draft_logits, logits, sampling, seed=seed, position=position)

    def _emit(self, state: RequestState, drafted: Sequence[int], verdict: Verdict, own: Source) -> Emission:
        """Append a verdict's tokens to the text, cut at a stop token and at the limit."""
        accepted = drafted[: verdict.accepted]
        kept, finish = kept_tokens([*accepted, verdict.next_token], state.request.stop_tokens, state.room)
        sources = [*[Source.ACCEPTED] * len(accepted), own][: len(kept)]
        state.tokens += kept
        if finish is Finish.LENGTH and len(state.output) < state.request.max_new_tokens:
            finish = Finish.CONTEXT
        if finish is not None:
            state.phase, state.finish = Phase.FINISHED, finish
        return Emission(state.id, tuple(kept), tuple(sources), finish)

    def _commit(self, states: list[RequestState], outputs: list[TargetOutput], counts: list[int]) -> None:
        """Keep the first `counts` rows of each output: their features in the drafter, their K/V in the target."""
        rows = []
        for state, output, count in zip(states, outputs, counts, strict=True):
            assert output.features is not None
            rows.append(ContextRows(state.id, state.committed, output.features[:count]))
        self.drafter.commit(rows)
        for state, count in zip(states, counts, strict=True):
            state.committed += count
            self.target.truncate(state.id, state.committed)

    # -- opening --

    def _open(self, state: RequestState) -> None:
        """Open in target and drafter, with the restored prefix if there is one: both or neither."""
        length = self._shared_prefix(state.request)
        if not length:
            self.drafter.open(state.id)  # raises if it has no room
            self.target.open(state.id)
            return
        source = state.request.prefix_of
        assert source is not None
        self.drafter.fork(source, state.id, length)  # raises for a prefix that its window no longer holds
        self.target.fork(source, state.id, length)
        state.committed = length
        state.statistics.restored_positions = length

    def _shared_prefix(self, request: Request) -> int:
        """Positions that can be taken over: common tokens that the source has committed. The last prompt token runs
        in any case, for its logits."""
        if request.prefix_of is None:
            return 0
        source = self._states[request.prefix_of]
        longest = min(source.committed, len(request.prompt) - 1)
        common = 0
        while common < longest and source.tokens[common] == request.prompt[common]:
            common += 1
        return common

    def _request_faults(self, request: Request, longest: int | None) -> list[Fault]:
        vocab = self.target.vocab_size
        faults = []
        if not request.prompt:
            faults.append(Fault("prompt", "no tokens", "at least one token"))
        outside = [i for i, token in enumerate(request.prompt) if not 0 <= token < vocab]
        if outside:
            found = f"id {request.prompt[outside[0]]} at place {outside[0]} ({len(outside)} in all)"
            faults.append(Fault("prompt", found, f"ids 0 to {vocab - 1}, the target's vocabulary"))
        if longest is not None and len(request.prompt) >= longest:
            wanted = f"at most {longest - 1}, the positions of target and drafter less one"
            faults.append(Fault("prompt", f"{len(request.prompt)} tokens", wanted))
        if request.max_new_tokens < 1:
            faults.append(Fault("max_new_tokens", str(request.max_new_tokens), "1 or more"))
        if not 0 <= request.confidence_threshold <= 1:
            faults.append(Fault("confidence_threshold", str(request.confidence_threshold), "0 (off) to 1"))
        elif request.confidence_threshold > 0 and not self.drafter.config.has_confidence:
            wanted = "0: this drafter has no confidence head"
            faults.append(Fault("confidence_threshold", str(request.confidence_threshold), wanted))
        if request.prefix_of is not None and request.prefix_of not in self._states:
            faults.append(Fault("prefix_of", str(request.prefix_of), f"one of {sorted(self._states)}"))
        return faults


@contextmanager
def _timed(states: list[RequestState], name: str) -> Iterator[None]:
    """Add the block's time to a phase of the statistics, in equal shares."""
    start = time.perf_counter()
    yield
    share = (time.perf_counter() - start) / len(states)
    for state in states:
        setattr(state.statistics, name, getattr(state.statistics, name) + share)
