"""Programs against a radixgen or SGLang server, through its native HTTP API.

With the model's tokenizer at hand prompts go as token ids, and conversations grow by prefix as they
do against a local runtime. Without it they go as text: roles and exact scores are refused then.
"""

import asyncio
import json
import re
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from radixgen.errors import InvalidRequest, RadixgenError, RuntimeUnavailable
from radixgen.lang.backends.protocol import Generation, Push, Scored
from radixgen.lang.backends.remote import (
    RefusedResponse,
    optional_import,
    refuse_broken,
    running_thread,
    stops,
    translated,
)
from radixgen.lang.backends.served_tokenizer import load_same
from radixgen.lang.backends.spelling import spelled_ids
from radixgen.lang.chat import ChatFormat
from radixgen.lang.choices import needs_unconditional
from radixgen.lang.constraints import check_constraint, check_thoughts
from radixgen.lang.conversation import Conversation, Encode
from radixgen.lang.ir import Gen, GenOptions, Node, Scores, Select, max_tokens_of
from radixgen.thoughts import THINK, template_tags
from radixgen.types import CacheHint, GrammarSpec, SamplingParams, shown

TIMEOUT_SECONDS = 600.0
OVERLAP = 2  # tokens of the prompt that are scored with a choice: the boundary may have moved
_GRAMMARS = {"json_schema": "json_schema", "regex": "regex", "gbnf": "ebnf"} | {
    "structural_tag": "structural_tag"
}
_NAMES = {
    "min_tokens": "min_new_tokens",
    "seed": "sampling_seed",
}
_SAME = (
    *("n", "stop_token_ids", "temperature", "top_p", "min_p", "frequency_penalty"),
    *("presence_penalty", "repetition_penalty", "ignore_eos", "min_tokens", "seed"),
    *("token_healing", "constrained_law", "grammar_mass"),
)


