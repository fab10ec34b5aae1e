"""Engines behind one interface, each in a process of its own and perhaps another interpreter.

Started by peers.py as `python peer_engines.py NAME ROOT`; imports nothing of radixgen, which lies
in ROOT, but in the engine of that name. Requests and answers are lines of JSON:

    {"op": "start", "model": path, "threads": n, "tokens": n}      -> {"version": text}
    {"op": "run", "items": [{"ids", "max_tokens", "schema"}]}      -> {"seconds", "outputs": [...]}

`tokens`: KV cells that the largest workload needs. An output is {"ids", "first"}: the tokens drawn,
and seconds from the start to the first of them. Without a schema an engine ignores the end token.
An item may have a "temperature", 0 if it has none, and then a "seed".
"""

import ctypes
import itertools
import json
import os
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

Item = dict[str, Any]
Output = dict[str, Any]
MAX_SEQUENCES = 64


class Radixgen:
    """This project's engine, driven step by step."""

    def start(self, model: str, threads: int, tokens: int) -> str:
        from radixgen.config import from_settings
        from radixgen.runtime.build import build_engine

        config = from_settings(model=model, threads=threads, num_pages=tokens // 16 + 256)
        self._engine = build_engine(config).engine
        self._engine.prepare()  # as the runtime's process does
        self._names = itertools.count()
        return "this checkout"

    def run(self, items: Sequence[Item]) -> list[Output]:
        from radixgen.messages import GenerateRequest, RequestFailed
        from radixgen.schedule.request import SequenceOutput
        from radixgen.types import GrammarSpec, SamplingParams

        begin = time.perf_counter()
        outputs: dict[str, Output] = {}
        for item in items:
            name = f"r{next(self._names)}"
            outputs[name] = {"ids": [], "first": None}
            free = item["schema"] is None
            sampling = SamplingParams(
                temperature=item.get("temperature", 0.0),
                seed=item.get("seed"),
                max_tokens=item["max_tokens"],
                ignore_eos=free,
            )
            spec = None if free else GrammarSpec("json_schema", json.dumps(item["schema"]))
            self._engine.add(GenerateRequest(name, sampling, spec), array("i", item["ids"]))
        while self._engine.scheduler.requests:
            if not self._engine.has_work:
                time.sleep(0.0005)
                continue
            for event in self._engine.step():
                if isinstance(event, RequestFailed):
                    raise RuntimeError(event.message)
                if isinstance(event, SequenceOutput) and event.token_ids:
                    output = outputs[event.rid]
                    output["first"] = output["first"] or time.perf_counter() - begin
                    output["ids"] += event.token_ids
        return list(outputs.values())


class LlamaCpp:
    """llama.cpp by llama-cpp-python's plain API: prompts first, then all sequences in one batch."""

    BATCH = 2048

    def start(self, model: str, threads: int, tokens: int) -> str:
        api = self._api = import_module("llama_cpp")
        api.llama_log_set(LOG_NOTHING, ctypes.c_void_p(0))
        api.llama_backend_init()
        self._model = api.llama_model_load_from_file(
            model.encode(), api.llama_model_default_params()
        )
        options = api.llama_context_default_params()
        options.n_ctx, options.n_batch, options.n_ubatch = tokens, self.BATCH, 512
        options.n_seq_max, options.kv_unified = MAX_SEQUENCES, True
        options.n_threads = options.n_threads_batch = threads
        self._context = api.llama_init_from_model(self._model, options)
        if not self._context:
            raise RuntimeError("llama.cpp could not make a context")
        self._vocab = api.llama_model_get_vocab(self._model)
        self._batch = api.llama_batch_init(self.BATCH, 0, 1)
        return str(api.__version__)

    def run(self, items: Sequence[Item]) -> list[Output]:
        api, begin = self._api, time.perf_counter()
        api.llama_memory_clear(api.llama_get_memory(self._context), True)
        samplers = [self._sampler(item) for item in items]
        outputs: list[Output] = [{"ids": [], "first": None} for _ in items]
        queue = [
            (s, at, token, at == len(item["ids"]) - 1)
            for s, item in enumerate(items)
            for at, token in enumerate(item["ids"])
        ]
        while queue:
            now, queue = queue[: self.BATCH], queue[self.BATCH :]
            for s, index in self._decode(now):
                token = api.llama_sampler_sample(samplers[s], self._context, index)
                ids, item = outputs[s]["ids"], items[s]
                outputs[s]["first"] = outputs[s]["first"] or time.perf_counter() - begin
                ended = item["schema"] and api.llama_vocab_is_eog(self._vocab, token)
                ids.append(token)
                if not ended and len(ids) < item["max_tokens"]:
                    queue.append((s, len(item["ids"]) + len(ids) - 1, token, True))
        for sampler in samplers:
            api.llama_sampler_free(sampler)
        return outputs

    def _decode(self, cells: Sequence[tuple[int, int, int, bool]]) -> list[tuple[int, int]]:
        """Compute (sequence, position, token, wanted); (sequence, index) of those wanted."""
        batch = self._batch
        batch.n_tokens = len(cells)
        for i, (s, at, token, wanted) in enumerate(cells):
            batch.token[i], batch.pos[i], batch.logits[i] = token, at, wanted
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, s
        if self._api.llama_decode(self._context, batch):
            raise RuntimeError("llama.cpp could not decode a batch")
        return [(s, i) for i, (s, _, _, wanted) in enumerate(cells) if wanted]

    def _sampler(self, item: Item) -> Any:
        api, schema = self._api, item["schema"]
        chain = api.llama_sampler_chain_init(api.llama_sampler_chain_default_params())
        if schema is not None:
            grammars = import_module("llama_cpp.llama_grammar")
            grammar = grammars.json_schema_to_gbnf(json.dumps(schema)).encode()
            sampler = api.llama_sampler_init_grammar(self._vocab, grammar, b"root")
            api.llama_sampler_chain_add(chain, sampler)
        if item.get("temperature"):
            api.llama_sampler_chain_add(chain, api.llama_sampler_init_temp(item["temperature"]))
            last = api.llama_sampler_init_dist(item["seed"])
        else:
            last = api.llama_sampler_init_greedy()
        api.llama_sampler_chain_add(chain, last)
        return chain


_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
LOG_NOTHING = _LOG(lambda level, text, data: None)


class OpenVino:
    """openvino-genai's continuous batching over the same GGUF file."""

    def start(self, model: str, threads: int, tokens: int) -> str:
        api = self._api = import_module("openvino_genai")
        scheduler = api.SchedulerConfig()
        scheduler.num_kv_blocks = tokens // 16
        scheduler.max_num_batched_tokens, scheduler.max_num_seqs = 1024, MAX_SEQUENCES
        scheduler.enable_prefix_caching = scheduler.dynamic_split_fuse = True
        options = {"INFERENCE_NUM_THREADS": threads}
        self._pipeline = api.ContinuousBatchingPipeline(model, scheduler, "CPU", options)
        self._names = itertools.count()
        return str(api.__version__)

    def run(self, items: Sequence[Item]) -> list[Output]:
        import numpy as np

        openvino = import_module("openvino")
        begin = time.perf_counter()
        handles = [
            self._pipeline.add_request(
                next(self._names),
                openvino.Tensor(np.array([item["ids"]], dtype=np.int64)),
                self._options(item),
            )
            for item in items
        ]
        outputs: list[Output] = [{"ids": [], "first": None} for _ in items]
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            now = time.perf_counter() - begin
            for handle, output in zip(handles, outputs, strict=True):
                while handle.can_read():
                    for part in handle.read().values():
                        output["ids"] += part.generated_ids
                        output["first"] = output["first"] or now
        return outputs

    def _options(self, item: Item) -> Any:
        options = self._api.GenerationConfig()
        options.max_new_tokens, options.do_sample = item["max_tokens"], False
        options.apply_chat_template = False
        if item["schema"] is None:
            options.ignore_eos, options.min_new_tokens = True, item["max_tokens"]
        else:
            structure = self._api.StructuredOutputConfig()
            structure.json_schema = json.dumps(item["schema"])
            options.structured_output_config = structure
            end = self._pipeline.get_tokenizer().get_eos_token_id()
            options.eos_token_id, options.stop_token_ids = end, {end}
        return options


class Transformers:
    """transformers' generate on one padded batch, bfloat16. No schemas."""

    def start(self, model: str, threads: int, tokens: int) -> str:
        import torch
        import transformers

        torch.set_num_threads(threads)
        folder, name = os.path.split(model)
        self._torch = torch
        made: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder, gguf_file=name, dtype=torch.bfloat16
        )
        self._model = made.eval()
        return str(transformers.__version__)

    def run(self, items: Sequence[Item]) -> list[Output]:
        if any(item["schema"] for item in items):
            raise NotRun("no schemas")
        count, width = items[0]["max_tokens"], max(len(item["ids"]) for item in items)
        if width * len(items) > 16_384:
            raise NotRun("too large for one padded batch")
        return self._generate(items, [], min_new_tokens=count, do_sample=False)

    def _generate(self, items: Sequence[Item], processors: Sequence[Any], **how: Any) -> Any:
        torch, begin = self._torch, time.perf_counter()
        width = max(len(item["ids"]) for item in items)
        padding = [width - len(item["ids"]) for item in items]
        ids = [[0] * pad + item["ids"] for pad, item in zip(padding, items, strict=True)]
        mask = [[0] * pad + [1] * (width - pad) for pad in padding]
        first: list[float] = []

        def note(_ids: Any, logits: Any) -> Any:
            first.append(time.perf_counter() - begin)
            return logits

        with torch.inference_mode():
            made = self._model.generate(
                input_ids=torch.tensor(ids), attention_mask=torch.tensor(mask),
                max_new_tokens=items[0]["max_tokens"], logits_processor=[*processors, note], **how,
            )  # fmt: skip
        return [{"ids": row[width:].tolist(), "first": first[0]} for row in made]


