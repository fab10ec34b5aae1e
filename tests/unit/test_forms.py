"""The form of each product's input: what a setting chooses, and that weights are assembled so."""

import pytest
import torch
from helpers import random_blocks

from radixgen.config import ActivationForm, KVDtype
from radixgen.errors import ConfigError
from radixgen.kernels.block_types import PackedWeight
from radixgen.kernels.linear import Weight
from radixgen.model.assemble import assemble
from radixgen.model.config import DecoderConfig, RopeConfig
from radixgen.model.forms import BY_VECTORS, PLACES, Forms, choose_forms, describe
from radixgen.model.load import choose_kv_dtype
from radixgen.model.weights import expected_shapes


def test_a_setting_names_the_form_of_all_places() -> None:
    for by_tiles in (False, True):
        assert choose_forms("int16", by_tiles) == dict.fromkeys(PLACES, "int16")
    int8 = choose_forms("int8", by_tiles=False)
    assert describe(int8) == "int8: qkv, output, gate_up, down, head"
    mixed: Forms = {**int8, "output": "int16"}
    assert describe(mixed) == "int8: qkv, gate_up, down, head; int16: output"


def test_auto_is_bfloat16_where_a_matrix_unit_multiplies_it() -> None:
    assert choose_forms("auto", by_tiles=True) == choose_forms("bfloat16", by_tiles=True)
    assert choose_forms("auto", by_tiles=False) == BY_VECTORS
    assert set(BY_VECTORS.values()) == {"int8", "int16"}


def test_bfloat16_is_refused_where_no_matrix_unit_multiplies_it() -> None:
    assert choose_forms("bfloat16", by_tiles=True) == dict.fromkeys(PLACES, "bfloat16")
    with pytest.raises(ConfigError, match=r"matrix unit.*'int16'"):
        choose_forms("bfloat16", by_tiles=False)


def test_pages_hold_what_is_asked_for_or_what_hidden_states_are() -> None:
    assert choose_kv_dtype("auto", torch.float32) == torch.float32
    assert choose_kv_dtype("auto", torch.bfloat16) == torch.bfloat16
    assert choose_kv_dtype("auto", torch.float32, rounds_inputs=True) == torch.float16
    assert choose_kv_dtype("auto", torch.bfloat16, rounds_inputs=True) == torch.bfloat16
    # bfloat16 where attention is faster for it, inputs lose more than that, and nothing else is
    # asked for.
    fast = {"rounds_inputs": True, "by_tiles": True}
    assert choose_kv_dtype("auto", torch.float32, **fast) == torch.bfloat16
    assert choose_kv_dtype("auto", torch.float32, by_tiles=True) == torch.float32
    assert choose_kv_dtype("float16", torch.float32, **fast) == torch.float16
    assert choose_kv_dtype("int4", torch.float32, **fast) == torch.float16
    assert choose_kv_dtype("float32", torch.float32, rounds_inputs=True) == torch.float32
    for name in ("float32", "bfloat16", "float16", "int8"):
        setting: KVDtype = name
        assert str(choose_kv_dtype(setting, torch.float32)) == f"torch.{name}"


@pytest.mark.parametrize("setting", ["auto", "int8", "int16", "bfloat16", "float32"])
@pytest.mark.parametrize("tied_head", [False, True])
def test_assembled_weights_meet_inputs_as_chosen(setting: ActivationForm, tied_head: bool) -> None:
    config = DecoderConfig(
        family="llama", hidden_size=64, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=32,
        ffn_size=96, vocab_size=40, max_context=64, rms_norm_eps=1e-5, rope=RopeConfig(),
        tied_head=tied_head,
    )  # fmt: skip
    tensors: dict[str, Weight] = {}
    for name, shape in expected_shapes(config).items():
        tensors[name] = torch.ones(shape)
        if len(shape) == 2:
            data = torch.from_numpy(random_blocks("Q4_1", *shape))
            tensors[name] = PackedWeight("q4_1", (shape[0], shape[1]), data)
    forms = choose_forms(setting, by_tiles=True)
    weights = assemble(config, tensors, torch.float32, forms)
    assert isinstance(weights.head, PackedWeight)
    assert weights.head.activations == forms["head"]
    for layer in weights.layers:
        for place, projection in (
            ("qkv", layer.qkv),
            ("output", layer.output),
            ("gate_up", layer.gate_up),
            ("down", layer.down),
        ):
            for weight, _ in projection.parts:
                assert isinstance(weight, PackedWeight)
                assert weight.activations == forms[place]  # type: ignore[index]  # a Place
