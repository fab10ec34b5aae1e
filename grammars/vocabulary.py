"""The tokens of a model as bytes, and the trie that every mask walks.

Knows byte strings and ids. Special tokens and end tokens stand apart: text never spells them, so
they are not in the trie; an end token is allowed where a grammar is complete, nothing else.
"""

import hashlib
import json
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from radixgen.errors import InvalidRequest
from radixgen.grammars.token_bytes import read_tokenizer

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Trie:
    """The distinct tokens as a trie, depth first; all arrays have one entry a node, the root first.

    A node's subtree is the `size` nodes from it on, so the next sibling of node i is i + size[i].
    """

    byte: NDArray[np.uint8]  # the byte that leads to the node; 0 at the root
    depth: Ints  # bytes from the root
    size: Ints  # nodes of the subtree, itself included
    token: Ints  # the first id that spells the node, or -1

    def __len__(self) -> int:
        return len(self.byte)


class Vocabulary:
    """Token ids to bytes, with its trie. Built by `from_tokens` or `from_huggingface`.

    `size` counts ids, those without bytes included: a mask has ceil(size / 32) words of 32 bits.
    """

    def __init__(
        self, tokens: Sequence[bytes | None], end_ids: frozenset[int], special_ids: frozenset[int]
    ) -> None:
        self.size = len(tokens)
        self.num_words = (self.size + 31) // 32
        self.end_ids = end_ids
        self.special_ids = special_ids
        self.tokens: tuple[bytes | None, ...] = tuple(
            None if not data or i in end_ids or i in special_ids else data
            for i, data in enumerate(tokens)
        )

    @classmethod
    def from_tokens(
        cls,
        tokens: Sequence[bytes | None],
        end_ids: Iterable[int],
        special_ids: Iterable[int] = (),
        size: int | None = None,
    ) -> "Vocabulary":
        """From the bytes of each id; None or b"" where an id has none. `size` pads with such ids.

        Raises InvalidRequest for ids out of range, for tokens that are not bytes and for a
        vocabulary without an end token.
        """
        given: Sequence[object] = tokens  # whatever a caller without types passes
        for i, token in enumerate(given):
            if not isinstance(token, bytes | None):
                message = f"token {i} is a {type(token).__name__}: give its bytes, or None"
                raise InvalidRequest(message, "tokens")
        padded = [*tokens, *([None] * ((size or 0) - len(tokens)))]
        ends, specials = frozenset(end_ids), frozenset(special_ids)
        if not ends:
            raise InvalidRequest("a vocabulary needs at least one end token", "end_ids")
        for name, ids in (("end_ids", ends), ("special_ids", specials)):
            wrong = [i for i in ids if not (_is_whole(i) and 0 <= i < len(padded))]
            if wrong:
                raise InvalidRequest(
                    f"{name} has {wrong[0]!r}, but ids end at {len(padded) - 1}", name
                )
        return cls(padded, ends, specials)

    @classmethod
    def from_huggingface(
        cls,
        tokenizer: Any,
        end_ids: Iterable[int] | None = None,
        size: int | None = None,
    ) -> "Vocabulary":
        """From a tokenizer object or the path of a tokenizer.json (or of the folder it is in).

        Understands byte-level BPE, SentencePiece with byte fallback and tiktoken-like tables.
        `end_ids` None: the tokenizer's own end token. `size`: how many logits the model has, where
        that is more. Raises InvalidRequest for other kinds of tokenizer and for one without an end.
        """
        source = Path(tokenizer) if isinstance(tokenizer, str) else tokenizer
        table = read_tokenizer(source)
        ends = table.end_ids if end_ids is None else tuple(end_ids)
        if not ends:
            raise InvalidRequest("the tokenizer names no end token; pass end_ids", "end_ids")
        return cls.from_tokens(table.tokens, ends, table.special_ids, size)

    @cached_property
    def hash(self) -> str:
        """A digest of every token, end and special id: equal for equal vocabularies."""
        digest = hashlib.sha256()
        digest.update(json.dumps([sorted(self.end_ids), sorted(self.special_ids)]).encode())
        digest.update(np.array([len(t or b"") for t in self.tokens], np.int32).tobytes())
        digest.update(b"".join(t for t in self.tokens if t))
        return digest.hexdigest()

    @cached_property
    def _sorted(self) -> list[tuple[bytes, int]]:
        return sorted((data, i) for i, data in enumerate(self.tokens) if data)

    @cached_property
    def trie(self) -> Trie:
        return build_trie(self._sorted)

    @cached_property
    def same(self) -> Ints:
        """By id: the next id with the same bytes, or -1. [size]"""
        following = np.full(self.size, -1, np.int32)
        for (data, i), (next_data, j) in zip(self._sorted, self._sorted[1:], strict=False):
            if data == next_data:
                following[i] = j
        return following

    @cached_property
    def max_length(self) -> int:
        """Bytes of the longest token."""
        return max((len(t) for t in self.tokens if t), default=0)

    def __len__(self) -> int:
        return self.size


def build_trie(pairs: list[tuple[bytes, int]]) -> Trie:
    """The trie of (bytes, id) pairs sorted by bytes; of equal bytes the first id stands."""
    unique = [p for i, p in enumerate(pairs) if i == 0 or p[0] != pairs[i - 1][0]]
    data = np.frombuffer(b"".join(t for t, _ in unique), np.uint8)
    length = np.array([len(t) for t, _ in unique], np.int64)
    start = np.cumsum(length) - length
    shared = _shared_prefix(data, start, length)
    new = length - shared  # nodes that each token adds: all but the prefix it shares
    total = int(new.sum())
    owner = np.repeat(np.arange(len(unique)), new)
    step = np.arange(total) - np.repeat(np.cumsum(new) - new, new)
    depth = np.concatenate(([0], shared[owner] + step + 1)).astype(np.int32)
    byte = np.concatenate(([0], data[start[owner] + depth[1:] - 1])).astype(np.uint8)
    token = np.full(total + 1, -1, np.int32)
    token[np.cumsum(new)] = [i for _, i in unique]
    return Trie(byte, depth, _subtree_sizes(depth), token)


def _shared_prefix(
    data: NDArray[np.uint8], start: NDArray[np.int64], length: NDArray[np.int64]
) -> NDArray[np.int64]:
    """How many bytes each token shares with the one before it."""
    shared = np.zeros(len(length), np.int64)
    live = np.arange(1, len(length))
    at = 0
    while len(live):
        live = live[(length[live] > at) & (length[live - 1] > at)]
        live = live[data[start[live] + at] == data[start[live - 1] + at]]
        at += 1
        shared[live] = at
    return shared


@dataclass(frozen=True, slots=True)
class TokenCuts:
    """Tokens, and places within each: `places` from first[i] to first[i + 1] are of tokens[i]."""

    tokens: "array[int]"
    first: "array[int]"
    places: "array[int]"


def _subtree_sizes(depth: Ints) -> Ints:
    """Distance from each node to the next one that is not deeper."""
    size = np.empty(len(depth), np.int32)
    open_nodes: list[int] = []
    end_of = [0] * len(depth)
    for node, level in enumerate(depth.tolist()):
        while len(open_nodes) > level:
            end_of[open_nodes.pop()] = node
        open_nodes.append(node)
    for node in open_nodes:
        end_of[node] = len(depth)
    size[:] = end_of
    size -= np.arange(len(depth), dtype=np.int32)
    return size


def _is_whole(value: object) -> bool:
    """Whether it is a whole number of Python's or of numpy's."""
    return isinstance(value, Integral)