class Masked(Transformers):
    """transformers' generate with a library's masks over its logits."""

    def __init__(self, library: Callable[[Any, int], Callable[[Sequence[str]], Any]]) -> None:
        self._library = library

    def start(self, model: str, threads: int, tokens: int) -> str:
        version = super().start(model, threads, tokens)
        folder, name = os.path.split(model)
        transformers = import_module("transformers")
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=name)
        self._end = int(tokenizer.eos_token_id)
        self._masks = self._library(tokenizer, self._model.config.vocab_size)
        return f"over transformers {version}"

    def run(self, items: Sequence[Item]) -> list[Output]:
        if items[0]["schema"] is None:
            return super().run(items)
        begin = time.perf_counter()
        masks = self._masks([json.dumps(item["schema"]) for item in items])
        compiled = time.perf_counter() - begin
        how: dict[str, Any] = {"do_sample": False}
        if items[0].get("temperature"):
            self._torch.manual_seed(items[0]["seed"])
            how = {"do_sample": True, "temperature": items[0]["temperature"], "top_k": 0}
        ends = {"eos_token_id": self._end, "pad_token_id": self._end}
        outputs: list[Output] = self._generate(items, [masks], top_p=None, **how, **ends)
        for output in outputs:
            ids = output["ids"]
            output["ids"] = ids[: ids.index(self._end) + 1] if self._end in ids else ids
            output["first"] += compiled
        return outputs


