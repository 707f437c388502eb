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
    layers of the target whose output is captured. `rotary_dim` leading dims of a head are rotated in NeoX halves.
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
