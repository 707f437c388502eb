"""Correctness on the device: every stage, whole drafts, repeats, forms, bounds."""

from __future__ import annotations

from collections.abc import Callable

import torch
from beside import Shadowed
from rows import plain

from monodraft.checkpoint.config import DraftConfig
from monodraft.checkpoint.weights import DraftWeights
from monodraft.drafter import Anchor, ContextRows, Drafter
from monodraft.errors import StepFailed
from monodraft.hopper.bench.kernels import features
from monodraft.hopper.drafter import HopperDrafter
from monodraft.hopper.step import Form
from monodraft.reference.drafter import ReferenceDrafter

ACTIVATION_SCALE = 2.0**64


def difference(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Relative error in the 2-norm; NaN stays NaN."""
    found, wanted = found.double().cpu(), wanted.double().cpu().view_as(found)
    return float((found - wanted).norm() / wanted.norm().clamp_min(1e-30))


def pair_of(
    config: DraftConfig, weights: DraftWeights, mxfp8: bool, **options: object
) -> tuple[HopperDrafter, ReferenceDrafter]:
    ours = HopperDrafter(config, weights, mxfp8=mxfp8, max_requests=4, **({"max_positions": 2048} | options))  # type: ignore[arg-type]
    numerics, device = "w8a16" if mxfp8 else "bf16", str(ours.workspace.device)
    theirs = ReferenceDrafter(config, weights, numerics, device=device, max_requests=4)
    return ours, theirs


def committed(drafter: Drafter, lengths: list[int], device: torch.device | str) -> list[Anchor]:
    """Opens and fills a request for every length; where to draft from."""
    generator = torch.Generator().manual_seed(5)
    anchors, config = [], drafter.config
    for request, length in enumerate(lengths):
        drafter.open(request)
        drafter.commit([ContextRows(request, 0, features(config, length, request, device))])
        anchors.append(Anchor(request, int(torch.randint(0, config.vocab_size, (), generator=generator)), length))
    return anchors


def noise(config: DraftConfig, weights: DraftWeights, lengths: list[int], device: str = "cuda") -> dict[str, float]:
    """Relative error of every stage of `stages` that roundings to bf16 make: the reference in bf16 against itself in
    float64, worst over the layers. Kernels that round at the same places, but otherwise, are as far from either. The
    record holds residuals unrounded; here they are rounded to bf16, as the kernels' buffer is."""
    records, pools = [], []
    for numerics in ("bf16", "exact"):
        drafter = ReferenceDrafter(config, weights, numerics, device=device, max_requests=4)
        anchors = committed(drafter, lengths, device)
        with drafter.recording() as record:
            drafter.propose(anchors)
        records.append(record)
        pools.append([drafter.pool.read(r, i, 0) for r in range(len(lengths)) for i in range(config.num_layers)])
    found: dict[str, float] = {}
    pairs = [(name.rpartition("layer")[2].lstrip("0123456789."), *(r[name] for r in records)) for name in records[0]]
    for one, other in zip(*pools, strict=True):
        pairs += [("context.k", one.keys, other.keys), ("context.v", one.values, other.values)]
    for name, one, other in pairs:
        if one.is_floating_point() and one.shape == other.shape:
            one = one.bfloat16() if name.endswith(("residual", "stream")) else one
            found[name] = max(found.get(name, 0.0), difference(one, other))
    return found


def finished_values(config: DraftConfig, projected: torch.Tensor) -> torch.Tensor:
    """The block's values [rows, KV heads, head] of their projection: the kernels norm them where they attend."""
    if not config.value_norm:
        return projected
    x = projected.double()
    return (x * (x.square().mean(-1, keepdim=True) + config.rms_norm_eps).rsqrt()).bfloat16()


def stages(
    config: DraftConfig, weights: DraftWeights, mxfp8: bool, lengths: list[int], **options: object
) -> dict[str, float]:
    """Relative error of every stage of one step against the reference's record, worst over the layers. AssertionError
    where the drafts are not those of "What equal means"."""
    ours, theirs = pair_of(config, weights, mxfp8, **options)
    for drafter in (ours, theirs):
        anchors = committed(drafter, lengths, ours.workspace.device)
    both = Shadowed(ours, theirs, weights)
    committed(both.exact, lengths, ours.workspace.device)
    with theirs.recording() as record, both.exact.recording() as smooth:
        wanted = theirs.propose_with_margins(anchors, logits=True)
        both.exact.propose(anchors)
    step, buffers, g = ours.step, ours.workspace.buffers, config.block_size
    rows = len(anchors) * g
    found: dict[str, float] = {}

    def note(name: str, value: torch.Tensor, key: str) -> None:
        found[name] = max(found.get(name, 0.0), error) if (error := difference(value, record[key])) == error else error

    scale = ACTIVATION_SCALE if mxfp8 else 1.0
    h, q, f = config.hidden_size, config.q_size, config.ffn_size
    corrected = ours.workspace.keep_logits()
    real = step.launch

    def one_by_one(first: int, count: int) -> None:
        for stage in range(first, first + count):
            step.kernel.launch(step.arguments(stage, 1), dependent=False)
            ours.workspace.synchronize()
            name = step.plan[stage].name
            layer, _, kind = name.removeprefix("layers.").partition(".")
            if count <= 3 and name != "prepare":
                continue
            if name == "prepare" and count > 3:
                note("embedding", plain(buffers["residual"])[:rows, :h], "embedding")
            elif kind == "qkv":
                qkv = buffers["qkv"][:rows].view(rows, -1, config.head_dim)
                note("q_linear", qkv[:, : config.num_heads], f"layer{layer}.q_linear")
                note("v", finished_values(config, qkv[:, -config.num_kv_heads :]), f"layer{layer}.v")
            elif kind == "combine":
                note("attention", plain(buffers["attended"])[:rows, :q].double() / scale, f"layer{layer}.attention")
            elif kind in ("o", "down") and ours.geometry.joins:
                note(kind, plain(buffers["delta"])[:rows, :h], f"layer{layer}.{kind}")
            elif kind in ("o", "o_join"):
                note("o.residual", plain(buffers["residual"])[:rows, :h], f"layer{layer}.o.residual")
            elif kind == "gate_up":
                note("ffn", plain(buffers["gated"])[:rows, :f].double() / scale, f"layer{layer}.ffn")
            elif kind in ("down", "down_join"):
                note("stream", plain(buffers["residual"])[:rows, :h], f"layer{layer}.stream")
            elif name == "lm_head":
                note("base_logits", buffers["logits"][:rows, : config.vocab_size], "base_logits")

    step.launch = one_by_one  # type: ignore[method-assign]
    drafts = ours.propose(anchors, logits=True)
    step.launch = real  # type: ignore[method-assign]
    note("corrected", corrected[:rows, : config.vocab_size], "corrected_logits")
    for request, length in enumerate(lengths):
        pages = ours._table.pages(request)
        for layer in range(config.num_layers):
            theirs_kv = theirs.pool.read(request, layer, 0)
            for which, wanted_kv in enumerate((theirs_kv.keys, theirs_kv.values)):
                pool = (
                    buffers["pool"][pages, layer, which]
                    .transpose(1, 2)
                    .reshape(-1, config.num_kv_heads, config.head_dim)[:length]
                )
                error = difference(pool, wanted_kv)
                name = ("context.k", "context.v")[which]
                found[name] = max(found.get(name, 0.0), error) if error == error else error
    both.compare(anchors, drafts, wanted, record["final"], smooth["final"])
    found["rows over noise"] = both.outcome.ratio
    found["tokens differ"] = float(len(both.outcome.near_ties))
    if both.outcome.near_ties:
        found["lead there"], found["bound there"] = both.outcome.near_ties[-1]
    if config.has_confidence:
        errors = [
            float((d.confidence - w.draft.confidence.cpu()).abs().max())  # type: ignore[operator,union-attr]
            for d, w in zip(drafts, wanted, strict=True)
        ]
        found["confidence abs"] = max(errors)
    if both.refused:
        raise AssertionError("\n".join([*both.refused, str(found)]))
    return found


def repeats(ours: HopperDrafter, anchors: list[Anchor], count: int = 100) -> int:
    """How many of `count` repeated steps differ in any byte of tokens, logits or confidence from the first."""
    corrected = ours.workspace.keep_logits()
    ours.workspace.buffers["result"].zero_()
    ours.propose(anchors, logits=True)
    first = (corrected.clone(), ours.workspace.buffers["result"].clone())
    graph = ours.step.capture(context=False)
    bad = 0
    for _ in range(count):
        corrected.fill_(float("nan"))
        ours.workspace.buffers["result"].fill_(0)
        graph.replay()
        ours.workspace.synchronize()
        used = len(anchors) * ours.config.block_size
        same = torch.equal(corrected[:used, : ours.config.vocab_size], first[0][:used, : ours.config.vocab_size])
        bad += not (same and torch.equal(ours.workspace.buffers["result"], first[1]))
    return bad


def forms_agree(ours: HopperDrafter, anchors: list[Anchor]) -> bool:
    """One launch and the chain give the same bytes: corrected logits, tokens, confidence."""
    corrected, results = ours.workspace.keep_logits(), []
    for form in (Form.ONE_LAUNCH, Form.CHAIN):
        ours.step.form = form
        corrected.fill_(float("nan"))
        ours.propose(anchors, logits=True)
        used = len(anchors) * ours.config.block_size
        results.append((corrected[:used, : ours.config.vocab_size].clone(), ours.workspace.buffers["result"].clone()))
    ours.step.form = Form.ONE_LAUNCH
    return all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def bounded(ours: HopperDrafter, anchors: list[Anchor], cta: int, stage: int) -> dict[str, object]:
    """A CTA that never publishes at a stage: the error's text, and whether the step after reset() is right again."""
    wanted = [draft.tokens.tolist() for draft in ours.propose(anchors)]
    ours.step.fault = (cta, stage)
    message = "no error"
    try:
        ours.propose(anchors)
    except StepFailed as error:
        message = str(error)
    ours.step.fault = (-1, -1)
    refused = False
    try:
        ours.propose(anchors)
    except StepFailed:
        refused = True
    ours.reset()
    again = [draft.tokens.tolist() for draft in ours.propose(anchors)]
    name = ours.step.plan[stage].name
    named = f"stage {name}," in message and f"CTA {cta}:" in message
    return {"stage": name, "cta": cta, "named": named, "refused": refused, "right": again == wanted, "message": message}


def bounded_chain(ours: HopperDrafter, position: int, count: int = 100) -> dict[str, float]:
    """Over `count` anchors: drafts of the bounded Markov chain that differ in any byte from the full scan's, and the
    share of w2's row blocks that the bounded chain read in bf16."""
    workspace, step, g = ours.workspace, ours.step, ours.config.block_size
    workspace.drop_logits()
    counters, bad, blocks = workspace.buffers["sync"][48 : 48 + g], 0, ours.geometry.vocab_padded // 16
    before = counters.tolist()
    generator = torch.Generator().manual_seed(9)
    for token in torch.randint(0, ours.config.vocab_size, (count,), generator=generator).tolist():
        results = []
        for step.bounded in (True, False):
            workspace.buffers["result"][:32] = -1
            ours.propose([Anchor(0, token, position)])
            results.append(workspace.buffers["result"].clone())
        bad += not torch.equal(*results)
    step.bounded = True
    reread = [after - first for after, first in zip(counters.tolist(), before, strict=True)]
    share = sum(reread) / (count * g * blocks)
    return {
        "drafts": count,
        "differing": bad,
        "blocks": blocks,
        "blocks per slot": sum(reread) / count / g,
        "share": share,
    }


Check = Callable[[], object]
