"""What an operation asks of its tensors, as one-line checks. Knows tensors, not what they mean."""

from torch import Tensor

from radixgen.errors import KernelError


def require(condition: bool, message: str) -> None:
    """Raise KernelError(message) unless `condition` holds."""
    if not condition:
        raise KernelError(message)


def shaped(name: str, tensor: Tensor, *shape: int | None) -> None:
    """`tensor` has these sizes; None stands for any. Raises KernelError naming both shapes."""
    matches = tensor.dim() == len(shape) and all(
        want is None or have == want for have, want in zip(tensor.shape, shape, strict=True)
    )
    if not matches:
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise KernelError(f"{name} has shape {list(tensor.shape)}, expected [{wanted}]")
