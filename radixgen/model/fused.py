"""A decoder's forward pass as one program of C operations. Knows layers, no requests.

Recorded for one KV cache and a number of rows, then run for any step that fits: a step costs Python
little but to name its index tensors. The embedding is part of it, and so are the logits of few
outputs. Gives the bits of `Decoder.forward`, which calls the same operations one by one.
"""

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from radixgen.kernels.attention_plan import AttentionPlan, takes
from radixgen.kernels.kivi import Tables
from radixgen.kernels.program import Program
from radixgen.model.attention import StepInputs, StepLists, tables_over
from radixgen.model.kv_cache import KVCache
from radixgen.model.layers import embed

if TYPE_CHECKING:
    from radixgen.model.decoder import Decoder, Layer

MIN_ROWS = 64
_MAX_LOGITS = 1 << 23  # logits kept room for: 32 MiB of float32


class FusedForward:
    """The forward pass of one decoder over one cache."""

    def __init__(self, decoder: "Decoder", cache: KVCache, cos: Tensor, sin: Tensor) -> None:
        self._decoder, self.cache = decoder, cache
        self._cos, self._sin = cos, sin
        self._page_size = cache.k_pages[0].shape[2]
        *windows, self._last_window = (layer.window for layer in decoder.weights.layers)
        self._windows = {_plan_name(window): window for window in windows}
        self._views: dict[tuple[str, int], Tensor] = {}  # the first rows of outputs
        self._program: Program | None = None
        embedding = decoder.weights.embedding
        self._embeds = not isinstance(embedding, Tensor) or embedding.dtype == decoder.dtype

    def __call__(self, inputs: StepInputs, want_logits: bool) -> tuple[Tensor, Tensor | None]:
        """Write the KV of every token; the normed hidden states [outputs, hidden].

        With `want_logits` also the logits [outputs, vocab], float32, where there is room for them;
        then the next call may write both anew.
        """
        tokens = inputs.token_ids.shape[0]
        outputs = tokens if inputs.outputs is None else inputs.outputs.shape[0]
        program = self._program_for(tokens)
        if not self._embeds:
            self._residual[:tokens] = embed(
                self._decoder.weights.embedding, inputs.token_ids, self._decoder.dtype
            )
        plans = self._plans(inputs)
        given = {name: plan.pointer or 0 for name, plan in plans.items()}
        given["token ids"] = inputs.token_ids.data_ptr()
        given["positions"] = inputs.positions.data_ptr()
        given["slots"] = inputs.slots.data_ptr()
        if inputs.plain is not None:
            given["sources"] = inputs.plain.sources.data_ptr()
            given["targets"] = inputs.plain.targets.data_ptr()
            given["stored"] = len(inputs.plain.sources)
        chosen = self._all_tokens if inputs.outputs is None else inputs.outputs
        given["chosen"] = chosen.data_ptr()
        return self._run(program, given, tokens, outputs, want_logits)

    @property
    def takes_lists(self) -> bool:
        """Whether `run_lists` computes steps of this model over this cache."""
        return self._embeds and self.cache.layout.form is None

    def run_lists(self, lists: StepLists, want_logits: bool) -> tuple[Tensor, Tensor | None]:
        """The same of a step's numbers, of which no tensors are made: they cost a short step much
        of what it takes beside its program."""
        tokens, outputs, rows = len(lists.positions), len(lists.outputs), len(lists.last_page_len)
        program = self._program_for(tokens)
        wide = array("q", lists.token_ids)
        narrow = array("i", lists.qo_indptr)
        for column in (lists.positions, lists.slots, lists.outputs):
            wide.extend(column)
        for column in (lists.kv_indptr, lists.last_page_len, lists.output_indptr, lists.kv_indices):
            narrow.extend(column)
        first, start = wide.buffer_info()[0], narrow.buffer_info()[0]
        indptr = 4 * (rows + 1)
        last = start + 2 * indptr
        pages = start + indptr, last + 4 * rows + indptr, last
        plans = {
            name: self._plan_at((start, *pages), rows, tokens, window)
            for name, window in self._windows.items()
        }
        same = plans.get(_plan_name(self._last_window)) if outputs == tokens else None
        plans[_LAST] = same or self._plan_at(
            (last + 4 * rows, *pages), rows, outputs, self._last_window
        )
        given = {name: plan.pointer or 0 for name, plan in plans.items()}
        given["token ids"] = first
        given["positions"] = first + 8 * tokens
        given["slots"] = first + 16 * tokens
        given["chosen"] = first + 24 * tokens
        return self._run(program, given, tokens, outputs, want_logits)

    def _program_for(self, tokens: int) -> Program:
        """With room for so many tokens."""
        if self._program is None or self._program.max_rows < tokens:
            self._record(max(MIN_ROWS, 1 << (tokens - 1).bit_length()))
        assert self._program is not None
        return self._program

    def _run(
        self, program: Program, given: dict[str, int], tokens: int, outputs: int, want_logits: bool
    ) -> tuple[Tensor, Tensor | None]:
        drawn = outputs if want_logits and outputs <= self._logits.shape[0] else 0
        given |= {"tokens": tokens, "outputs": outputs, "drawn": drawn}
        program.run(given)
        hidden = self._first("hidden", self._hidden, outputs)
        if not drawn:
            return hidden.clone(), None
        logits = self._first("logits", self._logits, drawn)
        return hidden, logits if logits.dtype == torch.float32 else logits.float()

    def _first(self, name: str, rows: Tensor, count: int) -> Tensor:
        """rows[:count], of few made once: their step is short enough to feel it."""
        if count > MIN_ROWS:
            return rows[:count]
        found = self._views.get((name, count))
        if found is None:
            found = self._views[name, count] = rows[:count]
        return found

    def _plans(self, inputs: StepInputs) -> dict[str, AttentionPlan]:
        """A plan for each window of the layers, and one for the last layer's outputs."""
        tables = tables_over(inputs.attention, inputs.plain, self.cache)
        made = {name: self._plan(tables, window) for name, window in self._windows.items()}
        same = made.get(_plan_name(self._last_window)) if inputs.outputs is None else None
        if same is None:
            tables = tables_over(inputs.output_attention, inputs.plain, self.cache)
        made[_LAST] = same or self._plan(tables, self._last_window)
        return made

    def _plan(self, tables: Tables, window: int | None) -> AttentionPlan:
        """Without the checks of `plan_attention`: build_inputs has made the tables."""
        c = self._decoder.config
        group = c.num_heads // c.num_kv_heads
        return AttentionPlan(tables, self._page_size, c.num_kv_heads, group, c.head_dim, window)

    def _plan_at(
        self, tables: Sequence[int], rows: int, tokens: int, window: int | None
    ) -> AttentionPlan:
        c = self._decoder.config
        sizes = self._page_size, c.num_kv_heads, c.num_heads // c.num_kv_heads, c.head_dim
        return AttentionPlan.at(tables, rows, tokens, sizes, window)

    def _record(self, rows: int) -> None:
        decoder, program = self._decoder, Program(rows)
        c, dtype = decoder.config, decoder.dtype
        eps, layers = c.rms_norm_eps, decoder.weights.layers
        residual, normed, mixed, spare = (
            program.buffer(name, c.hidden_size, dtype)
            for name in ("residual", "normed", "mixed", "spare")
        )
        self._residual, self._hidden = residual, normed
        self._all_tokens = torch.arange(rows)
        if self._embeds:
            program.embed(decoder.weights.embedding, "token ids", residual, "tokens")
        program.norm(residual, layers[0].input_norm, eps, normed, "tokens")
        next_norms = [layer.input_norm for layer in layers[1:]] + [decoder.weights.final_norm]
        for i, (layer, next_norm) in enumerate(zip(layers, next_norms, strict=True)):
            last = i == len(layers) - 1
            count = "outputs" if last else "tokens"
            queries = self._record_projection(program, layer, normed, i)
            if last:  # nothing after it reads the other tokens
                program.gather(residual, "chosen", spare, count)
                residual, spare = spare, residual
                chosen = program.buffer("chosen", queries.shape[1], dtype)
                program.gather(queries, "chosen", chosen, count)
                queries = chosen
            attended = program.buffer("attended", queries.shape[1], dtype)
            name = _LAST if last else _plan_name(layer.window)
            self._record_attention(program, layer, queries, attended, i, name)
            program.linear(attended, layer.output.parts, mixed, count)
            program.norm(mixed, layer.ffn_norm, eps, normed, count, residual, spare)
            residual, spare = spare, residual
            self._record_ffn(program, layer, normed, mixed, count)
            program.norm(mixed, next_norm, eps, normed, count, residual, spare)
            residual, spare = spare, residual
        # Room for a part of the rows: beyond it logits are computed apart.
        most = max(1, min(rows, _MAX_LOGITS // c.vocab_size))
        with torch.inference_mode(False):
            self._logits = torch.zeros(most, c.vocab_size, dtype=dtype)
        program.linear(normed, [(decoder.weights.head, None)], self._logits, "drawn")
        self._program = program
        self._views.clear()

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
        angles = self._cos, self._sin, "positions"
        program.rope(q, c.num_heads, *angles, turned_q, rows)
        program.rope(k, c.num_kv_heads, *angles, turned_k, rows)
        pages = cache.k_pages[index], cache.v_pages[index]
        program.kv_write(turned_k, v, *pages, "slots", rows)
        if cache.layout.form is not None:
            codes = cache.k_codes[index], cache.v_codes[index]
            bits = cache.layout.form.bits
            program.store_pages(pages, codes, bits, "sources", "targets", "stored")
        return turned_q

    def _record_attention(
        self, program: Program, layer: "Layer", q: Tensor, out: Tensor, index: int, plan: str
    ) -> None:
        cache, form = self.cache, self.cache.layout.form
        codes = (cache.k_codes[index], cache.v_codes[index]) if form else None
        pages = cache.k_pages[index], cache.v_pages[index]
        scoring = self._decoder.config.head_dim**-0.5, layer.window
        bits = form.bits if form else 0
        program.attention(q, *pages, out, plan, *scoring, codes, bits)

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
    """Whether the C operations take this decoder's forms and this cache's pages.

    The ranks of a split model meet between operations, so their forward pass is no one program.
    """
    if decoder.peers is not None:
        return False
    c = decoder.config
    q = torch.empty((0, c.num_heads, c.head_dim), dtype=decoder.dtype)
    return decoder.kernels == "c" and takes(q, cache.k_pages[0], cache.v_pages[0])
