"""What a drafter is: the one immutable description that every room reads."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Family(StrEnum):
    """Drafter families that we support; each has its own `config.json` dialect and tensor names."""

    MINIMAX_M31 = "minimax-m31"
    QWEN3 = "qwen3"
    MINICPM5 = "minicpm5"
    GEMMA4 = "gemma4"


class Norm(StrEnum):
    """`RMS`: x_hat * w. `GEMMA`: x_hat * (1 + w), the sum formed in float32."""

    RMS = "rms"
    GEMMA = "gemma"


class Activation(StrEnum):
    """Gate of the FFN: silu(g) * u, SwiGLU-OAI (clamped, alpha, beta), or gelu_tanh(g) * u."""

    SILU = "silu"
    SWIGLU_OAI = "swiglu-oai"
    GELU_TANH = "gelu-tanh"


class MarkovKind(StrEnum):
    """How the serial head turns the previous token into a logit bias."""

    VANILLA = "vanilla"
    GATED = "gated"
    RNN = "rnn"


class Rotary(StrEnum):
    """Which dims of a head RoPE turns, R = `rotary_dim`, D = `head_dim`, pair i < R / 2.

    `LEADING`: dims (i, i + R / 2) by position * theta ** (-2 i / R); the D - R trailing dims pass through.
    `PROPORTIONAL` (Gemma4): dims (i, i + D / 2) by position * theta ** (-2 i / D); the other dims pass through.
    The two agree where R = D.
    """

    LEADING = "leading"
    PROPORTIONAL = "proportional"


@dataclass(frozen=True)
class SwigluOai:
    """min(g, limit) * sigmoid(alpha * min(g, limit)) * (clamp(u, -limit, limit) + beta)."""

    alpha: float = 1.702
    limit: float = 7.0
    beta: float = 1.0


@dataclass(frozen=True)
class DraftConfig:
    """A DSpark drafter, read from its `config.json` by `read_config`.

    Sizes are counts of elements; `windows[i]` is the sliding window of layer i in tokens (a row at position q sees
    keys with |q - key| < window, both ways) or None for full attention. `target_layer_ids` are zero-based decoder
    layers of the target whose output is captured (-1: the embedding output). `rotary` says which `rotary_dim` dims of
    a head are rotated. `ships_embeddings`: the drafter has its own embedding and LM head, else they are the target's.

    The fields with defaults are what Gemma4 adds to a Qwen3 layer; the defaults are every other family.
    `embed_scale`: factor on embedding rows, itself rounded to the table's dtype before the product.
    `attention_scale`: factor on q.k scores; None is head_dim ** -0.5 (read it through `score_scale`).
    `logit_softcap` c: base logits become c * tanh(logits / c), before the Markov bias is added.
    `value_norm`: v is RMS-normalised per head without a weight. `shared_kv_projection`: v is the k projection's output
    (before k's norm and RoPE); `LayerWeights.v` is then the same object as `.k`.
    `sandwich_norms`: attention and FFN outputs are normalised before they join the residual
    (`LayerWeights.attention_output_norm`, `.ffn_output_norm`). `layer_scalars`: the layer's result, residual
    included, is multiplied by `LayerWeights.layer_scalar`.
    `num_target_layers`: decoder layers of the target where the config says it.
    """

    family: Family
    architecture: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    vocab_size: int
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    rms_norm_eps: float
    norm: Norm
    activation: Activation
    swiglu: SwigluOai | None
    rope_theta: float
    rotary_dim: int
    max_positions: int
    windows: tuple[int | None, ...]
    markov: MarkovKind
    markov_rank: int
    has_confidence: bool
    confidence_with_markov: bool
    mxfp8_linears: bool
    ships_embeddings: bool
    rotary: Rotary = Rotary.LEADING
    embed_scale: float = 1.0
    attention_scale: float | None = None
    logit_softcap: float | None = None
    value_norm: bool = False
    shared_kv_projection: bool = False
    sandwich_norms: bool = False
    layer_scalars: bool = False
    num_target_layers: int | None = None

    @property
    def score_scale(self) -> float:
        """Factor on q.k scores before the softmax."""
        return self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale

    @property
    def feature_size(self) -> int:
        """Width of one row of target features: captured layers times hidden size."""
        return len(self.target_layer_ids) * self.hidden_size

    @property
    def q_size(self) -> int:
        """Columns of the query projection."""
        return self.num_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Columns of the key (or value) projection."""
        return self.num_kv_heads * self.head_dim
