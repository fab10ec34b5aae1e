"""What kernels cost: counts that can be told by hand, and the time that a device needs at least."""

import numpy as np
import pytest
import torch

from radixgen.errors import KernelError
from radixgen.kernels.block_types import PackedWeight
from radixgen.kernels.triton import activation, linear, norm, packed, rope_write, sampling
from radixgen.kernels.triton.cost import DEVICES, Cost, device_named, seconds

HALF = torch.bfloat16


def test_costs_are_those_counted_by_hand() -> None:
    assert norm.cost(3, 8, HALF) == Cost((3 * 8 * 4 + 8) * 2, 3 * 8 * 5)
    assert norm.cost(3, 8, torch.float32, adds=False).bytes == (3 * 8 * 2 + 8) * 4
    assert activation.cost(3, 8, HALF).bytes == 3 * 8 * 3 * 2
    product = linear.cost(2, 5, 8, HALF)
    assert product == Cost((5 * 8 + 2 * 13) * 2, 2 * 2 * 5 * 8, on_tensor_cores=True)
    assert not linear.cost(2, 5, 8, torch.float32).on_tensor_cores
    written = rope_write.cost(1, 4, 2, 64, HALF, torch.int8)
    assert written.bytes == (8 * 64 + 4 * 64) * 2 + 2 * 2 * (64 + 4) + 2 * 64 * 4
    drawn = sampling.cost(2, 320, masked=True, filtered=False)
    assert drawn.bytes == 2 * (320 * 4 + 40)


def test_packed_weights_cost_their_bits() -> None:
    data = torch.from_numpy(np.zeros((64, 64 // 32 * 18), np.uint8))
    tiled = packed.pack_for_gpu(PackedWeight("q4_0", (64, 64), data))
    assert packed.cost(1, tiled, HALF).bytes == 64 * 64 * 4.5 / 8 + 128 * 2


@pytest.mark.parametrize("name", DEVICES)
def test_time_is_that_of_memory_or_of_arithmetic(name: str) -> None:
    device = device_named(name)
    memory = Cost(device.bytes_per_s, 0)
    products = Cost(1, 2 * device.half_flops_per_s, on_tensor_cores=True)
    sums = Cost(1, device.flops_per_s, launches=3)
    assert seconds(memory, device) == pytest.approx(1 / device.bytes_share + device.launch_s)
    assert seconds(products, device) == pytest.approx(2 / device.flops_share + device.launch_s)
    assert seconds(sums, device) == pytest.approx(1 / device.flops_share + 3 * device.launch_s)


def test_decode_is_bound_by_memory_and_prefill_by_products() -> None:
    device = device_named("H100")
    decode, prefill = (linear.cost(rows, 4096, 4096, HALF) for rows in (8, 4096))
    assert decode.bytes / device.bytes_per_s > 10 * decode.flops / device.half_flops_per_s
    assert prefill.bytes / device.bytes_per_s < prefill.flops / device.half_flops_per_s


def test_an_unknown_device_is_named_with_the_known_ones() -> None:
    with pytest.raises(KernelError, match="'Z1': use one of A100, H100, H200, MI300X"):
        device_named("Z1")
