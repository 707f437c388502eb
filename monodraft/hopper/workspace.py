"""Everything a launch reads and writes besides weights, with one owner; one launch or chain in flight at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from monodraft.checkpoint.config import Rotary
from monodraft.errors import Fault, InputError, StepFailed
from monodraft.hopper import health
from monodraft.hopper.draws import DRAW_WORDS, draw_words, faults_of, is_sampled
from monodraft.hopper.geometry import PAGE, STEP_KEYS, Geometry, padded
from monodraft.hopper.plan import stages

CLOCK_HZ = 2.0e9
"""At least the SM clock of any Hopper, for bounds given in seconds."""


@dataclass(frozen=True)
class StepInput:
    """Inputs of one launch: per request (anchor token, position, pages) and `draws` (temperature, seed), which may be
    empty where all are greedy; per new context row (request, position)."""

    anchors: list[tuple[int, int]]
    pages: list[list[int]]
    context: list[tuple[int, int]]
    draws: list[tuple[float, int]] = field(default_factory=list)


def rope_table(geometry: Geometry, positions: int) -> torch.Tensor:
    """float32 [positions, R / 2, 2] of cos, sin of torch's float32 angles, each rounded from float64."""
    config = geometry.config
    of = config.rotary_dim if config.rotary is Rotary.LEADING else config.head_dim
    exponent = torch.arange(0, config.rotary_dim, 2, dtype=torch.float32) / of
    angle = torch.arange(positions, dtype=torch.float32)[:, None] * (1.0 / config.rope_theta**exponent)
    return torch.stack([angle.double().cos(), angle.double().sin()], -1).float()


