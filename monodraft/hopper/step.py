"""A step on the GPU: the stage table, and its launch as one kernel or as a chain."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from enum import StrEnum

import torch

from monodraft.hopper.geometry import SLOT_BYTES, Geometry
from monodraft.hopper.launch import Args, Captured, Kernel, Launcher, StageRecord
from monodraft.hopper.plan import CONTEXT_STAGES, Kind, Out, Stage, stages
from monodraft.hopper.weights import PackedWeights
from monodraft.hopper.workspace import Workspace

_BUFFERS = [
    "residual",
    "hidden",
    "attended",
    "qkv",
    "context_kv",
    "squares",
    "partial",
    "partial_stats",
    "logits",
    "best",
    "confidence_hidden",
    "pool",
    "progress",
    "floors",
]
"""Buffers whose address goes into the argument block under their own name."""


class Form(StrEnum):
    """How the stages run: one launch with grid barriers, or one launch a stage with programmatic dependent launch."""

    ONE_LAUNCH = "one-launch"
    CHAIN = "chain"


def stage_records(plan: list[Stage], weights: PackedWeights, workspace: Workspace) -> list[StageRecord]:
    """The stage table of stages/plan.cuh for these buffers."""
    g, c, buffers = workspace.geometry, workspace.geometry.config, workspace.buffers
    inner = {
        "features": c.feature_size,
        "context": g.hidden_padded,
        "hidden": g.hidden_padded,
        "attended": g.q_padded,
        "gated": g.ffn_padded,
    }
    columns = {
        "qkv": c.q_size + g.kv_columns,
        "context_kv": c.num_layers * g.kv_columns,
        "gated": g.ffn_padded,
        "logits": g.vocab_padded,
    }
    # A delta's sums of squares lie where those of the context rows were: the step has used them before its first layer.
    squares = {name: buffers["squares"][i].data_ptr() for name, i in (("hidden", 0), ("context", 1), ("delta", 1))}

    def next_norm(stage: Stage) -> str:
        if stage.out is Out.CONTEXT:
            return "hidden"
        if stage.name.endswith((".o", ".o_sum", ".o_join")):
            return f"layers.{stage.layer}.post"
        return f"layers.{stage.layer + 1}.input" if stage.layer + 1 < c.num_layers else "final"

    records, rotation = [], 0
    for stage in plan:
        record = StageRecord(kind=stage.kind, layer=stage.layer, step=stage.step, window=c.windows[stage.layer] or 0)
        linear = stage.linear
        if linear is not None:
            record.weights = weights.packed[linear.name].data_ptr()
            record.row_blocks, record.chunks, record.mxfp8 = linear.row_blocks, linear.chunks, linear.mxfp8
            record.part_chunks, record.parts, record.split_log2 = linear.part_chunks, linear.parts, linear.split_log2
            assert weights.packed[linear.name].nbytes == linear.bytes, f"{linear.name}: packed for another plan"
        if stage.kind is Kind.LINEAR:
            assert linear is not None, stage.name
            record.input, record.inner = buffers[stage.input].data_ptr(), inner[stage.input]
            record.columns = columns.get(stage.output, 0)
            record.squares = squares.get(stage.normed, 0)
            if stage.input == "features":
                record.row_major, record.columns = 1, c.feature_size
            if stage.out is not Out.LOGITS:  # the LM head's first CTAs also compute the confidence
                record.rotation = rotation
                rotation = (rotation - linear.row_blocks) % g.grid
        if stage.kind is Kind.JOIN:
            record.weights = weights.joins[stage.name].data_ptr()
            record.input, record.squares = buffers[stage.input].data_ptr(), squares[stage.normed]
        if stage.kind in (Kind.LINEAR, Kind.SUM, Kind.JOIN):
            record.out = stage.out
            record.output = buffers[stage.output].data_ptr() if stage.output else 0
        if stage.out in (Out.RESIDUAL, Out.CONTEXT):
            norm = next_norm(stage)
            record.next_norm = weights.norms[norm].data_ptr()
            record.next_mxfp8 = g.mxfp8 and norm != "final"
        records.append(record)
    return records


class Launches(ABC):
    """What runs a plan's stages: one rank, or the rank groups of one GPU."""

    plan: list[Stage]
    bounded: bool
    form: Form
    kernel: Launcher

    @property
    @abstractmethod
    def sampled(self) -> bool:
        """Whether a draft of the inputs loaded last is sampled."""

    @property
    def launcher(self) -> Launcher:
        """The build for the inputs loaded last. The one that draws is made when it is first needed."""
        return self.kernel.sampled if self.sampled else self.kernel

    @abstractmethod
    def check_usable(self) -> None:
        """Raises where a workspace cannot take a launch."""

    @abstractmethod
    def arguments(self, first: int, count: int) -> Args | ctypes.Array:
        """What a launch of `count` stages from `first` is given: a block, or one a rank."""

    def launch(self, first: int, count: int) -> None:
        """Queues stages first .. first + count - 1 in this step's form."""
        self.check_usable()
        if self.form is Form.ONE_LAUNCH:
            self.launcher.launch(self.arguments(first, count), dependent=False)
        else:
            self.launcher.launch_chain([self.arguments(stage, 1) for stage in range(first, first + count)])

    def run(self, *, context: bool, propose: bool = True) -> None:
        """Queues a step: with the context stages where new rows were loaded, and the draft itself or only them."""
        first = 0 if context else CONTEXT_STAGES
        last = len(self.plan) if propose else CONTEXT_STAGES + 1
        self.launch(first, last - first)

    def capture(self, *, context: bool) -> Captured:
        """A CUDA graph of `run`; replays read the inputs that `Workspace.load` copied last. Sampled ones need a graph
        captured for sampled ones (which also drafts greedily)."""
        return self.launcher.capture(lambda: self.run(context=context))