def xgrammar(tokenizer: Any, vocab_size: int) -> Callable[[Sequence[str]], Any]:
    """Schemas of a batch to what masks its logits: xgrammar's own processor for transformers."""
    api = import_module("xgrammar")
    processor = import_module("xgrammar.contrib.hf").LogitsProcessor
    info = api.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocab_size)
    compiler = api.GrammarCompiler(info, max_threads=2)
    return lambda schemas: processor([compiler.compile_json_schema(each) for each in schemas])


def llguidance(tokenizer: Any, vocab_size: int) -> Callable[[Sequence[str]], Any]:
    """Likewise, by llguidance."""
    api, masks = import_module("llguidance"), import_module("llguidance.torch")
    vocabulary = import_module("llguidance.hf").from_tokenizer(tokenizer, vocab_size)
    compile_schema = api.LLMatcher.grammar_from_json_schema

    def processor(schemas: Sequence[str]) -> Any:
        matchers = [api.LLMatcher(vocabulary, compile_schema(s), log_level=0) for s in schemas]
        for matcher in matchers:
            if matcher.is_error():
                raise ValueError(matcher.get_error())
        bitmask = masks.allocate_token_bitmask(len(matchers), vocab_size)
        is_first = iter((True,))

        def process(ids: Any, logits: Any) -> Any:
            is_drawn = not next(is_first, False)
            for row, matcher in enumerate(matchers):
                if is_drawn and not matcher.is_stopped():
                    matcher.consume_token(int(ids[row, -1]))
                masks.fill_next_token_bitmask(matcher, bitmask, row)
            masks.apply_token_bitmask_inplace(logits, bitmask)
            return logits

        return process

    return processor


class NotRun(Exception):
    """An engine has no way to run a workload; the message says why."""


ENGINES: dict[str, Callable[[], Any]] = {
    "radixgen": Radixgen,
    "llama.cpp": LlamaCpp,
    "openvino": OpenVino,
    "transformers": Transformers,
    "xgrammar": lambda: Masked(xgrammar),
    "llguidance": lambda: Masked(llguidance),
}
# What an interpreter must be able to import for an engine to be there.
MODULES = {
    "llama.cpp": "llama_cpp",
    "openvino": "openvino_genai",
    "transformers": "transformers",
    "xgrammar": "xgrammar",
    "llguidance": "llguidance",
}


def _answer(engine: Any, request: dict[str, Any]) -> dict[str, Any]:
    if request["op"] == "start":
        version = engine.start(request["model"], request["threads"], request["tokens"])
        return {"version": version}
    begin = time.perf_counter()
    outputs = engine.run(request["items"])
    return {"seconds": time.perf_counter() - begin, "outputs": outputs}


def main() -> None:
    engine = ENGINES[sys.argv[1]]()
    sys.path[:1] = []  # this folder's modules have names that others use
    sys.path.append(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    for line in sys.stdin:
        try:
            answer = _answer(engine, json.loads(line))
        except NotRun as reason:
            answer = {"not_run": str(reason)}
        except Exception as error:  # an engine of somebody else: its row says what it raised
            answer = {"error": f"{type(error).__name__}: {error}"[:500]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