def key_splits(geometry: Geometry, requests: int) -> int:
    """Ranges that the keys of a KV head (and group of query rows) are cut into at most, so that one fits each CTA."""
    units = requests * geometry.config.num_kv_heads * geometry.m_groups
    return max(1, geometry.grid // max(1, units))


def split_keys(position: int, window: int | None, block: int, splits: int) -> tuple[int, int, int]:
    """First context position that the block at `position` sees, keys per range (a multiple of 16), ranges in use."""
    low = max(0, position - window + 1) if window else 0
    total = position - low + block
    per = padded(-(-total // splits), 16)
    return low, per, -(-total // per)


class Workspace:
    """Buffers of one geometry on one GPU. `pages` of 64 positions in the K/V pool.

    `bound_seconds`: how long a wait on the grid may last. InputError where the GPU has too little memory left.
    """

    def __init__(
        self,
        geometry: Geometry,
        *,
        pages: int,
        bound_seconds: float = 2.0,
        device: torch.device | str = "cuda",
        rank: int = 0,
    ) -> None:
        self.geometry, self.pages, self.device, self.rank = geometry, pages, torch.device(device), rank
        self.bound = int(bound_seconds * CLOCK_HZ)
        self.stage_names = [stage.name for stage in stages(geometry)]
        self.failed = False
        c, rows = geometry.config, geometry.rows
        bf16, f32 = torch.bfloat16, torch.float32
        shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "step": ((geometry.step_words + rows * (geometry.max_pages + DRAW_WORDS),), torch.int32),
            "features": ((rows, c.feature_size), bf16),
            "residual": ((rows, geometry.hidden_padded), bf16),
            "hidden": ((rows, geometry.hidden_padded), bf16),
            "context": ((rows, geometry.hidden_padded), bf16),
            "attended": ((rows, geometry.q_padded), bf16),
            "gated": ((rows, geometry.ffn_padded), bf16),
            "qkv": ((rows, c.q_size + geometry.kv_columns), bf16),
            "context_kv": ((rows, c.num_layers * geometry.kv_columns), bf16),
            "squares": ((2, rows, geometry.hidden_padded // 16), f32),
            "partial": ((geometry.attention_items, 16 * geometry.m_tiles, c.head_dim), f32),
            "partial_stats": ((geometry.attention_items, 16 * geometry.m_tiles, 2), f32),
            "logits": ((rows, geometry.vocab_padded), f32),
            "best": ((2, rows, geometry.grid), torch.int64),
            "confidence_hidden": ((rows,), f32),
            "result": ((48,), torch.int32),
            "progress": ((geometry.grid,), torch.int32),
            "sync": ((64,), torch.int32),
            "floors": ((c.block_size, rows), torch.int32),
            "pool": ((pages, c.num_layers, 2, c.num_kv_heads, PAGE, c.head_dim), bf16),
        }
        if geometry.joins:
            shapes["delta"] = ((rows, geometry.hidden_padded), bf16)
        if geometry.ranks > 1:
            shapes["exchange"] = ((geometry.exchange_bytes,), torch.uint8)
        needed = sum(torch.Size(shape).numel() * dtype.itemsize for shape, dtype in shapes.values())
        self._check_memory(needed)
        self.buffers = {
            name: torch.zeros(shape, dtype=dtype, device=self.device) for name, (shape, dtype) in shapes.items()
        }
        self.rope = rope_table(geometry, geometry.max_pages * PAGE + c.block_size).to(self.device)
        self._staging = torch.zeros(len(self.buffers["step"]), dtype=torch.int32, pin_memory=self.device.type == "cuda")
        self.sampled = False
        self.corrected: torch.Tensor | None = None
        self._logits: torch.Tensor | None = None
        self.stamps: torch.Tensor | None = None

    def _check_memory(self, needed: int) -> None:
        if self.device.type != "cuda":
            return
        free = torch.cuda.mem_get_info()[0]
        if needed > free:
            raise InputError(
                "the Hopper workspace does not fit",
                [
                    Fault(
                        "GPU memory",
                        f"{free / 1e6:.0f} MB free",
                        f"{needed / 1e6:.0f} MB for {self.pages} pages and activations",
                    )
                ],
            )

    def load_features(self, rows: torch.Tensor) -> None:
        """Features of new context rows [n, feature size] for the next launch."""
        self.buffers["features"][: len(rows)] = rows

    def copy_page(self, source: int, target: int) -> None:
        """Copy a page of keys and values of all layers."""
        self.buffers["pool"][target] = self.buffers["pool"][source]

    def logits(self, rows: slice) -> torch.Tensor:
        """Corrected logits of the last step, float32 [rows, vocabulary of this rank], on the CPU."""
        assert self.corrected is not None, "keep_logits comes first"
        return self.corrected[rows, : self.geometry.config.vocab_size].to(
            "cpu", copy=True
        )  # the next launch writes there

    def keep_logits(self) -> torch.Tensor:
        """From now on steps also store the corrected logits, float32 [rows, vocab padded], by the full Markov scan."""
        if self._logits is None:
            self._logits = torch.zeros_like(self.buffers["logits"])
        self.corrected = self._logits
        return self._logits

    def drop_logits(self) -> None:
        """From now on steps store no corrected logits, and the Markov chain may take its bounded form."""
        self.corrected = None

    def keep_stamps(self) -> torch.Tensor:
        """From now on steps also store clocks: int64 [CTA, stage, (start, end)], in cycles of each CTA's own SM."""
        if self.stamps is None:
            g = self.geometry
            self.stamps = torch.zeros(g.grid, g.stages, 2, dtype=torch.int64, device=self.device)
        return self.stamps

    def load(self, step: StepInput) -> None:
        """Checks a launch's input and queues its copy. InputError before anything is copied."""
        g, c = self.geometry, self.geometry.config
        faults = []
        rows = len(step.anchors) * c.block_size
        if rows > g.rows:
            faults.append(
                Fault("rows", f"{len(step.anchors)} requests of {c.block_size} query rows", f"at most {g.rows} rows")
            )
        if len(step.context) > g.rows:
            faults.append(Fault("context rows", str(len(step.context)), f"at most {g.rows}"))
        longest = g.max_pages * PAGE
        for i, (token, position) in enumerate(step.anchors):
            if not 0 <= token < g.vocabulary:
                faults.append(Fault(f"anchors[{i}].token", str(token), f"0..{g.vocabulary - 1}"))
            if not 0 <= position <= longest - c.block_size:
                faults.append(Fault(f"anchors[{i}].position", str(position), f"0..{longest - c.block_size}"))
            elif i < len(step.pages) and len(step.pages[i]) * PAGE < position:
                faults.append(Fault(f"pages[{i}]", f"{len(step.pages[i])} pages", f"pages for {position} positions"))
        if len(step.pages) > g.rows:
            faults.append(Fault("pages", f"{len(step.pages)} requests", f"at most {g.rows}"))
        for i, pages in enumerate(step.pages):
            wrong = [page for page in pages if not 0 <= page < self.pages]
            if wrong:
                faults.append(Fault(f"pages[{i}]", f"page {wrong[0]}", f"0..{self.pages - 1}"))
            if len(pages) > g.max_pages:
                faults.append(Fault(f"pages[{i}]", f"{len(pages)} pages", f"at most {g.max_pages}"))
        for i, (temperature, seed) in enumerate(step.draws):
            faults += faults_of(temperature, seed, f"draws[{i}]")
        if len(step.draws) not in (0, len(step.anchors)):
            faults.append(Fault("draws", f"{len(step.draws)} requests", f"none or {len(step.anchors)}"))
        for i, (request, position) in enumerate(step.context):
            if not 0 <= request < len(step.pages) or not 0 <= position < len(step.pages[request]) * PAGE:
                faults.append(
                    Fault(f"context[{i}]", f"request {request}, position {position}", "a position with a page")
                )
        if faults:
            raise InputError("the Hopper step refuses its input; nothing was launched", faults)
        words = self._staging
        words.zero_()
        splits = key_splits(g, len(step.anchors))
        words[0], words[1], words[2] = len(step.anchors), len(step.context), splits
        for i, (token, position) in enumerate(step.anchors):
            words[16 + i], words[32 + i] = token, position
            for layer, window in enumerate(c.windows):
                at = STEP_KEYS + (layer * g.rows + i) * 4
                words[at : at + 3] = torch.tensor(split_keys(position, window, c.block_size, splits), dtype=torch.int32)
        for i, (request, position) in enumerate(step.context):
            words[48 + i], words[64 + i] = request, position
        for i, pages in enumerate(step.pages):
            words[g.step_words + i * g.max_pages :][: len(pages)] = torch.tensor(pages, dtype=torch.int32)
        draws = words[g.step_words + g.rows * g.max_pages :].view(g.rows, DRAW_WORDS)
        for i, (temperature, seed) in enumerate(step.draws):
            draws[i] = torch.tensor(draw_words(temperature, seed), dtype=torch.int32)
        self.sampled = any(is_sampled(temperature) for temperature, _ in step.draws)
        self.buffers["step"].copy_(words, non_blocking=True)

    def check_usable(self, geometry: Geometry) -> None:
        """InputError for a workspace of another plan; StepFailed where an earlier step failed and no reset followed."""
        if geometry != self.geometry:
            raise InputError(
                "the Hopper step refuses its workspace",
                [
                    Fault(
                        "workspace",
                        f"made for {self.geometry.rows} rows, mxfp8 {self.geometry.mxfp8}",
                        "one made for this plan",
                    )
                ],
            )
        if self.failed:
            raise StepFailed("an earlier draft step failed; call reset() first")

    def results(self) -> tuple[list[int], torch.Tensor]:
        """Waits for the launch: tokens and confidence of the rows. StepFailed where a wait ran out."""
        result = self.buffers["result"].cpu()
        error = health.failure(result[32:48].tolist(), self.stage_names, self.rank)
        if error is not None:
            self.failed = True
            raise error
        return result[:16].tolist(), result[16:32].view(torch.float32)

    @property
    def waited_for_peers(self) -> bool:
        """Whether the wait of the health record was one for other ranks."""
        return int(self.buffers["result"][34]) == health.PEERS

    def synchronize(self) -> None:
        """Waits for all launches."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def reset(self) -> None:
        """Makes the workspace usable after a failed step; the K/V pool keeps what it holds."""
        self.synchronize()
        for name in ("result", "progress", "sync", "best", *(("exchange",) if self.geometry.ranks > 1 else ())):
            self.buffers[name].zero_()
        self.failed = False
