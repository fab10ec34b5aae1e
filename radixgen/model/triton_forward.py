"""A decoder's forward pass as launches of Triton's kernels: what fused.py is for C.

    StepInputs ─▶ items of its page tables ─▶ one copy to the device ─▶ launches ─▶ hidden, logits

Each launch reads tensors of the device whose places and sizes follow from a step's `shape`, so that
launches of one shape may be recorded once and repeated (recordings.py). Where ranks share a model,
each launches its part and exchanges between launches. Knows layers, no requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from radixgen.batch import PageCopy
from radixgen.kernels.kv_types import FP8
from radixgen.kernels.triton.attention import DeviceItems, paged_attention
from radixgen.kernels.triton.attention_arrays import make_items
from radixgen.kernels.triton.attention_items import Items, Tables
from radixgen.kernels.triton.kivi import DeviceKiviItems, kivi_attention, store_pages
from radixgen.kernels.triton.kivi_items import make_kivi_items
from radixgen.kernels.triton.lora import Segments, lora_, make_segments
from radixgen.kernels.triton.page_copy import addresses_of, copy_pages
from radixgen.model import triton_ops as ops
from radixgen.model.attention import AttentionMetadata, Fed, PlainPages, StepInputs, copy_columns
from radixgen.model.forms import Place
from radixgen.model.kv_cache import KVCache
from radixgen.model.padding import (
    idle_inputs,
    pad_items,
    pad_kivi_items,
    pad_rows,
    size_for,
    sizes_to,
)
from radixgen.model.recordings import Recorder, Recordings
from radixgen.model.staging import Staging
from radixgen.model.triton_weights import LaunchLayer, LaunchWeights, Parts

if TYPE_CHECKING:
    from radixgen.model.decoder import Decoder

TILE_ROWS = 64
"""Rows (queries times the heads of a group) of every attention tile, in decode and prefill alike:
products of one shape add in one order, so that a token's numbers do not tell how it was computed.
Decode is bound by reading keys, which a tile that is mostly empty does not slow."""

MAX_RECORDED = 256
"""Tokens of a step that is recorded: beyond, launching takes less time than computing."""

_ITEM_ARRAYS = ("items", "rows", "pages", "positions", "merge_indptr", "merge_slots")
Numbers = NDArray[np.int32] | NDArray[np.int64]
Work = DeviceItems | DeviceKiviItems


@dataclass(frozen=True, slots=True, eq=False)
class HostStep:
    """A step's numbers on the host, in the order in which `DeviceStep` takes them."""

    arrays: Sequence[Numbers]
    windows: Sequence[int | None]  # of the layers but the last, each once
    last_apart: bool  # whether the last layer has items of its own
    has_outputs: bool  # whether only some tokens are outputs
    adapts: bool  # whether some tokens are an adapter's
    num_coarse: Sequence[int] = ()  # of each items, those over pages of few bits, where there are

    @property
    def shape(self) -> tuple[object, ...]:
        """Steps of one shape are the same launches on the same places."""
        sizes = tuple(array.shape for array in self.arrays)
        return sizes, self.last_apart, self.has_outputs, self.adapts, tuple(self.num_coarse)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceStep:
    """What the launches of a step read."""

    token_ids: Tensor  # int64 [tokens]
    positions: Tensor  # int64 [tokens]
    slots: Tensor  # int64 [tokens]
    work: dict[int | None, Work]  # by a layer's window
    outputs: Tensor | None  # int64 [outputs]; None: every token
    last_work: Work
    lora: Segments | None  # the tokens of adapters
    last_lora: Segments | None  # their outputs
    stored: tuple[Tensor, Tensor] | None  # sources and targets of pages of few bits


