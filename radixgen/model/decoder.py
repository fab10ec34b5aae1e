"""The forward pass of Llama-family decoders over KV pages. Knows no requests and no sampling.

    ─┬─ norm ─ qkv ─ (q, k norm) ─ rope ─ write KV ─ paged attention ─ o ─ + ─┬─ norm ─ ffn ─ + ─
     └────────────────────────────────────────────────────────────────────────┘└──────────────┘

Each operation computes a row by itself, so tokens may be cut into steps in any way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from radixgen.batch import PageCopy
from radixgen.kernels.activation import silu_mul
from radixgen.kernels.attention import paged_attention
from radixgen.kernels.kivi import Tables, kivi_attention, store_pages
from radixgen.kernels.kv_write import write_kv
from radixgen.kernels.library import library
from radixgen.kernels.linear import Weight, linear
from radixgen.kernels.norm import add_rms_norm, rms_norm
from radixgen.kernels.rope import apply_rope
from radixgen.model.adapters import Adapter, adapt
from radixgen.model.attention import StepInputs, StepLists, copy_pages, tables_over
from radixgen.model.config import DecoderConfig
from radixgen.model.forms import Place
from radixgen.model.fused import FusedForward, fits
from radixgen.model.kv_cache import MAX_PLAIN, KVCache, KVLayout, form_of
from radixgen.model.layers import Projection, embed
from radixgen.model.peers import Peers
from radixgen.model.rope import rope_table

if TYPE_CHECKING:
    from radixgen.model.recordings import Recorder
    from radixgen.model.triton_forward import TritonForward
    from radixgen.model.triton_weights import LaunchWeights


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """Weights of one layer; norms and biases are in the compute dtype."""

    input_norm: Tensor  # [hidden]
    qkv: Projection  # hidden -> (num_heads + 2 * num_kv_heads) * head_dim
    q_norm: Tensor | None  # [head_dim]
    k_norm: Tensor | None
    output: Projection  # num_heads * head_dim -> hidden
    ffn_norm: Tensor  # [hidden]
    gate_up: Projection  # hidden -> 2 * ffn
    down: Projection  # ffn -> hidden
    window: int | None  # tokens that a query sees, itself included


@dataclass(frozen=True, slots=True, eq=False)
class DecoderWeights:
    """All weights of a model in the form it runs in."""

    embedding: Weight  # [vocab, hidden]
    layers: tuple[Layer, ...]
    final_norm: Tensor  # [hidden]
    head: Weight  # [vocab, hidden], the embedding itself when tied


class Decoder:
    """A model ready to run, its hidden states in `dtype`.

    `max_context`: positions it can be asked for, in tokens; the model's own when None. `adapters`:
    those that rows of a step may name. `kernels`: "triton" runs steps as launches of Triton's, on
    whatever device the weights are; with a `recorder` it repeats launches of small steps. `peers`:
    the ranks that hold the other parts of the model; config and weights are this rank's then, and
    each rank computes every step.
    """

    def __init__(
        self,
        config: DecoderConfig,
        weights: DecoderWeights,
        dtype: torch.dtype = torch.float32,
        max_context: int | None = None,
        adapters: Mapping[str, Adapter] | None = None,
        kernels: Literal["c", "triton"] = "c",
        peers: Peers | None = None,
        recorder: "Recorder | None" = None,
    ) -> None:
        self.config = config
        self.weights = weights
        self.dtype = dtype
        self.kernels: Literal["c", "triton"] = kernels
        self.recorder = recorder
        self.adapters = dict(adapters or {})
        self.peers = peers
        self.device = weights.final_norm.device
        self.max_context = max_context or config.max_context
        cos, sin = rope_table(config.rope, config.head_dim, self.max_context)
        self._cos, self._sin = cos.to(self.device), sin.to(self.device)
        self._scale = config.head_dim**-0.5
        self._fused: FusedForward | None = None
        self._launched: TritonForward | None = None
        self._tiled: LaunchWeights | None = None

    def kv_layout(
        self,
        page_size: int,
        dtype: torch.dtype | None = None,
        bits: int | None = None,
        max_plain: int = MAX_PLAIN,
    ) -> KVLayout:
        """The form of this model's KV pages; `dtype` None is the compute dtype.

        `bits`: pages are of so few, and `dtype` is that of at most `max_plain` plain ones.
        """
        c = self.config
        sizes = c.num_layers, c.num_kv_heads, c.head_dim, page_size
        form = None if bits is None else form_of(bits, page_size)
        return KVLayout(*sizes, dtype or self.dtype, form, max_plain)

    def forward(self, inputs: StepInputs, cache: KVCache) -> Tensor:
        """Write the KV of every token and return the normed hidden states [outputs, hidden]."""
        return self.step(inputs, cache, want_logits=False)[0]

    def step(
        self, inputs: StepInputs, cache: KVCache, want_logits: bool
    ) -> tuple[Tensor, Tensor | None]:
        """`forward`, and where it costs one call less the logits [outputs, vocab] of all outputs.

        With logits, the next step may write both anew.
        """
        if self.kernels == "triton":
            return self.launched_over(cache)(inputs, want_logits)
        fused = None if inputs.adapters else self._fused_over(cache)
        if fused is not None:
            return fused(inputs, want_logits)
        return self._forward_apart(inputs, cache), None

    def step_of_lists(
        self, lists: StepLists, cache: KVCache, want_logits: bool
    ) -> tuple[Tensor, Tensor | None] | None:
        """`step` without adapters, of its bare numbers; None, and nothing is done, where this model
        or cache takes tensors alone."""
        fused = self._fused_over(cache) if self.kernels == "c" else None
        if fused is None or not fused.takes_lists:
            return None
        return fused.run_lists(lists, want_logits)

    def _forward_apart(self, inputs: StepInputs, cache: KVCache) -> Tensor:
        """`forward`, one operation after the other."""
        w = self.weights
        residual = self._embed(inputs.token_ids)
        cos, sin = self._cos[inputs.positions], self._sin[inputs.positions]
        x = rms_norm(residual, w.layers[0].input_norm, self.config.rms_norm_eps)
        next_norms = [layer.input_norm for layer in w.layers[1:]] + [w.final_norm]
        attention, outputs = tables_over(inputs.attention, inputs.plain, cache), None
        chosen = [(self.adapters[each.name], each.tokens) for each in inputs.adapters]
        for i, (layer, next_norm) in enumerate(zip(w.layers, next_norms, strict=True)):
            if i == len(w.layers) - 1:  # nothing after it reads the other tokens
                attention = tables_over(inputs.output_attention, inputs.plain, cache)
                outputs = inputs.outputs
            q, k, v = self._project(layer, self._map(layer.qkv, x, i, "qkv", chosen), cos, sin)
            write_kv(k, v, cache.k_pages[i], cache.v_pages[i], inputs.slots)
            self._store(i, cache, inputs)
            if outputs is not None:
                q, residual = q[outputs], residual[outputs]
                chosen = [(self.adapters[each.name], each.outputs) for each in inputs.adapters]
            if not len(q):
                return residual
            attended = self._attend(layer, i, q, cache, attention)
            mixed = self._map(layer.output, attended, i, "output", chosen)
            x, residual = self._add_norm(mixed, residual, layer.ffn_norm)
            gated = silu_mul(self._map(layer.gate_up, x, i, "gate_up", chosen))
            x = self._map(layer.down, gated, i, "down", chosen)
            x, residual = self._add_norm(x, residual, next_norm)
        return x

    def _fused_over(self, cache: KVCache) -> FusedForward | None:
        """The forward pass as one call, where the C operations take this model and cache."""
        if self._fused is not None and self._fused.cache is cache and library() is not None:
            return self._fused
        if not fits(self, cache):
            return None
        if self._fused is None or self._fused.cache is not cache:
            self._fused = FusedForward(self, cache, self._cos, self._sin)
        return self._fused

    def launched_over(self, cache: KVCache) -> "TritonForward":
        """The forward pass as launches; Triton is loaded here and not before."""
        if self._launched is None or self._launched.cache is not cache:
            from radixgen.model.triton_forward import TritonForward
            from radixgen.model.triton_weights import launch_weights

            split = None if self.peers is None else self.peers.split
            adapters = list(self.adapters.values())
            self._tiled = self._tiled or launch_weights(
                self.weights, self.config, adapters, self.dtype, split
            )
            tables = self._cos, self._sin
            self._launched = TritonForward(self, self._tiled, cache, *tables, self.recorder)
        return self._launched

    def copy(self, copies: Sequence[PageCopy], cache: KVCache) -> None:
        """Do a step's page copies, before it."""
        if self.kernels == "triton":
            self.launched_over(cache).copy(copies)
        else:
            copy_pages(copies, cache)

    def logits(self, hidden: Tensor) -> Tensor:
        """hidden [rows, hidden] from `forward` -> logits [rows, vocab], float32."""
        if self._launched is not None:
            return self._launched.logits(hidden)
        own = linear(hidden, self.weights.head).float()
        return own if self.peers is None else self.peers.gather(own, "vocab")

    def _embed(self, token_ids: Tensor) -> Tensor:
        """[tokens] -> [tokens, hidden]."""
        embedding = self.weights.embedding
        if self.peers is None:
            return embed(embedding, token_ids, self.dtype)
        known = self.peers.known(token_ids)
        return self.peers.pick(embed(embedding, known, self.dtype), token_ids)

    def _map(
        self,
        projection: Projection,
        x: Tensor,
        layer: int,
        place: Place,
        chosen: Sequence[tuple[Adapter, Tensor]],
    ) -> Tensor:
        """x [rows, in] -> [rows, out], with what adapters add to their rows."""
        if self.peers is not None:
            x = self.peers.before(place, x)
        y = projection(x)
        if chosen:
            adapt(y, x, layer, place, chosen)
        return y if self.peers is None else self.peers.after(place, y)

    def _project(
        self, layer: Layer, joined: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The outputs of `layer.qkv` -> q, k, v [tokens, heads, head_dim], q and k rotated."""
        c = self.config
        heads = joined.view(len(joined), c.num_heads + 2 * c.num_kv_heads, c.head_dim)
        end = c.num_heads + c.num_kv_heads
        q, k, v = heads[:, : c.num_heads], heads[:, c.num_heads : end], heads[:, end:]
        if layer.q_norm is not None and layer.k_norm is not None:
            q = rms_norm(q, layer.q_norm, c.rms_norm_eps)
            k = rms_norm(k, layer.k_norm, c.rms_norm_eps)
        q, k = apply_rope(q, k, cos, sin)
        return q, k, v

    def _store(self, index: int, cache: KVCache, inputs: StepInputs) -> None:
        """Write what is full now in few bits."""
        form, plain = cache.layout.form, inputs.plain
        if form is not None and plain is not None:
            pages = cache.k_pages, cache.v_pages, cache.k_codes, cache.v_codes
            tensors = [each[index] for each in pages]
            k, v, k_codes, v_codes = tensors
            store_pages(k, v, k_codes, v_codes, plain.sources, plain.targets, form.bits)

    def _attend(
        self, layer: Layer, index: int, q: Tensor, cache: KVCache, tables: Tables
    ) -> Tensor:
        pages = cache.k_pages[index], cache.v_pages[index]
        form, scale, window = cache.layout.form, self._scale, layer.window
        if form is None:
            mixed = paged_attention(q, *pages, *tables, scale=scale, window=window)
        else:
            codes = cache.k_codes[index], cache.v_codes[index]
            mixed = kivi_attention(q, codes, pages, form, tables, scale=scale, window=window)
        return mixed.view(len(q), -1)

    def _add_norm(self, x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return add_rms_norm(x, residual, weight, self.config.rms_norm_eps)