class Step(Launches):
    """A compiled step with its weights and workspace. `form`: how `run` launches it. `bounded`: the Markov chain scans
    w2 in MXFP8 and gives the same tokens; a step that samples or stores corrected logits takes the full scan.
    `kernel`: a build that is loaded already.

    InputError for a workspace of another plan.
    """

    def __init__(
        self,
        weights: PackedWeights,
        workspace: Workspace,
        form: Form = Form.ONE_LAUNCH,
        bounded: bool = True,
        kernel: Launcher | None = None,
    ) -> None:
        workspace.check_usable(weights.geometry)
        self.weights, self.workspace, self.form = weights, workspace, form
        self.geometry: Geometry = workspace.geometry
        self.plan = stages(self.geometry)
        self.bounded = bounded
        self.kernel: Launcher = Kernel(self.geometry) if kernel is None else kernel
        self._tables = [self._table(stages(self.geometry, bounded=bounded)) for bounded in (False, True)]
        self.fault: tuple[int, int] = (-1, -1)

    @property
    def sampled(self) -> bool:
        return self.workspace.sampled

    def _table(self, plan: list[Stage]) -> torch.Tensor:
        table = b"".join(bytes(record) for record in stage_records(plan, self.weights, self.workspace))
        return torch.frombuffer(bytearray(table), dtype=torch.uint8).to(self.workspace.device)

    def arguments(self, first: int, count: int) -> Args:
        """The argument block of a launch of `count` stages from `first`."""
        b, w, workspace = self.workspace.buffers, self.weights, self.workspace
        step, result, sync = b["step"].data_ptr(), b["result"].data_ptr(), b["sync"].data_ptr()
        args = Args(
            stages=self._tables[self.bounded and workspace.corrected is None and not self.sampled].data_ptr(),
            step=step,
            pages=step + 4 * self.geometry.step_words,
            embed=w.embed.data_ptr(),
            w1=w.w1.data_ptr(),
            w2=w.packed["markov"].data_ptr(),
            w1_lengths=w.w1_lengths.data_ptr(),
            slack=w.slack.data_ptr(),
            rope=workspace.rope.data_ptr(),
            head_norms=w.head_norms.data_ptr(),
            first_norm=w.norms["layers.0.input"].data_ptr(),
            confidence=w.confidence.data_ptr(),
            corrected=0 if workspace.corrected is None else workspace.corrected.data_ptr(),
            stamps=0 if workspace.stamps is None else workspace.stamps.data_ptr(),
            tokens=result,
            confidence_out=result + 64,
            health=result + 128,
            counter=sync,
            epoch=sync + 128,
            rescored=sync + 192,
            bound=workspace.bound,
            first=first,
            count=count,
            fault_cta=self.fault[0],
            fault_stage=self.fault[1],
        )
        for name in _BUFFERS:
            setattr(args, name, b[name].data_ptr())
        return args

    def check_usable(self) -> None:
        self.workspace.check_usable(self.geometry)


assert SLOT_BYTES % 128 == 0, "bulk copies land on 128-byte lines"
