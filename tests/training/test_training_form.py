"""What is trained is what the reference runs: the two forms of the drafter agree on logits and confidence."""

from dataclasses import replace

import pytest
import torch

from monodraft.checkpoint.config import DraftConfig
from monodraft.drafter import Anchor, ContextRows
from monodraft.reference import ReferenceDrafter
from monodraft.training import train_drafter as training
from monodraft.training.acceptance import accepted_lengths, measure_acceptance
from monodraft.training.configs import minimax_m31_config, qwen3_config
from monodraft.training.draft_model import Blocks, DraftModel, make_blocks
from monodraft.training.export import export_weights
from monodraft.training.features import target_features
from monodraft.training.target_model import TargetRecipe, build_target

pytestmark = pytest.mark.numbers
RECIPE = TargetRecipe(
    hidden_size=64, num_layers=3, num_heads=2, num_kv_heads=1, head_dim=32, ffn_size=64, vocab_size=97
)
SMALL = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 32, "ffn_size": 96, "num_layers": 2, "mxfp8_linears": False}
CONFIGS = {
    "minimax-m31": replace(
        minimax_m31_config(RECIPE), **SMALL, windows=(9, 9), rotary_dim=16, markov_rank=16, target_layer_ids=(0, 2)
    ),
    "qwen3": replace(qwen3_config(RECIPE), **SMALL, rotary_dim=32, markov_rank=16, target_layer_ids=(0, 1)),
}


def random_model(config: DraftConfig, seed: int) -> DraftModel:
    """A float32 module whose parameters are all bf16 values, so that exporting it rounds nothing."""
    torch.manual_seed(seed)
    embedding = torch.randn(config.vocab_size, config.hidden_size).bfloat16().float()
    model = DraftModel(config, embedding)
    for name, parameter in model.named_parameters():
        scale = 0.3 if "norm" in name else 4 * parameter.shape[-1] ** -0.5
        offset = 1.0 if "norm" in name and name.endswith("weight") and model.final_norm.offset == 0.0 else 0.0
        parameter.data = (offset + scale * torch.randn_like(parameter)).bfloat16().float()
    return model


@pytest.mark.parametrize("family", CONFIGS)
def test_training_form_equals_the_reference(family: str) -> None:
    config = CONFIGS[family]
    model = random_model(config, seed=3)
    features = torch.randn(1, 40, config.feature_size)
    tokens = torch.randint(config.vocab_size, (1, 40))
    anchors = torch.tensor([[1, 8, 9, 10, 25]])
    with torch.no_grad():
        hidden = model.hidden(features, tokens.gather(1, anchors), make_blocks(anchors, 40, 7, config.windows[0]))
        drafts = model.draft_greedy(hidden, tokens.gather(1, anchors))
    for index, anchor in enumerate(anchors[0].tolist()):
        reference = ReferenceDrafter(config, export_weights(model), "exact")
        reference.open(0)
        reference.commit([ContextRows(0, 0, features[0, :anchor])])
        (draft,) = reference.propose([Anchor(0, int(tokens[0, anchor]), anchor)], logits=True)
        assert draft.tokens.tolist() == drafts[0, index].tolist()
        previous = torch.cat([tokens[0, anchor : anchor + 1], draft.tokens[:-1]])
        with torch.no_grad():
            logits = model.base_logits(hidden[0, index]) + model.bias_logits(previous)
            confidence = model.confidence_logit(hidden[0, index], previous)
        # float32 against float64: sums of at most 128 terms through two layers; logits here are of size 10.
        torch.testing.assert_close(logits, draft.logits.float(), rtol=0, atol=2e-3)
        torch.testing.assert_close(confidence, draft.confidence.float(), rtol=0, atol=2e-3)


def test_walk_goes_from_anchor_to_the_token_after_the_accepted_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of accepted lengths by anchor, and the rounds that a speculative loop makes of them."""
    tables = iter([torch.tensor([[2, 9, 9, 0, 1, 9], [0, 7, 9, 9, 9, 9]])])
    monkeypatch.setattr("monodraft.training.acceptance.accepted_lengths", lambda *_: next(tables))
    model = random_model(CONFIGS["minimax-m31"], seed=5)
    measured = measure_acceptance(model, build_target(RECIPE), torch.zeros(2, 30, dtype=torch.long), 20)
    # Row 0 visits anchors 0 (2 accepted), 3 (0), 4 (1); row 1 visits 0 (0), 1 (7).
    assert measured.rounds == 5
    assert measured.tokens_per_round == (3 + 1 + 2 + 1 + 8) / 5
    assert measured.by_slot == (3 / 5, 2 / 5, 1 / 5, 1 / 5, 1 / 5, 1 / 5, 1 / 5)


def test_accepted_lengths_line_up_with_the_text() -> None:
    """A text made of the drafter's own drafts is accepted whole at that anchor; one changed token ends it there."""
    config = CONFIGS["minimax-m31"]
    target, model = build_target(RECIPE).eval(), random_model(config, seed=5)
    texts = torch.randint(3, RECIPE.vocab_size, (1, 40))
    features, _ = target_features(target, texts, config.target_layer_ids)
    anchors = torch.tensor([[20]])
    blocks = make_blocks(anchors, 40, config.block_size, config.windows[0])
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        texts[0, 21:28] = model.draft_greedy(model.hidden(features, texts[:, 20:21], blocks), texts[:, 20:21])[0, 0]
    assert accepted_lengths(model, target, texts, 20)[0, 0] == 7
    texts[0, 24] = (texts[0, 24] + 1) % RECIPE.vocab_size
    assert accepted_lengths(model, target, texts, 20)[0, 0] == 3


def test_pitfall_21_features_stand_before_the_final_norm_and_logits_behind_it() -> None:
    target = build_target(RECIPE).eval()
    target.model.norm.weight.data = torch.linspace(0.5, 2.0, RECIPE.hidden_size)
    tokens = torch.randint(3, RECIPE.vocab_size, (2, 12), generator=torch.Generator().manual_seed(2))
    last = RECIPE.num_layers - 1
    features, logits = target_features(target, tokens, (0, last))
    stream = features[..., RECIPE.hidden_size :]
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(target.lm_head(target.model.norm(stream)), logits)
        assert not torch.equal(target.lm_head(stream), logits)


def test_pitfall_22_anchors_have_a_context_and_a_whole_block_of_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every token of a window is supervised; an anchor needs one row before it and its block after it, inside."""
    config = CONFIGS["minimax-m31"]
    seen: list[torch.Tensor] = []

    def recorded(anchors: torch.Tensor, length: int, block: int, window: int | None) -> Blocks:
        seen.append(anchors)
        return make_blocks(anchors, length, block, window)

    monkeypatch.setattr(training, "make_blocks", recorded)
    length = config.block_size + 4
    recipe = training.DrafterRecipe(steps=6, batch=2, sequence=length, anchors=3)
    tokens = torch.randint(3, RECIPE.vocab_size, (2, length), generator=torch.Generator().manual_seed(3))
    training.train_drafter(
        build_target(RECIPE).eval(), config, lambda _: tokens, recipe, torch.device("cpu"), lambda *_: None
    )
    anchors = torch.cat([each.flatten() for each in seen])
    assert set(anchors.tolist()) == {1, 2, 3}  # 1 .. length - 1 - block: all that fit, and no other
