"""What bytes each token of a tokenizer stands for. Reads tables, never tokenizes.

Three kinds: byte-level BPE (GPT-2's printable alphabet), SentencePiece with byte fallback (a bar
for the blank, `<0x0A>` for a byte), and tiktoken-like tables of ranks that hold bytes already.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from radixgen.errors import InvalidRequest

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_BLANK = "\u2581"


@dataclass(frozen=True, slots=True)
class TokenTable:
    """The bytes of each id (None: none), and the ids that text never spells."""

    tokens: list[bytes | None]
    special_ids: tuple[int, ...]
    end_ids: tuple[int, ...]


@cache
def byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: the character that stands for each byte, to the byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {chr(byte): byte for byte in plain}
    others = [byte for byte in range(256) if byte not in set(plain)]
    alphabet.update((chr(256 + i), byte) for i, byte in enumerate(others))
    return alphabet


def read_tokenizer(source: Any) -> TokenTable:
    """The table of a tokenizer object, a tokenizer.json or a folder that has one."""
    if isinstance(source, Path):
        return _read_file(source)
    ends = _end_ids(source)
    ranks = getattr(source, "mergeable_ranks", None) or getattr(source, "_mergeable_ranks", None)
    if isinstance(ranks, Mapping):
        return _from_ranks(source, ranks, ends)
    fast = getattr(source, "backend_tokenizer", None) or getattr(source, "_tokenizer", None)
    fast = fast or source
    if not hasattr(fast, "to_str"):
        raise InvalidRequest(
            f"{type(source).__name__} is not a tokenizer whose bytes are known: pass a fast "
            f"tokenizer, a tokenizer.json, or Vocabulary.from_tokens",
            "tokenizer",
        )
    return read_json(json.loads(fast.to_str()), ends)


def _read_file(path: Path) -> TokenTable:
    folder = path if path.is_dir() else path.parent
    path = path / "tokenizer.json" if path.is_dir() else path
    try:
        tree = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"cannot read {path}: {error}", "tokenizer") from error
    table = read_json(tree, ())
    return TokenTable(table.tokens, table.special_ids, _configured_ends(folder, tree))


def _configured_ends(folder: Path, tree: dict[str, Any]) -> tuple[int, ...]:
    """The end token that tokenizer_config.json names beside the tokenizer, if it is there."""
    config = folder / "tokenizer_config.json"
    if not config.is_file():
        return ()
    end = json.loads(config.read_bytes()).get("eos_token")
    text = end.get("content") if isinstance(end, dict) else end
    return tuple(t["id"] for t in tree.get("added_tokens") or () if t["content"] == text)


def _end_ids(source: Any) -> tuple[int, ...]:
    end = getattr(source, "eos_token_id", None)
    if end is None:
        return ()
    return tuple(end) if isinstance(end, list | tuple) else (int(end),)


def _from_ranks(source: Any, ranks: Mapping[bytes, int], ends: tuple[int, ...]) -> TokenTable:
    special: Mapping[str, int] = (
        getattr(source, "special_tokens", None) or getattr(source, "_special_tokens", None) or {}
    )
    size = max([*ranks.values(), *special.values()], default=-1) + 1
    tokens: list[bytes | None] = [None] * size
    for data, i in ranks.items():
        tokens[i] = data
    ends = ends or tuple(special[name] for name in ("<|endoftext|>",) if name in special)
    return TokenTable(tokens, tuple(special.values()), ends)


def read_json(tree: dict[str, Any], ends: tuple[int, ...]) -> TokenTable:
    """The table of a parsed tokenizer.json."""
    entries = _entries(tree["model"])
    added = tree.get("added_tokens") or []
    size = max([*entries.values(), *(t["id"] for t in added)], default=-1) + 1
    spell = _speller(tree, entries)
    tokens: list[bytes | None] = [None] * size
    for text, i in entries.items():
        tokens[i] = spell(text)
    for token in added:
        tokens[token["id"]] = token["content"].encode()
    return TokenTable(tokens, tuple(t["id"] for t in added if t.get("special")), ends)


def _entries(model: dict[str, Any]) -> dict[str, int]:
    vocab = model.get("vocab")
    if isinstance(vocab, dict):
        return vocab
    if isinstance(vocab, list):  # Unigram: pairs of piece and score
        return {piece: i for i, (piece, _) in enumerate(vocab)}
    raise InvalidRequest(
        f"a tokenizer of type {model.get('type')!r} has no vocabulary", "tokenizer"
    )


def _speller(tree: dict[str, Any], entries: dict[str, int]) -> Any:
    kinds = set(_types(tree.get("decoder"))) | set(_types(tree.get("pre_tokenizer")))
    if "ByteLevel" in kinds:
        return _spell_byte_level
    if "WordPiece" in kinds:
        raise InvalidRequest(
            "a WordPiece tokenizer loses blanks and cannot be constrained", "tokenizer"
        )
    if "ByteFallback" in kinds or "Metaspace" in kinds or "<0x0A>" in entries:
        return _spell_piece
    raise InvalidRequest(
        "the tokenizer is neither byte-level BPE nor SentencePiece with byte fallback; "
        "build the vocabulary with Vocabulary.from_tokens",
        "tokenizer",
    )


def _types(part: Any) -> list[str]:
    """The type names of a decoder or pre-tokenizer and of everything in it."""
    if not isinstance(part, dict):
        return []
    inner = [*(part.get("decoders") or ()), *(part.get("pretokenizers") or ())]
    return [str(part.get("type")), *(name for item in inner for name in _types(item))]


def _spell_byte_level(text: str) -> bytes:
    alphabet = byte_alphabet()
    try:
        return bytes([alphabet[c] for c in text])
    except KeyError:  # a token added as plain text
        return text.encode()


def _spell_piece(text: str) -> bytes:
    byte = _BYTE_TOKEN.fullmatch(text)
    return bytes((int(byte[1], 16),)) if byte else text.replace(_BLANK, " ").encode()
