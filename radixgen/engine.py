"""`Engine`: a local runtime with the call signatures of SGLang's offline engine.

For code that moves here; `Runtime` is the same with typed results.
"""

from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from typing import Any

from radixgen.errors import InvalidRequest
from radixgen.launch import Runtime
from radixgen.types import Choice, GenerateResult, GrammarSpec, Piece

_SPELLINGS = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "sampling_seed": "seed",
}
_GRAMMARS = {
    "json_schema": "json_schema",
    "regex": "regex",
    "ebnf": "gbnf",
    "structural_tag": "structural_tag",
}
DEFAULT_MAX_TOKENS = 128

Sampling = Mapping[str, Any]


class Engine(Runtime):
    """A runtime that is started by making it. `settings` are those of `Runtime`.

    Results are SGLang's: `{"text": …, "output_ids": …, "meta_info": {…}}`, a list of them for a
    list of prompts or n > 1, and streams of such with the text so far.
    """

    def __init__(self, model_path: str = "", **settings: Any) -> None:
        super().__init__(settings.pop("model", model_path), **settings)
        self.start()

    def __enter__(self) -> "Engine":
        return self

    def generate(  # type: ignore[override]
        self,
        prompt: str | list[str] | None = None,
        sampling_params: Sampling | None = None,
        input_ids: list[int] | list[list[int]] | None = None,
        *,
        stream: bool = False,
        return_logprob: bool = False,
        top_logprobs_num: int = 0,
    ) -> Any:
        """A result, a list of results, or a generator of results that grow."""
        prompts = _prompts(prompt, input_ids)
        options = _options(sampling_params, return_logprob, top_logprobs_num)
        if stream:
            return _growing(super().generate(prompts, stream=True, **options))
        results: Any = super().generate(prompts, **options)
        many = isinstance(results, list)
        rows = [row for result in (results if many else [results]) for row in _rows(result)]
        return rows if many or options.get("n", 1) > 1 else rows[0]

    async def async_generate(
        self,
        prompt: str | list[str] | None = None,
        sampling_params: Sampling | None = None,
        input_ids: list[int] | list[list[int]] | None = None,
        *,
        stream: bool = False,
        return_logprob: bool = False,
        top_logprobs_num: int = 0,
    ) -> Any:
        """`generate` for an event loop; streams are async generators."""
        import asyncio

        def call() -> Any:
            return self.generate(
                prompt,
                sampling_params,
                input_ids,
                stream=stream,
                return_logprob=return_logprob,
                top_logprobs_num=top_logprobs_num,
            )

        answer = await asyncio.to_thread(call)
        return _in_loop(answer) if stream else answer

    def get_server_info(self) -> dict[str, Any]:
        """What is served, and the counters."""
        return {"model": self.ready.model, "max_context": self.ready.max_context} | self.stats()


def _prompts(prompt: Any, input_ids: Any) -> Any:
    if (prompt is None) == (input_ids is None):
        raise InvalidRequest("give either prompt or input_ids", "prompt")
    return input_ids if prompt is None else prompt


def _options(sampling: Sampling | None, return_logprob: bool, top: int) -> dict[str, Any]:
    """SGLang's names as ours. Raises InvalidRequest for two constraints."""
    options: dict[str, Any] = {"max_tokens": DEFAULT_MAX_TOKENS}
    grammars = [
        GrammarSpec(kind, sampling[name])  # type: ignore[arg-type]
        for name, kind in _GRAMMARS.items()
        if sampling and sampling.get(name) is not None
    ]
    if len(grammars) > 1:
        raise InvalidRequest("sampling_params has more than one constraint", "sampling_params")
    for name, value in (sampling or {}).items():
        if name not in _GRAMMARS and value is not None:
            options[_SPELLINGS.get(name, name)] = value
    if options.get("top_k") == -1:
        options["top_k"] = 0
    if grammars:
        options["grammar"] = grammars[0]
    if return_logprob:
        options["logprobs"] = top
    return options


def _rows(result: GenerateResult) -> list[dict[str, Any]]:
    return [_row(result, choice) for choice in result.choices]


def _row(result: GenerateResult, choice: Choice) -> dict[str, Any]:
    meta = {
        "id": result.rid,
        "finish_reason": {"type": choice.finish_reason.value, "matched": choice.stop_reason},
        "prompt_tokens": result.usage.prompt_tokens,
        "completion_tokens": len(choice.token_ids),
        "cached_tokens": result.usage.cached_tokens,
        "e2e_latency": result.usage.total_seconds,
    }
    if choice.logprobs:
        meta["output_token_logprobs"] = [(t.logprob, t.token_id, None) for t in choice.logprobs]
        meta["output_top_logprobs"] = [
            [(logprob, token_id, None) for token_id, logprob in t.top] for t in choice.logprobs
        ]
    return {"text": choice.text, "output_ids": list(choice.token_ids), "meta_info": meta}


def _growing(pieces: Generator[Piece]) -> Generator[dict[str, Any]]:
    """The text so far of each prompt's first choice."""
    texts: dict[int, str] = {}
    for piece in pieces:
        if piece.result is not None:
            yield _row(piece.result, piece.result.choices[0]) | {"index": piece.prompt}
        elif piece.index == 0 and piece.text:
            texts[piece.prompt] = texts.get(piece.prompt, "") + piece.text
            yield {"text": texts[piece.prompt], "meta_info": {}, "index": piece.prompt}


async def _in_loop(items: Generator[Any]) -> AsyncGenerator[Any]:
    import asyncio

    end = object()
    while (item := await asyncio.to_thread(next, items, end)) is not end:
        yield item


__all__: Sequence[str] = ["Engine"]
