"""Text to token ids and back: whole, piece by piece, and up to a stop string.

Knows tokenizers, nothing of models or requests. transformers renders chat templates and prepares a
model's tokenizer once (`tokenizer_files`); the work of every call is the tokenizers library's, so
that loading takes a fraction of a second and no torch.

    ids ──token_bytes──▶ bytes ──StopMatcher──▶ bytes ──UTF-8──▶ text        (IncrementalDecoder)

Stop strings are sought in bytes, before characters are put together: the runtime process, which
runs a StopMatcher on the bytes alone, and the frontend thus always agree.
"""

import codecs
import contextlib
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radixgen.errors import InvalidRequest, ModelError
from radixgen.tokenizer_files import PreparedTokenizer, prepare

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

Message = Mapping[str, Any]


class Tokenizer:
    """A model's tokenizer and chat template. Immutable; safe to share between threads."""

    def __init__(self, prepared: PreparedTokenizer) -> None:
        import tokenizers

        self._prepared = prepared
        content = (prepared.directory / "tokenizer.json").read_bytes()
        try:
            self._backend = tokenizers.Tokenizer.from_buffer(content)
        except Exception as error:  # the library raises plain Exception
            raise ModelError(f"{prepared.directory}/tokenizer.json is damaged: {error}") from None
        self._backend.no_truncation()
        self._backend.no_padding()
        self.vocab_size: int = max(self._backend.get_vocab().values(), default=-1) + 1
        self.eos_ids: tuple[int, ...] = prepared.eos_ids
        added = self._backend.get_added_tokens_decoder()
        self.special_ids: frozenset[int] = frozenset(
            i for i, token in added.items() if token.special
        )
        self._content = content

    @classmethod
    def load(cls, path: Path | str) -> "Tokenizer":
        """The tokenizer of a model directory or of a GGUF file.

        The first load of a model prepares it (seconds, for GGUF), later ones take 0.2 s.
        Raises ModelError when it is missing or damaged, UnsupportedModel when of another kind.
        """
        return cls(prepare(Path(path)))

    @cached_property
    def content_hash(self) -> str:
        """Changes whenever any id could mean something else: a key for caches of grammars."""
        eos = ",".join(map(str, self.eos_ids))
        return hashlib.sha256(self._content + eos.encode()).hexdigest()

    @cached_property
    def _bytes(self) -> tuple[bytes, ...]:
        """The bytes of every id, special ones as their text. [vocab_size]"""
        pieces: list[bytes] = [b""] * self.vocab_size
        spell = _byte_level if self._prepared.byte_level else _sentencepiece
        for token, token_id in self._backend.get_vocab().items():
            pieces[token_id] = spell(token)
        if not self._prepared.byte_level:  # there, added tokens are not spelled with metaspaces
            for token_id, added in self._backend.get_added_tokens_decoder().items():
                pieces[token_id] = _added(added.content)
        return tuple(pieces)

    # --- text to ids ---

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Ids of `text`, as transformers gives them. Special tokens in the text become their ids.

        Raises InvalidRequest for anything that is not valid Unicode text (a lone surrogate).
        """
        _check_text(text)
        # One text as a batch of one: without character offsets it takes half the time.
        encoded = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        return list(encoded[0].ids)

    def fewest_tokens(self, text: str) -> int:
        """A lower bound of len(encode(text)) that costs nothing: refuse a 10 MB prompt by it."""
        return len(text) // self._longest if self._keeps_all else 0

    @cached_property
    def _longest(self) -> int:
        return max(1, *map(len, self._bytes))

    @cached_property
    def _keeps_all(self) -> bool:
        """Whether every byte of a text ends up in a token: none is normalised or stripped away."""
        added = self._backend.get_added_tokens_decoder().values()
        strips = any(token.lstrip or token.rstrip for token in added)
        return self._prepared.byte_level and self._backend.normalizer is None and not strips

    # --- ids to text ---

    def token_bytes(self, token_id: int, special_text: bool = False) -> bytes:
        """What an id adds to a text, perhaps a part of a character.

        A special token adds b"", or its text with `special_text`; so does an id at or above
        vocab_size, which padded models have. Raises InvalidRequest for a negative id.
        """
        if token_id < 0:
            raise InvalidRequest(f"token id {token_id} is negative", "token_ids")
        if token_id >= self.vocab_size or (not special_text and token_id in self.special_ids):
            return b""
        return self._bytes[token_id]

    def decode(
        self, ids: Iterable[int], skip_special_tokens: bool = True, continuation: bool = False
    ) -> str:
        """The text of `ids`; bytes that are no UTF-8 become U+FFFD.

        continuation: the text follows other text, so a leading space that a sentencepiece
        vocabulary drops at the start of a text is kept.
        """
        joined = b"".join(self.token_bytes(i, not skip_special_tokens) for i in ids)
        if self.strips_first_space and not continuation:
            joined = joined.removeprefix(b" ")
        return joined.decode("utf-8", "replace")

    @property
    def strips_first_space(self) -> bool:
        """Whether a text's first space is only the vocabulary's way to mark the start of a word."""
        return self._prepared.strips_first_space

    # --- chat ---

    @cached_property
    def _chat(self) -> "PreTrainedTokenizerFast":
        from transformers import PreTrainedTokenizerFast

        loaded: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(
            self._prepared.directory, local_files_only=True
        )
        return loaded

    def warm_chat(self) -> None:
        """Load what renders conversations, so that the first of them need not: it takes a second,
        and several on a busy machine. May run in a thread."""
        with contextlib.suppress(Exception):  # the first conversation tells what is wrong
            self.render_chat([{"role": "user", "content": ""}])

    @property
    def has_chat_template(self) -> bool:
        return bool(self._chat.chat_template)

    @property
    def chat_template(self) -> str:
        """The source of the chat template; "" where there is none."""
        template = self._chat.chat_template
        if isinstance(template, dict):  # several by name
            template = template.get("default", "")
        return str(template or "")

    def render_chat(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **template: Any,
    ) -> str:
        """The prompt that the model's chat template makes of `messages`.

        template: variables of the template, and transformers' continue_final_message.
        Raises InvalidRequest when there is no template or it refuses the messages.
        """
        if not self.has_chat_template:
            raise InvalidRequest(
                "this model has no chat template: use text prompts, or a model made for chat",
                "messages",
            )
        _check_variables(template)
        try:
            rendered = self._chat.apply_chat_template(
                [dict(message) for message in messages],
                tools=[dict(tool) for tool in tools] if tools else None,
                add_generation_prompt=add_generation_prompt,
                tokenize=False,
                **template,
            )
        except Exception as error:  # templates raise through jinja whatever they like
            raise InvalidRequest(f"the chat template refused: {error}", "messages") from error
        return str(rendered)

    def chat(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **template: Any,
    ) -> list[int]:
        """Ids of `render_chat`; the template itself writes the special tokens."""
        text = self.render_chat(messages, add_generation_prompt, tools, **template)
        return self.encode(text, add_special_tokens=False)


# What transformers' apply_chat_template takes beside the variables of a template.
_RESERVED = {"conversation", "messages", "tools", "chat_template", "add_generation_prompt",
             "tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict",
             "return_assistant_tokens_mask", "tokenizer_kwargs"}  # fmt: skip


def _check_variables(template: Mapping[str, Any]) -> None:
    reserved = sorted(_RESERVED & template.keys())
    if reserved:
        raise InvalidRequest(f"{reserved[0]!r} is not a variable of chat templates", reserved[0])


def _check_text(text: str, param: str = "prompt") -> None:
    if not isinstance(text, str):
        raise InvalidRequest(f"a text is needed, not {type(text).__name__}", param)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"the text holds a lone surrogate, U+{ord(text[error.start]):04X}, at character"
            f" {error.start}: it is not valid Unicode",
            param,
        ) from None


def _byte_alphabet() -> dict[str, int]:
    """The characters with which byte-level vocabularies (GPT-2, 2019) write the 256 bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + index): byte for index, byte in enumerate(others)
    }


