"""Token bytes from tokenizers, and the trie, against the plain definition of each."""

import json
from pathlib import Path
from typing import Any

import pytest

from radixgen.errors import InvalidRequest
from radixgen.grammars.token_bytes import byte_alphabet
from radixgen.grammars.vocabulary import Trie, Vocabulary

TOKENS: list[bytes | None] = [
    b"a",
    b"ab",
    b"abc",
    b"b",
    b"ab",
    None,
    b"",
    b"\xff\x00",
    b"ba",
    b"</s>",
]


def paths(trie: Trie) -> dict[bytes, int]:
    """Every node's bytes and token, read from the arrays."""
    path = bytearray()
    found = {}
    for node in range(1, len(trie)):
        del path[trie.depth[node] - 1 :]
        path.append(trie.byte[node])
        found[bytes(path)] = int(trie.token[node])
    return found


def test_the_trie_has_every_prefix_once_in_order() -> None:
    vocabulary = Vocabulary.from_tokens(TOKENS, [9])
    found = paths(vocabulary.trie)
    words = {t for t in TOKENS if t and t != b"</s>"}
    assert set(found) == {w[:n] for w in words for n in range(1, len(w) + 1)}
    assert list(found) == sorted(found)
    for word, token in found.items():
        wanted = [i for i, t in enumerate(TOKENS) if t == word]
        assert token == (wanted[0] if wanted else -1)


def test_subtree_sizes_lead_to_the_next_sibling() -> None:
    trie = Vocabulary.from_tokens(TOKENS, [9]).trie
    assert trie.size[0] == len(trie)
    for node in range(1, len(trie)):
        below = node + 1
        while below < len(trie) and trie.depth[below] > trie.depth[node]:
            below += 1
        assert trie.size[node] == below - node


def test_equal_tokens_are_chained() -> None:
    same = Vocabulary.from_tokens(TOKENS, [9]).same
    assert same[1] == 4
    assert [i for i, j in enumerate(same) if j >= 0] == [1]


def test_end_and_special_tokens_are_not_text() -> None:
    vocabulary = Vocabulary.from_tokens([b"a", b"<s>", b"</s>"], [2], [1])
    assert vocabulary.tokens == (b"a", None, None)
    assert list(paths(vocabulary.trie)) == [b"a"]


def test_the_hash_tells_vocabularies_apart() -> None:
    one = Vocabulary.from_tokens([b"ab", b"c", None], [2])
    assert one.hash == Vocabulary.from_tokens([b"ab", b"c", None], [2]).hash
    others = (
        Vocabulary.from_tokens([b"a", b"bc", None], [2]),
        Vocabulary.from_tokens([b"ab", b"c", None], [2], [0]),
        Vocabulary.from_tokens([b"ab", b"c", None, None], [3]),
    )
    assert len({v.hash for v in (one, *others)}) == 4


def test_size_pads_and_bad_ids_are_named() -> None:
    assert Vocabulary.from_tokens([b"a", None], [1], size=70).num_words == 3
    with pytest.raises(InvalidRequest, match="token 0 is a str"):
        Vocabulary.from_tokens(["a", None], [1])  # type: ignore[list-item]
    with pytest.raises(InvalidRequest, match="end_ids has 'x'"):
        Vocabulary.from_tokens([b"a", None], ["x"])  # type: ignore[list-item]
    with pytest.raises(InvalidRequest, match="end_ids has 2, but ids end at 1"):
        Vocabulary.from_tokens([b"a", None], [2])
    with pytest.raises(InvalidRequest, match="end token"):
        Vocabulary.from_tokens([b"a"], [])


def test_a_vocabulary_without_text_has_an_empty_trie() -> None:
    assert len(Vocabulary.from_tokens([None], [0]).trie) == 1


def write(folder: Path, model: dict[str, Any], **rest: Any) -> Path:
    added = [{"id": 4, "content": "</s>", "special": True}]
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({"model": model, "added_tokens": added, **rest}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    return path


def test_byte_level_bpe(tmp_path: Path) -> None:
    letters = {byte: char for char, byte in byte_alphabet().items()}

    def spell(data: bytes) -> str:
        return "".join(letters[b] for b in data)

    words = [b" the", b"\n\xc3", b"\x00", "\u00e9".encode()]
    path = write(
        tmp_path,
        {"type": "BPE", "vocab": {spell(w): i for i, w in enumerate(words)}},
        decoder={"type": "Sequence", "decoders": [{"type": "ByteLevel"}]},
    )
    vocabulary = Vocabulary.from_huggingface(path)
    assert vocabulary.tokens == (*words, None)
    assert vocabulary.end_ids == {4}
    assert Vocabulary.from_huggingface(str(tmp_path)).hash == vocabulary.hash


def test_sentencepiece_with_byte_fallback(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"type": "BPE", "vocab": {"\u2581the": 0, "<0x0A>": 1, "\u00e9": 2, "<0xC3>": 3}},
        decoder={"type": "Sequence", "decoders": [{"type": "Replace"}, {"type": "ByteFallback"}]},
    )
    vocabulary = Vocabulary.from_huggingface(path)
    assert vocabulary.tokens == (b" the", b"\n", "\u00e9".encode(), b"\xc3", None)


def test_a_unigram_model_lists_pairs(tmp_path: Path) -> None:
    pieces = [["\u2581a", -1.0], ["<0x41>", -2.0], ["b", -3.0], ["c", -4.0]]
    path = write(tmp_path, {"type": "Unigram", "vocab": pieces}, decoder={"type": "Metaspace"})
    assert Vocabulary.from_huggingface(path).tokens == (b" a", b"A", b"b", b"c", None)


def test_tiktoken_tables() -> None:
    class Encoding:
        _mergeable_ranks = {b"a": 0, b" b": 1, b"\xff": 2}  # noqa: RUF012
        _special_tokens = {"<|endoftext|>": 3}  # noqa: RUF012

    vocabulary = Vocabulary.from_huggingface(Encoding())
    assert vocabulary.tokens == (b"a", b" b", b"\xff", None)
    assert vocabulary.end_ids == {3}


def test_added_tokens_that_are_text_stay_text(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    added = [
        {"id": 1, "content": "<tool_call>", "special": False},
        {"id": 2, "content": "<eos>", "special": True},
    ]
    tree = {"model": {"vocab": {"a": 0}}, "added_tokens": added, "decoder": {"type": "ByteLevel"}}
    path.write_text(json.dumps(tree))
    vocabulary = Vocabulary.from_huggingface(path, end_ids=[2])
    assert vocabulary.tokens == (b"a", b"<tool_call>", None)


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="cannot read"):
        Vocabulary.from_huggingface(tmp_path / "absent.json")
    path = write(tmp_path, {"vocab": {"a": 0}}, decoder={"type": "WordPiece"})
    with pytest.raises(InvalidRequest, match="WordPiece"):
        Vocabulary.from_huggingface(path)
    with pytest.raises(InvalidRequest, match="not a tokenizer"):
        Vocabulary.from_huggingface(object())
