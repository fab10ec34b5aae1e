"""Triton's compiled kernels: where they are kept, and what a start compiled or found there.

Triton keeps a binary by a hash of its source, constants, options, GPU and own version, in files
that are replaced atomically: beside our C kernels, unless TRITON_CACHE_DIR says where. So starts at
once may share them, and all but the first load them. Tiles are chosen by size and never by trying
(autotuning), as they would decide in which order sums are taken; so nothing else is kept.

torch.compile has no place here: the operations of torch left in a step are a copy, an embedding of
floats and, where asked for, a log-softmax, each of them one kernel already, and what surrounds
ours could not be fused into them. Knows kernels by number alone.
"""

from types import TracebackType
from typing import Any, Self

from radixgen import env


class Compilations:
    """Counts, while it is open, kernels that were compiled and those found on disk."""

    def __init__(self) -> None:
        self.num_compiled = self.num_found = 0
        self.seconds = 0.0  # of compiling
        self.folder = ""

    def __enter__(self) -> Self:
        from triton import knobs

        if not env.is_set("TRITON_CACHE_DIR"):
            knobs.cache.dir = str(env.cache_folder() / "triton")
        self.folder = str(knobs.cache.dir)
        knobs.compilation.listener = self._note
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        from triton import knobs

        knobs.compilation.listener = None

    def _note(self, *, times: Any, cache_hit: bool, **_: Any) -> None:
        if cache_hit:
            self.num_found += 1
        else:
            self.num_compiled += 1
            self.seconds += times.total * 1e-6

    def __str__(self) -> str:
        return (
            f"{self.num_compiled} kernels compiled in {self.seconds:.0f} s, {self.num_found} found "
            f"in {self.folder}"
        )
