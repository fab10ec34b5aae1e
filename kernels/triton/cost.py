"""What a kernel moves and computes at least, and how long a GPU takes for that: a roofline.

    seconds = the longer of  bytes / (bandwidth * share)  and  flops / (rate * share), + a launch

(S. Williams, A. Waterman and D. Patterson, 2009.) The figures of the devices are those of their
public specifications, dense; shares are what well-made kernels reach of them. Each kernel's file
says what it costs (`cost`). Knows no kernels, no models.
"""

from dataclasses import dataclass

from radixgen.errors import KernelError


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes read from and written to memory, and floating-point operations (a product and its sum
    are two). `on_tensor_cores`: whether the operations are those of matrix products."""

    bytes: float
    flops: float
    on_tensor_cores: bool = False
    launches: int = 1


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU's rates a second. `flops_per_s`: of float32 outside tensor cores."""

    name: str
    bytes_per_s: float
    half_flops_per_s: float  # products of bfloat16 or float16, dense
    flops_per_s: float
    memory_bytes: float
    bytes_share: float = 0.85
    flops_share: float = 0.65
    launch_s: float = 2e-6  # between two kernels of a graph


DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        Device("A100", 2.039e12, 312e12, 19.5e12, 80e9),  # SXM, 80 GB
        Device("H100", 3.35e12, 989e12, 67e12, 80e9),  # SXM
        Device("H200", 4.8e12, 989e12, 67e12, 141e9),  # SXM
        Device("MI300X", 5.3e12, 1307e12, 163.4e12, 192e9),
    )
}


def device_named(name: str) -> Device:
    """One of DEVICES by its name. Raises KernelError naming them."""
    if name not in DEVICES:
        raise KernelError(f"no figures of a GPU named {name!r}: use one of {', '.join(DEVICES)}")
    return DEVICES[name]


def seconds(cost: Cost, device: Device) -> float:
    """How long `device` takes for what was counted."""
    rate = device.half_flops_per_s if cost.on_tensor_cores else device.flops_per_s
    memory = cost.bytes / (device.bytes_per_s * device.bytes_share)
    arithmetic = cost.flops / (rate * device.flops_share)
    return max(memory, arithmetic) + cost.launches * device.launch_s
