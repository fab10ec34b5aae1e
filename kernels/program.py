"""Many operations as one call: recorded once with their buffers, then run with other sizes.

Owns the record. Knows tensors and the C operations, nothing of layers.

    record   norm(x, ...), linear(x, ...) ...   buffers have room for `max_rows` rows
    run      tokens=7, plan=...                 names given for sizes and pointers are filled in

Run this way the operations give the bits that they give one by one.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from radixgen.errors import KernelError
from radixgen.kernels.block_types import ACTIVATION_BITS, FORMS, Activations, PackedWeight
from radixgen.kernels.checks import require
from radixgen.kernels.kv_types import head_dim_of, page_type
from radixgen.kernels.library import ARGUMENTS, Kind, float_bits, is_half, library, num_threads
from radixgen.kernels.packed import interleave, linear_kind, padded, quantize_kind, rounded_shapes

Weight = Tensor | PackedWeight
Word = int | str  # a number, or the name of one that `run` is given


class Program:
    """A list of operations under construction, and then in use.

    All float tensors are of one dtype, float32 or bfloat16. `rows` is a name throughout; a name in
    the place of a tensor is one of an address. Tensors that are read or written must not be resized
    or moved; the program keeps them alive.
    """

    def __init__(self, max_rows: int) -> None:
        self.max_rows = max_rows
        self._operations: list[list[Word]] = []
        self._kept: list[object] = []
        self._buffers: dict[tuple[str, int, torch.dtype], Tensor] = {}
        self._words: np.ndarray | None = None
        self._places: dict[str, np.ndarray] = {}
        self._address = 0  # of the words
        self._given: dict[str, int] = {}  # what the words say now

    def buffer(
        self, name: str, columns: int, dtype: torch.dtype, rows: int | None = None
    ) -> Tensor:
        """Room for `rows` (max_rows) of `columns`; the same room whenever the name is the same."""
        key = (name, columns, dtype)
        if key not in self._buffers:
            with torch.inference_mode(False):  # so that any mode may write into it
                self._buffers[key] = torch.zeros(rows or self.max_rows, columns, dtype=dtype)
        return self._buffers[key]

    def add(self, kind: Kind, *arguments: Word | Tensor | None) -> None:
        """Record an operation; a tensor stands for its address, None for 0."""
        if self._words is not None:
            raise KernelError("a program that has run cannot be added to")
        words: list[Word] = [int(kind)]
        for argument in arguments:
            if isinstance(argument, Tensor):
                self._kept.append(argument)
                words.append(argument.data_ptr())
            else:
                words.append(argument or 0)
        self._operations.append(words)

    def norm(
        self,
        x: Tensor,
        weight: Tensor,
        eps: float,
        out: Tensor,
        rows: str,
        residual: Tensor | None = None,
        total: Tensor | None = None,
        group: int = 1,
    ) -> None:
        """out = rms_norm(x), or of total = x + residual. With `group`, each row is that many
        vectors of weight's size, normed apart, and out holds them densely."""
        size, bits = weight.shape[0], float_bits(eps)
        tail = (rows, size, is_half(x), bits, x.stride(0), group)
        self.add(Kind.NORM, x, residual, total, weight, out, *tail)

    def linear(
        self, x: Tensor, parts: Sequence[tuple[Weight, Tensor | None]], out: Tensor, rows: str
    ) -> None:
        """out's columns are those of each (weight, bias) in turn."""
        start, rounded = 0, dict[tuple[int, Activations], tuple[Tensor, ...]]()
        for weight, bias in parts:
            outputs, columns = weight.shape
            target = out[:, start : start + outputs]
            wide_bias = None if bias is None else bias.float().contiguous()
            start += outputs
            if isinstance(weight, Tensor):
                weight = weight.contiguous()
                head = (x, x.stride(0), weight, is_half(x), rows, columns, outputs)
                self.add(Kind.LINEAR_FLOAT, *head, wide_bias, target, is_half(out), out.stride(0))
                continue
            form, packed, activations = FORMS[weight.kind], interleave(weight), weight.activations
            key = form.group, activations
            if key not in rounded:
                rounded[key] = self._quantize(x, columns, form.group, activations, rows)
            code_bytes, scale_bytes = packed.codes.shape[1], packed.scales.shape[1]
            forms = (packed.codes, packed.scales, form.number, code_bytes, scale_bytes, outputs)
            size = (rows, columns, form.group)
            tail = (wide_bias, target, is_half(out), out.stride(0), ACTIVATION_BITS[activations])
            self.add(linear_kind(activations), *forms, *rounded[key], *size, *tail, packed.factors)

    def _quantize(
        self, x: Tensor, columns: int, group: int, activations: Activations, rows: str
    ) -> tuple[Tensor, ...]:
        room = padded(self.max_rows, activations)
        made = tuple(
            self.buffer(f"{name}, {activations} by {group}", width, dtype, room)
            for name, (width, dtype) in zip(
                ("codes", "scales", "sums"),
                rounded_shapes(columns, group, activations),
                strict=True,
            )
        )
        size = (x, is_half(x), x.stride(0), rows, columns, group)
        self.add(quantize_kind(activations), *size, *made, ACTIVATION_BITS[activations])
        return made

    def rope(
        self,
        x: Tensor,
        heads: int,
        cos: Tensor,
        sin: Tensor,
        positions: Tensor | str,
        out: Tensor,
        rows: str,
    ) -> None:
        """out [rows, heads * head_dim]: heads of x turned by rows `positions` of cos and sin."""
        turn = (cos, sin, rows, heads, cos.shape[1], is_half(x), positions)
        self.add(Kind.ROPE, x, x.stride(0), out, *turn)

    def kv_write(
        self, k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, slots: Tensor | str, rows: str
    ) -> None:
        """k, v [max_rows, num_kv_heads * head_dim] into the pages."""
        _, heads, page_size, _ = k_pages.shape
        sizes = (rows, heads, page_size, head_dim_of(k_pages), is_half(k), page_type(k_pages))
        self.add(Kind.KV_WRITE, k, v, k.stride(0), v.stride(0), k_pages, v_pages, slots, *sizes)

    def store_pages(
        self, plain: tuple[Tensor, Tensor], codes: tuple[Tensor, Tensor], bits: int, sources: str,
        targets: str, count: str,
    ) -> None:  # fmt: skip
        """`count` plain pages `sources`, keys and values, to pages `targets` of few bits."""
        heads, _, head_dim = plain[0].shape[1:]
        tail = (sources, targets, count, heads, head_dim, bits)
        self.add(Kind.STORE_PAGES, *plain, page_type(plain[0]), *codes, *tail)

    def attention(
        self, q: Tensor, k_pages: Tensor, v_pages: Tensor, out: Tensor, plan: str, scale: float,
        window: int | None, codes: tuple[Tensor, Tensor] | None = None, bits: int = 0,
    ) -> None:  # fmt: skip
        """`plan` names an AttentionPlan's pointer. `codes`: pages of few bits beside plain ones."""
        pages = (k_pages, v_pages, page_type(k_pages))
        scoring = (float_bits(scale), float_bits(0.0), window or 0)
        few = (*codes, codes[0].shape[0], bits) if codes else ()
        self.add(Kind.ATTENTION, plan, q, q.stride(0), is_half(q), out, *pages, *scoring, *few)

    def silu_mul(self, gate_up: Tensor, out: Tensor, rows: str) -> None:
        """out [rows, size] of gate_up [rows, 2 * size]."""
        self.add(Kind.SILU_MUL, gate_up, out, rows, out.shape[1], is_half(out))

    def gather(self, table: Tensor, ids: Tensor | str, out: Tensor, rows: str) -> None:
        """out's rows are rows `ids` (int64) of `table`."""
        self.add(Kind.GATHER, table, ids, out, rows, table.shape[1] * table.element_size())

    def embed(self, weight: Weight, ids: Tensor | str, out: Tensor, rows: str) -> None:
        """out's rows are rows `ids` (int64) of `weight`, in out's dtype; a float weight has it."""
        if isinstance(weight, Tensor):
            require(weight.dtype == out.dtype, f"rows of {weight.dtype} are not {out.dtype}")
            self.gather(weight, ids, out, rows)
            return
        form = FORMS[weight.kind].number
        data = weight.joined().contiguous()
        target = (out, rows, is_half(out), out.stride(0))
        self.add(Kind.EMBED, data, form, weight.shape[1], ids, *target)

    def run(self, values: Mapping[str, int]) -> None:
        """Run all operations, each name replaced by its value. Raises KernelError for a name
        without a value, before anything runs."""
        words = self._finish() if self._words is None else self._words
        for name, places in self._places.items():
            if name not in values:
                raise KernelError(f"the program needs a value for {name!r}")
            if values[name] != self._given.get(name):
                words[places] = self._given[name] = values[name]
        loaded = library()
        if loaded is None:
            raise KernelError("the C kernels are not loaded")
        loaded.rk_run(self._address, len(self._operations), num_threads())

    def _finish(self) -> np.ndarray:
        """The words of all operations, one after the other."""
        words = np.zeros((len(self._operations), ARGUMENTS + 1), dtype=np.int64)
        places: dict[str, list[int]] = {}
        for row, operation in enumerate(self._operations):
            for column, word in enumerate(operation):
                if isinstance(word, str):
                    places.setdefault(word, []).append(row * (ARGUMENTS + 1) + column)
                else:
                    words[row, column] = word
        self._places = {name: np.array(found) for name, found in places.items()}
        self._words = words.reshape(-1)
        self._address = self._words.ctypes.data
        return self._words
