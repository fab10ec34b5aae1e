"""Rotary position tables for every scaling of a RopeConfig. Knows no layers.

Frequencies follow the papers and agree with those of transformers: linear (kaiokendev 2023),
dynamic NTK (bloc97 2023), YaRN (Peng et al. 2023) and the rule of Llama 3.1.
"""

import math

import torch
from torch import Tensor

from radixgen.model.config import RopeConfig


def rope_table(config: RopeConfig, head_dim: int, max_context: int) -> tuple[Tensor, Tensor]:
    """cos and sin, float32 [max_context, head_dim], the two halves equal.

    One table for all positions, so that a token's rotation never depends on the sequence it is in:
    the dynamic kind is scaled once for max_context, not anew as a sequence grows.
    """
    frequencies = _frequencies(config, head_dim, max_context)
    if config.divisors:
        frequencies = frequencies / torch.tensor(config.divisors, dtype=torch.float32)
    # The angle is a float32 product because models were trained with that rounding.
    angles = torch.arange(max_context, dtype=torch.float32)[:, None] * frequencies
    wide = torch.cat((angles, angles), dim=-1).double()
    scale = _attention_factor(config) if config.kind == "yarn" else 1.0
    return (wide.cos() * scale).float(), (wide.sin() * scale).float()


def _frequencies(config: RopeConfig, head_dim: int, max_context: int) -> Tensor:
    """Radians a position, float32 [head_dim / 2]."""
    if config.kind == "dynamic":
        stretch = max(max_context / config.original_max_context, 1.0)
        growth = config.factor * stretch - (config.factor - 1)
        return _plain(config.theta * growth ** (head_dim / (head_dim - 2)), head_dim)
    plain = _plain(config.theta, head_dim)
    if config.kind == "linear":
        return plain / config.factor
    if config.kind == "llama3":
        return _llama3(config, plain)
    if config.kind == "yarn":
        return _yarn(config, plain, head_dim)
    return plain


def _plain(theta: float, head_dim: int) -> Tensor:
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    return torch.reciprocal(theta**exponents)


def _llama3(config: RopeConfig, plain: Tensor) -> Tensor:
    """Long waves are slowed by `factor`, short ones kept, those between blended."""
    turns = config.original_max_context * plain / (2 * math.pi)
    low, high = config.low_freq_factor, config.high_freq_factor
    blend = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - blend) * plain / config.factor + blend * plain


def _yarn(config: RopeConfig, plain: Tensor, head_dim: int) -> Tensor:
    """NTK by parts: dimensions that turn often are kept, slow ones interpolated by `factor`."""

    def dimension(turns: float) -> float:
        """The dimension that makes that many turns over the original context."""
        wavelength = config.original_max_context / (turns * 2 * math.pi)
        return head_dim * math.log(wavelength) / (2 * math.log(config.theta))

    low, high = dimension(config.beta_fast), dimension(config.beta_slow)
    if config.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    steps = torch.arange(head_dim // 2, dtype=torch.float32) - low
    slow = (steps / max(high - low, 0.001)).clamp(0, 1)
    return plain / config.factor * slow + plain * (1 - slow)


def _attention_factor(config: RopeConfig) -> float:
    """YaRN's temperature of attention, folded into cos and sin."""
    if config.attention_factor is not None:
        return config.attention_factor
    if config.mscale and config.mscale_all_dim:
        return _mscale(config.factor, config.mscale) / _mscale(config.factor, config.mscale_all_dim)
    return _mscale(config.factor, 1.0)


def _mscale(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0