_ALPHABET = _byte_alphabet()
_BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")


def _byte_level(token: str) -> bytes:
    """A token that uses any other character stands for itself, as in the tokenizers library."""
    try:
        return bytes([_ALPHABET[character] for character in token])
    except KeyError:
        return _added(token)


def _sentencepiece(token: str) -> bytes:
    if _BYTE_TOKEN.fullmatch(token):
        return bytes.fromhex(token[3:5])
    return _added(token.replace("\u2581", " "))


def _added(token: str) -> bytes:
    return token.encode("utf-8", "surrogatepass")


class StopMatcher:
    """Finds the stop string that is complete first in a growing text, whatever pieces it comes in.

    Of several complete at the same byte the longest wins. Bytes that may be the start of a stop
    string are held back until that is decided. One Knuth-Morris-Pratt automaton a stop string, so
    a byte costs O(1) for each. Raises InvalidRequest for a stop string that is no valid Unicode.

    `after_blanks`: they count from the first character on that is no blank.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self.stopped: str | None = None  # the stop string found
        self.after_blanks = False
        self._patterns = [_Pattern(text) for text in stop]
        self._held = b""

    def push(self, data: bytes, armed: bool = True) -> bytes:
        """Append `data`; returns what is certain to be before any stop string, b"" once stopped.

        armed: False where a stop string must not end the text yet (min_tokens): it is passed over.
        """
        if self.stopped is not None:
            return b""
        if not self._patterns:
            return data
        if self.after_blanks:
            rest = data.lstrip()
            self.after_blanks = not rest
            blanks = self._feed(data[: len(data) - len(rest)], armed=False)
            return blanks + self._feed(rest, armed)
        return self._feed(data, armed)

    def _feed(self, data: bytes, armed: bool) -> bytes:
        text = self._held + data
        for position in range(len(self._held), len(text)):
            complete = self._advance(text[position])
            if complete and armed:
                return self._stop(text[: position + 1], complete)
        keep = len(text) - max(pattern.state for pattern in self._patterns)
        self._held = text[keep:]
        return text[:keep]

    def finish(self) -> bytes:
        """What was held back, now that nothing follows."""
        held, self._held = self._held, b""
        return held

    def _advance(self, byte: int) -> "_Pattern | None":
        """Feed one byte to every pattern; the longest that it completes."""
        complete: _Pattern | None = None
        for pattern in self._patterns:
            if pattern.advance(byte) and (
                complete is None or len(pattern.data) > len(complete.data)
            ):
                complete = pattern
        return complete

    def _stop(self, text: bytes, pattern: "_Pattern") -> bytes:
        self.stopped, self._held = pattern.text, b""
        return text[: len(text) - len(pattern.data)]


class _Pattern:
    """One stop string: `state` is how much of it the text ends with."""

    __slots__ = ("_fallback", "data", "state", "text")

    def __init__(self, text: str) -> None:
        _check_text(text, "stop")
        if not text:
            raise InvalidRequest("stop holds an empty string, which would stop at once", "stop")
        self.text, self.data, self.state = text, text.encode(), 0
        self._fallback = _fallbacks(self.data)

    def advance(self, byte: int) -> bool:
        """Whether `byte` completes the string; matching goes on behind a complete one."""
        data, state = self.data, self.state
        if state == len(data):
            state = self._fallback[state]
        while state and data[state] != byte:
            state = self._fallback[state]
        self.state = state + 1 if data[state] == byte else 0
        return self.state == len(data)


def _fallbacks(data: bytes) -> list[int]:
    """[i]: the longest proper suffix of data[:i] that is also its start."""
    fallback = [0, 0]
    for byte in data[1:]:
        length = fallback[-1]
        while length and data[length] != byte:
            length = fallback[length]
        fallback.append(length + 1 if data[length] == byte else 0)
    return fallback


class IncrementalDecoder:
    """The text of one sequence as its ids arrive.

    What `push` and `finish` return, put together, is `tokenizer.decode` of all ids, up to the first
    stop string. A character is given out when it is complete; bytes that can never become one give
    U+FFFD. The text's owner alone calls this; it is not shared between threads.

    continuation: as for `Tokenizer.decode`. min_tokens: stop strings that are complete before that
    many tokens are passed over. num_skipped: bytes at the beginning that are no part of the text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        skip_special_tokens: bool = True,
        stop: Sequence[str] = (),
        continuation: bool = False,
        min_tokens: int = 0,
        num_skipped: int = 0,
    ) -> None:
        self._tokenizer = tokenizer
        self._special_text = not skip_special_tokens
        self._matcher = StopMatcher(stop)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._at_start = tokenizer.strips_first_space and not continuation
        self._unarmed = min_tokens
        self._num_skipped = num_skipped

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the text, None while none has."""
        return self._matcher.stopped

    def pass_over(self, num_tokens: int) -> None:
        """Tokens before the text: no part of it, but they count among `min_tokens`. Blanks between
        them and the text stop nothing."""
        self._unarmed -= num_tokens
        self._matcher.after_blanks = True

    def push(self, ids: Iterable[int]) -> str:
        """The text that is certain after `ids`, without what earlier calls returned."""
        released = []
        for token_id in ids:
            piece = self._tokenizer.token_bytes(token_id, self._special_text)
            if self._num_skipped:
                skipped = min(self._num_skipped, len(piece))
                piece, self._num_skipped = piece[skipped:], self._num_skipped - skipped
            self._unarmed -= 1
            released.append(self._matcher.push(self._first_trimmed(piece), self._unarmed <= 0))
        return self._utf8.decode(b"".join(released))

    def finish(self) -> str:
        """What was held back, now that the sequence has ended."""
        return self._utf8.decode(self._matcher.finish(), final=True)

    def _first_trimmed(self, piece: bytes) -> bytes:
        if not self._at_start or not piece:
            return piece
        self._at_start = False
        return piece.removeprefix(b" ")