class RuntimeEndpoint:
    """The server at `base_url`. `tokenizer`: the path of its model or tokenizer, where the server's
    own name of it does not lead there: it may be a path, a hub id that was fetched before, or the
    embedded model.

    Raises RuntimeUnavailable when nobody answers, InvalidRequest for another model's tokenizer.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        verify: bool | str | None = None,
        chat_template_name: str | None = None,
        *,
        tokenizer: str | Path | None = None,
        timeout: float = TIMEOUT_SECONDS,
        transport: Any = None,
    ) -> None:
        if chat_template_name is not None:
            raise InvalidRequest(
                "chat_template_name: roles use the model's own chat template; give tokenizer=… "
                "with the path of the model if the server's is not on this machine",
                "chat_template_name",
            )
        self.base_url = _address(base_url)
        self.who = f"the server at {self.base_url}"
        http = optional_import("httpx2", "httpx2", "RuntimeEndpoint()")
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._thread = running_thread("radixgen endpoint")
        self.loop: asyncio.AbstractEventLoop = self._thread.loop
        self._http = http.AsyncClient(
            base_url=self.base_url,
            headers=headers,
            timeout=timeout,
            transport=transport,
            verify=True if verify is None else verify,
            limits=http.Limits(max_connections=None),
        )
        self._aborting: set[asyncio.Task[None]] = set()
        try:
            self.info = self._thread.run(self._model_info())
            self.tokenizer = self._thread.run(load_same(tokenizer, self.info, self._post, self.who))
        except BaseException:
            self.close()
            raise
        self.encode: Encode | None = self._encode if self.tokenizer else None
        templated = self.tokenizer is not None and self.tokenizer.has_chat_template
        self._features = frozenset(self.info.get("features", ()))
        self.chat = None
        if templated and self.tokenizer is not None:
            tags = template_tags(self.tokenizer.chat_template) or THINK
            self.chat = ChatFormat(self._render, tags)

    def _render(self, messages: list[dict[str, str]], generation: bool) -> str:
        assert self.tokenizer is not None
        return self.tokenizer.render_chat(messages, add_generation_prompt=generation)

    def _encode(self, text: str, at_start: bool) -> Sequence[int]:
        assert self.tokenizer is not None
        return self.tokenizer.encode(text, add_special_tokens=at_start)

    def decode(self, token_ids: Sequence[int]) -> str:
        return self.tokenizer.decode(token_ids, False) if self.tokenizer else ""

    def close(self) -> None:
        """Leave; the server goes on."""
        self._thread.run(self._http.aclose())
        self._thread.stop()

    # ---- requests ----

    async def _model_info(self) -> dict[str, Any]:
        try:
            return await self._get("/model_info")
        except InvalidRequest:  # an older server
            return await self._get("/get_model_info")

    async def _get(self, path: str) -> dict[str, Any]:
        try:
            response = await self._http.get(path)
        except Exception as error:  # whatever the client raises, told in our words
            raise translated(error, self.who) from error
        found: dict[str, Any] = self._checked(response).json()
        return found

    async def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        try:
            response = await self._http.post(path, json=body)
        except Exception as error:  # whatever the client raises, told in our words
            raise translated(error, self.who) from error
        return self._checked(response).json()

    def _checked(self, response: Any) -> Any:
        """The response, or what its status says went wrong, as one of our errors."""
        if response.status_code < 400:
            return response
        raise translated(RefusedResponse(response), self.who)

    def check(self, node: Node) -> None:
        """Constraints and settings that the server's API does not have, or that cannot be read."""
        if isinstance(node, Gen):
            node.options.sampling()
            self._check_thoughts(node)
            if node.grammar is not None:
                check_constraint(node.grammar)
                _constraint(node.grammar)
        elif isinstance(node, Select) and node.thoughts is not None:
            self._check_thoughts(Gen(None, node.options, thoughts=node.thoughts))
        if isinstance(node, Select) and needs_unconditional(node.method) and not self.encode:
            raise InvalidRequest(
                "unconditional_likelihood_normalized needs the model's tokenizer: give "
                "RuntimeEndpoint(…, tokenizer=path)",
                "choices_method",
            )

    def _check_thoughts(self, gen: Gen) -> None:
        check_thoughts(gen)
        if gen.thoughts is not None and "thinking" not in self._features:
            raise InvalidRequest(
                f"{self.who} has no thoughts before a constraint; leave thinking out, or run on a "
                "radixgen server",
                "thinking",
            )

    def _hint(self, hint: CacheHint) -> dict[str, Any]:
        """For servers that listen, when there is something to tell."""
        said = {k: v for k, v in asdict(hint).items() if v}
        return {"hint": said} if said and "hint" in self._features else {}

    def _prompt(self, conversation: Conversation) -> dict[str, Any]:
        if self.encode is None:
            self._refuse_roles(conversation)
            return {"text": conversation.text}
        return {"input_ids": self._ids(conversation.prompt())}

    def _ids(self, prompt: Sequence[int]) -> list[int]:
        assert self.tokenizer is not None
        return list(prompt) or self.tokenizer.encode("") or [min(self.tokenizer.eos_ids)]

    def _refuse_roles(self, conversation: Conversation) -> None:
        if conversation.roles and self.chat is None:
            raise InvalidRequest(
                f"roles need the chat template of {self.info.get('model_path')}, which is not on "
                "this machine or has none: give RuntimeEndpoint(…, tokenizer=path)",
                "role",
            )

    async def generate(
        self, conversation: Conversation, gen: Gen, hint: CacheHint, push: Push
    ) -> Sequence[Generation]:
        self._refuse_roles(conversation)
        body = self._prompt(conversation) | _extras(gen.options) | {"rid": uuid.uuid4().hex}
        body["sampling_params"] = _sampling(gen)
        body |= self._hint(hint)
        if gen.thoughts is not None:
            body["thinking"] = asdict(gen.thoughts.thinking())
        if gen.options.logprobs is not None:
            body |= {"return_logprob": True, "top_logprobs_num": gen.options.logprobs}
        try:
            whole = (gen.options.n or 1) > 1 or bool(gen.options.grammar_mass)
            answers = await self._answers(body, whole=whole, push=push)
        except asyncio.CancelledError:
            task = self.loop.create_task(self._abort(body["rid"]))
            self._aborting.add(task)
            task.add_done_callback(self._aborting.discard)
            raise
        heals = bool(gen.options.token_healing)
        generations = [self._generation(answer, heals) for answer in answers]
        for generation in generations:
            refuse_broken(gen, generation.text, generation.meta["finish_reason"], self.who)
        return generations

    async def _answers(self, body: dict[str, Any], *, whole: bool, push: Push) -> list[Any]:
        if whole:  # several choices have no stream that is specified, masses none at all
            answer = await self._post("/generate", body)
            answers = answer if isinstance(answer, list) else [answer]
            push.thought(answers[0]["meta_info"].get("reasoning_content", ""))
            push(answers[0]["text"])
            return answers
        thoughts, text, last = "", "", None
        async for last in self._stream(body | {"stream": True}):
            cached = last["meta_info"].get("cached_tokens")
            if not text and cached is not None and "input_ids" in body:
                push.found(len(body["input_ids"]), cached)
            thought = last["meta_info"].get("reasoning_content", "")
            push.thought(thought[len(thoughts) :])
            thoughts = thought
            if last["text"] != text:
                push(last["text"][len(text) :])  # texts are cumulative
            text = last["text"]
        if last is None:
            raise RadixgenError(f"{self.who} answered with nothing")
        return [last]

    async def _stream(self, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        try:
            async with self._http.stream("POST", "/generate", json=body) as response:
                if response.status_code >= 400:
                    await response.aread()
                self._checked(response)
                async for line in response.aiter_lines():
                    data = line.removeprefix("data:").strip()
                    if not line.startswith("data:") or data == "[DONE]":
                        continue
                    yield self._event(json.loads(data))
        except RadixgenError:
            raise
        except Exception as error:  # whatever the client raises, told in our words
            raise translated(error, self.who) from error

    def _event(self, event: dict[str, Any]) -> dict[str, Any]:
        if "error" in event:
            said = event["error"]
            raise RadixgenError(f"{self.who}: {said.get('message', said)}")
        return event

    async def _abort(self, rid: str) -> None:
        try:
            await self._http.post("/abort_request", json={"rid": rid})
        except Exception:  # the closed connection has ended the request as well
            return

    def _generation(self, answer: Mapping[str, Any], heals: bool) -> Generation:
        info, text = answer["meta_info"], answer["text"]
        reason = info.get("finish_reason") or {}
        if reason.get("type") == "abort":
            raise RuntimeUnavailable(f"{self.who} ended the request: {reason.get('message', '')}")
        meta = dict(info) | {
            "finish_reason": reason.get("type"),
            "stop_reason": reason.get("matched"),
        }
        thoughts = info.get("reasoning_content", "")
        if thoughts:
            meta["reasoning_content"] = thoughts.strip()
        if self.tokenizer is None:
            return Generation(text, (), meta, "", thoughts)
        if heals:  # the first token spells more than the text
            return Generation(text, (), meta, text)
        ids, start = answer.get("output_ids", ()), info.get("reasoning_tokens", 0)
        spelled, tail = spelled_ids(self.tokenizer, text, ids[start:], reason.get("matched"))
        return Generation(text, [*ids[:start], *spelled], meta, tail, thoughts)

    # ---- select ----

    async def score(self, conversation: Conversation, select: Select, hint: CacheHint) -> Scored:
        self._refuse_roles(conversation)
        extras = _extras(select.options) | self._hint(hint)
        if self.encode is None:
            given = await self._score_text(conversation.text, select.choices, extras)
            return Scored(Scores(select.choices, given))
        prefix, rest = conversation.branches(select.choices)
        given, meta = await self._score_ids(self._ids(prefix), rest, extras)
        alone: tuple[tuple[float, ...], ...] = ()
        if needs_unconditional(select.method):
            alone, _ = await self._score_ids(self._ids(()), rest, extras)
        branches = [[*prefix, *option] for option in rest]
        return Scored(Scores(select.choices, given, alone), branches, meta)

    async def _score_ids(
        self, prefix: list[int], rest: Sequence[list[int]], extras: dict[str, Any]
    ) -> tuple[tuple[tuple[float, ...], ...], dict[str, int]]:
        body = {
            "input_ids": [[*prefix, *option] for option in rest],
            "logprob_start_len": max(len(prefix) - 1, 0),
        }
        answers = await self._scored(body, extras)
        scores = tuple(
            tuple(_logprob(entry) for entry in answer["input_token_logprobs"][-len(option) :])
            for answer, option in zip(answers, rest, strict=True)
        )
        cached = max(answer.get("cached_tokens", 0) for answer in answers)
        num_tokens = len(prefix) + sum(map(len, rest))
        return scores, {"prompt_tokens": num_tokens, "cached_tokens": min(cached, len(prefix))}

    async def _score_text(
        self, prompt: str, choices: Sequence[str], extras: dict[str, Any]
    ) -> tuple[tuple[float, ...], ...]:
        """As SGLang: the last tokens of the prompt are scored again with each choice, and count
        only where they have become others, which they do where prompt and choice grow together."""
        own: list[Any] = []
        start = 0
        if prompt:
            answer = await self._post("/generate", _scoring({"text": prompt}, 0) | extras)
            start = max(answer["meta_info"]["prompt_tokens"] - OVERLAP, 0)
            own = answer["meta_info"]["input_token_logprobs"][start:]
        body = {"text": [prompt + choice for choice in choices], "logprob_start_len": start}
        rows = [answer["input_token_logprobs"] for answer in await self._scored(body, extras)]
        return tuple(tuple(map(_logprob, _beyond(row, own))) for row in rows)

    async def _scored(self, body: dict[str, Any], extras: dict[str, Any]) -> list[dict[str, Any]]:
        """What is said of each text, its log-probabilities among it."""
        start = body.pop("logprob_start_len")
        answers = await self._post("/generate", _scoring(body, start) | extras)
        return [answer["meta_info"] for answer in answers]

    # ---- the cache ----

    async def warm(self, conversation: Conversation, options: GenOptions, hint: CacheHint) -> None:
        self._refuse_roles(conversation)
        if conversation.text:
            nothing = {"sampling_params": {"max_new_tokens": 0, "temperature": 0}}
            body = self._prompt(conversation) | _extras(options) | self._hint(hint)
            await self._post("/generate", body | nothing)

    async def flush_cache(self) -> None:
        try:
            self._checked(await self._http.post("/flush_cache"))
        except RadixgenError:
            raise
        except Exception as error:  # whatever the client raises, told in our words
            raise translated(error, self.who) from error

    async def server_info(self) -> Mapping[str, Any]:
        try:
            return await self._get("/server_info")
        except InvalidRequest:
            return await self._get("/get_server_info")


def _address(given: Any) -> str:
    """The server's address, which may be written without its scheme. Raises InvalidRequest."""
    if not isinstance(given, str) or not given.strip():
        message = f"base_url={shown(given)} is no address such as http://127.0.0.1:8000"
        raise InvalidRequest(message, "base_url")
    url = given.strip().rstrip("/")
    return url if "://" in url else f"http://{url}"


def _constraint(spec: GrammarSpec) -> dict[str, str]:
    """The sampling parameter of a constraint. Raises InvalidRequest for a kind it does not have."""
    if spec.kind == "choice":
        return {"regex": "|".join(map(re.escape, json.loads(spec.source)))}
    if spec.kind not in _GRAMMARS:
        raise InvalidRequest(
            f"the native HTTP API takes no {spec.kind} grammar: use GBNF, a regex or a JSON schema",
            "grammar",
        )
    return {_GRAMMARS[spec.kind]: spec.source}


def _sampling(gen: Gen) -> dict[str, Any]:
    options = gen.options
    params: dict[str, Any] = {
        _NAMES.get(name, name): getattr(options, name)
        for name in _SAME
        if getattr(options, name) is not None
    }
    checked: SamplingParams = options.sampling(max_tokens=max_tokens_of(gen))
    params["max_new_tokens"] = checked.max_tokens
    if checked.top_k:
        params["top_k"] = checked.top_k
    if stops(gen):
        params["stop"] = stops(gen)
    if options.logit_bias:
        params["logit_bias"] = {str(k): v for k, v in options.logit_bias.items()}
    return params | (_constraint(gen.grammar) if gen.grammar else {})


def _extras(options: GenOptions) -> dict[str, Any]:
    said = {
        "priority": options.priority,
        "extra_key": options.namespace,
        "lora_path": options.lora,
    }
    return {name: value for name, value in said.items() if value is not None}


def _scoring(prompt: Mapping[str, Any], start: int) -> dict[str, Any]:
    return {
        **prompt,
        "sampling_params": {"max_new_tokens": 0, "temperature": 0},
        "return_logprob": True,
        "logprob_start_len": start,
    }


def _logprob(entry: Sequence[Any]) -> float:
    """Of the very first token of a text there is none."""
    return 0.0 if entry[0] is None else float(entry[0])


def _beyond(row: Sequence[Any], own: Sequence[Any]) -> Sequence[Any]:
    """The entries after those that are still the prompt's own tokens."""
    same = 0
    while same < min(len(row) - 1, len(own)) and row[same][1] == own[same][1]:
        same += 1
    return row[same:]
