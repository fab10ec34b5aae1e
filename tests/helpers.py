"""What several test files share. Knows the package, no test."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from radixgen.model.decoder import Decoder


def tiny_decoder(
    seed: int = 0,
    *,
    dtype: "torch.dtype | None" = None,
    max_context: int | None = None,
    **overrides: Any,
) -> "Decoder":
    """A Llama-family decoder of two layers with random weights; `overrides` are config fields."""
    import torch

    from radixgen.kernels.linear import Weight
    from radixgen.model.assemble import assemble
    from radixgen.model.config import DecoderConfig, RopeConfig
    from radixgen.model.decoder import Decoder
    from radixgen.model.weights import expected_shapes

    fields: dict[str, Any] = {
        "family": "llama",
        "hidden_size": 48,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "ffn_size": 80,
        "vocab_size": 259,
        "max_context": 512,
        "rms_norm_eps": 1e-5,
        "rope": RopeConfig(),
        "tied_head": False,
        **overrides,
    }
    config = DecoderConfig(**fields)
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Weight] = {
        name: torch.randn(shape, generator=generator) * 0.3 + (1.0 if "norm" in name else 0.0)
        for name, shape in expected_shapes(config).items()
    }
    dtype = dtype or torch.float32
    return Decoder(config, assemble(config, tensors, dtype), dtype, max_context)
