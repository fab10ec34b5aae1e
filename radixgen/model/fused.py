"""A decoder's forward pass as one program of C operations. Knows layers, no requests.

Recorded for one KV cache and a number of rows, then run for any step that fits: a step costs Python
a few copies into its buffers. Gives the bits of `Decoder.forward`, which calls the same operations
one by one.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from radixgen.kernels.attention import plan_attention
from radixgen.kernels.attention_plan import AttentionPlan, takes
from radixgen.kernels.program import Program
from radixgen.model.attention import AttentionMetadata, StepInputs
from radixgen.model.kv_cache import KVCache

if TYPE_CHECKING:
    from radixgen.model.decoder import Decoder, Layer

MIN_ROWS = 64


class FusedForward:
    """The forward pass of one decoder over one cache."""

    def __init__(self, decoder: "Decoder", cache: KVCache, cos: Tensor, sin: Tensor) -> None:
        self._decoder, self.cache = decoder, cache
        self._cos, self._sin = cos, sin
        self._program: Program | None = None

    def __call__(self, inputs: StepInputs, embedded: Tensor) -> Tensor:
        """Write the KV of every token; the normed hidden states [outputs, hidden].

        embedded [tokens, hidden]: the embeddings of the step's tokens.
        """
        tokens = len(inputs.token_ids)
        outputs = tokens if inputs.outputs is None else len(inputs.outputs)
        if self._program is None or self._program.max_rows < tokens:
            self._record(max(MIN_ROWS, 1 << (tokens - 1).bit_length()))
        assert self._program is not None
        self._slots[:tokens] = inputs.slots
        self._positions[:tokens] = inputs.positions
        self._outputs[:outputs] = torch.arange(tokens) if inputs.outputs is None else inputs.outputs
        self._residual[:tokens] = embedded
        plans = self._plans(inputs, tokens, outputs)
        pointers = {name: plan.pointer or 0 for name, plan in plans.items()}
        self._program.run({"tokens": tokens, "outputs": outputs, **pointers})
        return self._hidden[:outputs].clone()

    def _plans(self, inputs: StepInputs, tokens: int, outputs: int) -> dict[str, AttentionPlan]:
        """A plan for each window of the layers, and one for the last layer's outputs."""
        windows = [layer.window for layer in self._decoder.weights.layers]
        wanted = {_plan_name(window): (inputs.attention, tokens, window) for window in windows[:-1]}
        made = {name: self._plan(*arguments) for name, arguments in wanted.items()}
        same = made.get(_plan_name(windows[-1])) if inputs.outputs is None else None
        made[_LAST] = same or self._plan(inputs.output_attention, outputs, windows[-1])
        return made

    def _plan(self, meta: AttentionMetadata, num_queries: int, window: int | None) -> AttentionPlan:
        c = self._decoder.config
        q = torch.empty((num_queries, c.num_heads, c.head_dim), dtype=self._decoder.dtype)
        tables = (meta.qo_indptr, meta.kv_indptr, meta.kv_indices, meta.kv_last_page_len)
        pages = self.cache.k_pages[0], self.cache.v_pages[0]
        plan = plan_attention(q, *pages, *tables, window=window)
        assert plan is not None
        return plan

    def _record(self, rows: int) -> None:
        decoder, program = self._decoder, Program(rows)
        c, dtype = decoder.config, decoder.dtype
        eps, layers = c.rms_norm_eps, decoder.weights.layers
        residual, normed, mixed, spare = (
            program.buffer(name, c.hidden_size, dtype)
            for name in ("residual", "normed", "mixed", "spare")
        )
        self._residual, self._hidden = residual, normed
        self._slots, self._positions, self._outputs = (
            program.buffer(name, 1, torch.int64)[:, 0] for name in ("slots", "positions", "outputs")
        )
        program.norm(residual, layers[0].input_norm, eps, normed, "tokens")
        next_norms = [layer.input_norm for layer in layers[1:]] + [decoder.weights.final_norm]
        for i, (layer, next_norm) in enumerate(zip(layers, next_norms, strict=True)):
            last = i == len(layers) - 1
            count = "outputs" if last else "tokens"
            queries = self._record_projection(program, layer, normed, i)
            if last:  # nothing after it reads the other tokens
                program.gather(residual, self._outputs, spare, count)
                residual, spare = spare, residual
                chosen = program.buffer("chosen", queries.shape[1], dtype)
                program.gather(queries, self._outputs, chosen, count)
                queries = chosen
            attended = program.buffer("attended", queries.shape[1], dtype)
            pages = self.cache.k_pages[i], self.cache.v_pages[i]
            name = _LAST if last else _plan_name(layer.window)
            program.attention(queries, *pages, attended, name, c.head_dim**-0.5, layer.window)
            program.linear(attended, layer.output.parts, mixed, count)
            program.norm(mixed, layer.ffn_norm, eps, normed, count, residual, spare)
            residual, spare = spare, residual
            self._record_ffn(program, layer, normed, mixed, count)
            program.norm(mixed, next_norm, eps, normed, count, residual, spare)
            residual, spare = spare, residual
        self._program = program

    def _record_projection(self, program: Program, layer: "Layer", x: Tensor, index: int) -> Tensor:
        """q, k, v of x: k and v go to their pages; the rotated queries [rows, num_heads * dim]."""
        decoder, cache, rows = self._decoder, self.cache, "tokens"
        c, dtype = decoder.config, decoder.dtype
        q_size, kv_size = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        joined = program.buffer("qkv", q_size + 2 * kv_size, dtype)
        program.linear(x, layer.qkv.parts, joined, rows)
        q, k, v = torch.split(joined, [q_size, kv_size, kv_size], dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            normed_q = program.buffer("normed q", q_size, dtype)
            normed_k = program.buffer("normed k", kv_size, dtype)
            program.norm(q, layer.q_norm, c.rms_norm_eps, normed_q, rows, group=c.num_heads)
            program.norm(k, layer.k_norm, c.rms_norm_eps, normed_k, rows, group=c.num_kv_heads)
            q, k = normed_q, normed_k
        turned_q = program.buffer("q", q_size, dtype)
        turned_k = program.buffer("k", kv_size, dtype)
        angles = self._cos, self._sin, self._positions
        program.rope(q, c.num_heads, *angles, turned_q, rows)
        program.rope(k, c.num_kv_heads, *angles, turned_k, rows)
        pages = cache.k_pages[index], cache.v_pages[index]
        program.kv_write(turned_k, v, *pages, self._slots, rows)
        return turned_q

    def _record_ffn(
        self, program: Program, layer: "Layer", x: Tensor, out: Tensor, rows: str
    ) -> None:
        ffn, dtype = self._decoder.config.ffn_size, self._decoder.dtype
        gate_up = program.buffer("gate and up", 2 * ffn, dtype)
        gated = program.buffer("gated", ffn, dtype)
        program.linear(x, layer.gate_up.parts, gate_up, rows)
        program.silu_mul(gate_up, gated, rows)
        program.linear(gated, layer.down.parts, out, rows)


_LAST = "last"


def _plan_name(window: int | None) -> str:
    return f"window {window}"


def fits(decoder: "Decoder", cache: KVCache) -> bool:
    """Whether the C operations take this decoder's forms and this cache's pages."""
    c = decoder.config
    q = torch.empty((0, c.num_heads, c.head_dim), dtype=decoder.dtype)
    return decoder.device.type == "cpu" and takes(q, cache.k_pages[0], cache.v_pages[0])