class TritonForward:
    """The forward pass of one decoder over one cache."""

    def __init__(
        self,
        decoder: "Decoder",
        weights: LaunchWeights,
        cache: KVCache,
        cos: Tensor,
        sin: Tensor,
        recorder: Recorder | None = None,
    ) -> None:
        self._decoder, self._weights, self.cache = decoder, weights, cache
        self._peers = decoder.peers
        self._cos, self._sin = cos, sin
        c = decoder.config
        self._windows = [layer.window for layer in decoder.weights.layers]
        self._max_rows = max(1, TILE_ROWS // (c.num_heads // c.num_kv_heads))
        self._page_size, self._form = cache.layout.page_size, cache.layout.form
        self._staging, self._copies, self._places = (Staging(cache.device) for _ in range(3))
        self._adapters = {name: index for index, name in enumerate(decoder.adapters)}
        self._pages = (*cache.k_pages, *cache.v_pages)
        ones = torch.ones(cache.layout.num_kv_heads, device=cache.device)  # written as they are
        self._scales = ones if cache.layout.dtype == FP8 else None
        self._addresses = addresses_of(self._pages)
        self.recordings = None if recorder is None else Recordings(recorder)
        self._logits: Tensor | None = None  # of recorded steps, which all write them here
        if recorder is not None:
            with torch.inference_mode(False):
                shape = MAX_RECORDED, decoder.config.vocab_size
                self._logits = torch.empty(shape, dtype=torch.float32, device=cache.device)

    def __call__(self, inputs: StepInputs, want_logits: bool) -> tuple[Tensor, Tensor | None]:
        """Write the KV of every token; the normed hidden states [outputs, hidden].

        With `want_logits` also the logits [outputs, vocab], float32. The next call may write both
        anew.
        """
        if self.recordings is not None and want_logits and _is_small(inputs):
            return self._repeat(self.recordings, inputs)
        host = self.prepare(inputs)
        sent = self._staging.send(host.arrays)
        self._feed(sent, inputs.fed)
        return self.launch(self.receive(host, sent), want_logits)

    def _repeat(self, recordings: Recordings, inputs: StepInputs) -> tuple[Tensor, Tensor | None]:
        """A step of few tokens, all drawn from, padded to a size that is recorded."""
        tokens = len(inputs.token_ids)
        host = self.prepare(pad_rows(inputs, size_for(tokens)), padded=True)
        hidden, logits = recordings.run(
            host.shape,
            host.arrays,
            lambda sent: self.launch(self.receive(host, sent), True, self._logits),
            lambda sent: self._feed(sent, inputs.fed),
        )
        return hidden[:tokens], None if logits is None else logits[:tokens]

    def _feed(self, sent: Sequence[Tensor], fed: Fed | None) -> None:
        """Put tokens that only the device knows among those sent."""
        if fed is not None:
            places, sources = self._places.send([fed.places.numpy(), fed.sources.numpy()])
            drawn = fed.drawn.index_select(0, sources)
            if self._peers is not None:
                drawn = self._peers.drawn(drawn)
            sent[0].index_copy_(0, places, drawn)

    def copy(self, copies: Sequence[PageCopy]) -> None:
        """Do a step's page copies, none of whose targets is a source, before its forward pass."""
        if copies:
            columns = self._copies.send(copy_columns(copies, self.cache.layout))
            copy_pages(self._pages, self._addresses, *columns)

    def warm_up(self, most: int = MAX_RECORDED) -> None:
        """Compile what decoding needs and record its sizes up to `most` rows, before any request.

        Contexts that are split further are recorded when they come.
        """
        for size in sizes_to(min(most, MAX_RECORDED)):
            for _ in range(2):
                self(idle_inputs(size, few_bits=self._form is not None), want_logits=True)

    # ---- numbers ----

    def prepare(self, inputs: StepInputs, padded: bool = False) -> HostStep:
        """Cut the step's attention into items; all its numbers, to be sent.

        `padded`: in arrays of few sizes.
        """
        windows = list(dict.fromkeys(self._windows[:-1]))
        arrays: list[Numbers] = [t.numpy() for t in (inputs.token_ids, inputs.positions)]
        arrays.append(inputs.slots.numpy())
        num_coarse: list[int] = []

        def add(meta: AttentionMetadata, window: int | None) -> None:
            made, coarse = self._items(meta, inputs.plain, window, padded)
            arrays.extend(made)
            num_coarse.extend(coarse)

        for window in windows:
            add(inputs.attention, window)
        last = self._windows[-1]
        apart = inputs.outputs is not None or last not in windows
        if apart:
            add(inputs.output_attention, last)
        if inputs.plain is not None:
            arrays += [inputs.plain.sources.numpy(), inputs.plain.targets.numpy()]
        if inputs.outputs is not None:
            arrays.append(inputs.outputs.numpy())
        if inputs.adapters:
            arrays += self._segments(inputs, len(inputs.token_ids), padded, outputs=False)
            if inputs.outputs is not None:
                arrays += self._segments(inputs, len(inputs.outputs), padded, outputs=True)
        some, adapts = inputs.outputs is not None, bool(inputs.adapters)
        return HostStep(arrays, windows, apart, some, adapts, num_coarse)

    def _segments(
        self, inputs: StepInputs, rows: int, padded: bool, outputs: bool
    ) -> list[Numbers]:
        """Runs of rows of each adapter, of all tokens or of the outputs."""
        chosen = np.full(rows, -1, np.int32)
        for each in inputs.adapters:
            at = each.outputs if outputs else each.tokens
            chosen[at.numpy()] = self._adapters[each.name]
        numbers = chosen.tolist()
        segments, places = make_segments(numbers)
        if padded:
            segments, _ = make_segments(numbers, size_for(len(segments)))
            places = np.concatenate([places, np.zeros(rows - len(places), np.int32)])
        return [segments, places]

    def _items(
        self, meta: AttentionMetadata, plain: PlainPages | None, window: int | None, padded: bool
    ) -> tuple[list[Numbers], list[int]]:
        """The arrays of items and, where pages are of few bits, how many are over those."""
        tables = Tables(
            meta.qo_indptr.numpy(),
            meta.kv_indptr.numpy(),
            meta.kv_indices.numpy(),
            meta.kv_last_page_len.numpy(),
        )
        if self._form is not None and plain is not None:
            indices = plain.indices.numpy()
            few = make_kivi_items(tables, indices, self._form, self._max_rows, window)
            few = pad_kivi_items(few) if padded else few
            return [*_arrays(few.work), few.recent], [few.num_coarse]
        made = make_items(tables, self._page_size, self._max_rows, window)
        return _arrays(pad_items(made, self._page_size) if padded else made), []

    def receive(self, host: HostStep, sent: Sequence[Tensor]) -> DeviceStep:
        """The arrays of `host`, sent, under their names."""
        left, num_coarse = iter(sent), iter(host.num_coarse)
        token_ids, positions, slots = next(left), next(left), next(left)

        def items() -> Work:
            table = next(left).view(-1, 5)
            made = DeviceItems(self._max_rows, table, *(next(left) for _ in _ITEM_ARRAYS[1:]))
            return DeviceKiviItems(made, next(num_coarse), next(left)) if self._form else made

        work = {window: items() for window in host.windows}
        last_work = items() if host.last_apart else work[self._windows[-1]]
        stored = (next(left), next(left)) if self._form else None
        outputs = next(left) if host.has_outputs else None
        lora = last_lora = None
        if host.adapts:
            lora = last_lora = Segments(next(left).view(-1, 3), next(left))
            if host.has_outputs:
                last_lora = Segments(next(left).view(-1, 3), next(left))
        columns = token_ids, positions, slots
        return DeviceStep(*columns, work, outputs, last_work, lora, last_lora, stored)

    # ---- launches ----

    def launch(
        self, step: DeviceStep, want_logits: bool, out: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The forward pass itself: launches in order, nothing that waits or looks at results.

        out [any, vocab] float32: where the logits go; None: a tensor of their own.
        """
        decoder, w = self._decoder, self._weights
        eps = decoder.config.rms_norm_eps
        residual = self._embed(step.token_ids)
        x = ops.rms_norm(residual, w.layers[0].own.input_norm, eps)
        next_norms = [layer.own.input_norm for layer in w.layers[1:]] + [w.final_norm]
        lora = step.lora
        for i, (layer, next_norm) in enumerate(zip(w.layers, next_norms, strict=True)):
            queries = self._queries(layer, i, x, step)
            self._store(i, step)
            is_last = i == len(w.layers) - 1
            if is_last and step.outputs is not None:  # nothing after it reads the other tokens
                queries, residual = queries[step.outputs], residual[step.outputs]
                lora = step.last_lora
            if not len(queries):
                return residual, None
            work = step.last_work if is_last else step.work[layer.own.window]
            attended = self._attend(layer, i, queries, work)
            mixed = self._map(layer, "output", attended, lora)
            x, residual = ops.add_rms_norm(mixed, residual, layer.own.ffn_norm, eps)
            gated = ops.silu_mul(self._map(layer, "gate_up", x, lora))
            x = self._map(layer, "down", gated, lora)
            x, residual = ops.add_rms_norm(x, residual, next_norm, eps)
        if not want_logits:
            return x, None
        return x, self.logits(x) if out is None else out[: len(x)].copy_(self._head(x))

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [rows, hidden] -> logits [rows, vocab], float32."""
        return self._head(hidden).float()

    def _head(self, hidden: Tensor) -> Tensor:
        own = ops.linear(hidden, self._weights.head)
        return own if self._peers is None else self._peers.gather(own, "vocab")

    def _embed(self, token_ids: Tensor) -> Tensor:
        """[tokens] -> [tokens, hidden]."""
        embedding, dtype = self._weights.embedding, self._decoder.dtype
        if self._peers is None:
            return ops.embed(embedding, token_ids, dtype)
        own = ops.embed(embedding, self._peers.known(token_ids), dtype)
        return self._peers.pick(own, token_ids)

    def _map(self, layer: LaunchLayer, place: Place, x: Tensor, work: Segments | None) -> Tensor:
        """A projection of x [rows, in] -> [rows, out], with what adapters add to their rows."""
        if self._peers is not None:
            x = self._peers.before(place, x)
        projection: Parts = getattr(layer, place)
        parts = [ops.linear(x, weight, bias) for weight, bias in projection]
        y = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        lora = layer.lora.get(place)
        y = y if work is None or lora is None else lora_(y, x, lora, work)
        return y if self._peers is None else self._peers.after(place, y)

    def _queries(self, layer: LaunchLayer, index: int, x: Tensor, step: DeviceStep) -> Tensor:
        """Keys and values of x go to their pages; the queries [tokens, num_heads, head_dim]."""
        c = self._decoder.config
        return ops.rope_write(
            self._map(layer, "qkv", x, step.lora),
            self._cos,
            self._sin,
            step.positions,
            step.slots,
            self.cache.k_pages[index],
            self.cache.v_pages[index],
            c.num_heads,
            layer.own.q_norm,
            layer.own.k_norm,
            c.rms_norm_eps,
        )

    def _store(self, index: int, step: DeviceStep) -> None:
        """Pages that are full now, in few bits."""
        if self._form is not None and step.stored is not None:
            cache = self.cache
            plain = cache.k_pages[index], cache.v_pages[index]
            codes = cache.k_codes[index], cache.v_codes[index]
            store_pages(*plain, *codes, *step.stored, self._form.bits)

    def _attend(self, layer: LaunchLayer, index: int, queries: Tensor, work: Work) -> Tensor:
        scale, window = self._decoder.config.head_dim**-0.5, layer.own.window
        pages = self.cache.k_pages[index], self.cache.v_pages[index]
        if isinstance(work, DeviceItems):
            mixed = paged_attention(
                queries,
                *pages,
                work,
                scale=scale,
                window=window,
                k_scales=self._scales,
                v_scales=self._scales,
            )
        else:
            assert self._form is not None
            codes = self.cache.k_codes[index], self.cache.v_codes[index]
            mixed = kivi_attention(
                queries, codes, pages, self._form, work, scale=scale, window=window
            )
        return mixed.view(len(queries), -1)


def _arrays(items: Items) -> list[Numbers]:
    return [getattr(items, name) for name in _ITEM_ARRAYS]


def _is_small(inputs: StepInputs) -> bool:
    """Whether the step may be padded and recorded: few tokens, all of them outputs."""
    return inputs.outputs is None and 0 < len(inputs.token_ids) <= MAX_RECORDED
