"""The tokenizer against transformers' own, its bytes, its chat templates and its preparation."""

import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import CHATML, write_byte_tokenizer
from transformers import AutoTokenizer, LlamaTokenizer, PreTrainedTokenizerFast

from radixgen.errors import InvalidRequest, ModelError, ModelNotFound, UnsupportedModel
from radixgen.model.hub import resolve
from radixgen.tokenizer import StopMatcher, Tokenizer

PIECES = (
    "Xin chào, tôi tên là Nguyễn Thị Ngọc Ánh.", "Đường về quê hương", "thuở ấy",
    "Tie\u0302\u0301ng Vie\u0323\u0302t", "e\u0301\u0328", "नमस्ते", "สวัสดีครับ", "日本語のテキスト",
    "你好,世界。", "한국어 문장", "𠮷野家", "🦄",
    "👩\u200d👩\u200d👧", "🇻🇳", "👍🏽", "é", "ß", "\ufb01",
    "def f(x):\n    return x ** 2  # vuông\n", "for (;;) {\n\t\tprintf(\"%d\\n\", i);\n}",
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>", "</s>", " ", "  ", "   ", "\n", "\r\n",
    "\t", "\u00a0", "\u200b", "\u3000", "\x00", "\x7f", "0", "12345", "3.14159", "x  1", "  42",
    "e-mail@x.vn", "https://example.com/?q=%20", "Hello, world!", "don't", "I'LL", "\u2014", "…",
    "½", "①", "_", "####", "a", "Ω", "ж", "\u0301", "ﷺ", "\ufeff", "\ufffd",
)  # fmt: skip


def texts(count: int) -> Iterator[str]:
    """Lone pieces first, then random mixtures of them."""
    yield from PIECES
    chance = random.Random(7)
    for _ in range(count - len(PIECES)):
        chosen = chance.choices(PIECES, k=chance.randint(2, 8))
        yield chance.choice(("", " ", "\n")).join(chosen)


def vocabulary_of_bytes() -> dict[str, int]:
    """A sentencepiece vocabulary with every byte and a few merges."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens += ["\u2581", "a", "b", "h", "i", "\u2581h", "\u2581hi", "é", "\u2581\u2581"]
    return {token: index for index, token in enumerate(tokens)}


@pytest.fixture(scope="module")
def byte_level(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("byte_level")
    write_byte_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sentencepiece")
    merges = [("\u2581", "h"), ("\u2581h", "i"), ("\u2581", "\u2581")]
    loader: Any = LlamaTokenizer
    loader(vocab=vocabulary_of_bytes(), merges=merges).save_pretrained(folder)
    return folder


@pytest.fixture(params=["byte_level", "sentencepiece"])
def folder(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


def reference(folder: Path) -> Any:
    loader: Any = AutoTokenizer
    return loader.from_pretrained(folder, local_files_only=True)


def assert_same(ours: Tokenizer, theirs: Any, count: int) -> None:
    for text in texts(count):
        ids = ours.encode(text)
        assert ids == theirs.encode(text), text
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(
            text, add_special_tokens=False
        )
        for skip in (True, False):
            expected = theirs.decode(
                ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False
            )
            assert ours.decode(ids, skip) == expected, text


def test_ids_and_text_equal_the_reference(folder: Path) -> None:
    assert_same(Tokenizer.load(folder), reference(folder), 2000)


@pytest.mark.model
@pytest.mark.slow
def test_embedded_ids_and_text_equal_the_reference() -> None:
    """transformers' reading of the file, given the splitting that the vocabulary was made with."""
    from tokenizers import pre_tokenizers

    file = resolve().path
    loader: Any = AutoTokenizer
    theirs = loader.from_pretrained(file.parent, gguf_file=file.name)
    digits = pre_tokenizers.Digits(individual_digits=True)
    split = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    theirs.backend_tokenizer.pre_tokenizer = split
    ours = Tokenizer.load(file)
    assert_same(ours, theirs, 2000)
    messages = [{"role": "user", "content": "Xin chào 🦄"}]
    assert ours.chat(messages) == theirs.apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
    assert (ours.vocab_size, ours.eos_ids) == (49152, (2,))


@pytest.mark.model
def test_the_embedded_tokenizer_loads_without_torch() -> None:
    file = resolve().path
    Tokenizer.load(file)  # prepared from here on
    code = (
        "import sys; from radixgen.tokenizer import Tokenizer;"
        f"t = Tokenizer.load({str(file)!r}); t.token_bytes(300);"
        "t.chat([{'role': 'user', 'content': 'hi'}]); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_importing_is_light() -> None:
    code = (
        "import sys, radixgen.tokenizer;"
        "assert not {'torch', 'transformers', 'tokenizers', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_bytes_of_every_kind(byte_level: Path, sentencepiece: Path) -> None:
    level, pieces = Tokenizer.load(byte_level), Tokenizer.load(sentencepiece)
    assert [level.token_bytes(byte) for byte in range(256)] == [bytes([b]) for b in range(256)]
    assert [pieces.token_bytes(3 + byte) for byte in range(256)] == [bytes([b]) for b in range(256)]
    vocabulary = vocabulary_of_bytes()
    assert pieces.token_bytes(vocabulary["\u2581hi"]) == b" hi"
    assert pieces.token_bytes(vocabulary["é"]) == "é".encode()


def test_special_tokens_are_empty_or_their_text(byte_level: Path) -> None:
    tokenizer = Tokenizer.load(byte_level)
    assert (tokenizer.vocab_size, tokenizer.eos_ids) == (259, (258,))
    assert tokenizer.special_ids == {256, 257, 258}
    assert tokenizer.token_bytes(257) == b""
    assert tokenizer.token_bytes(257, special_text=True) == b"<|im_start|>"
    assert tokenizer.token_bytes(9999, special_text=True) == b""  # the padding of a model
    assert tokenizer.decode([104, 257, 105]) == "hi"
    assert tokenizer.decode([104, 257, 105], skip_special_tokens=False) == "h<|im_start|>i"
    with pytest.raises(InvalidRequest, match="token id -1 is negative"):
        tokenizer.token_bytes(-1)


def test_a_continuation_keeps_its_first_space(byte_level: Path, sentencepiece: Path) -> None:
    pieces = Tokenizer.load(sentencepiece)
    ids = [vocabulary_of_bytes()["\u2581hi"]]
    assert pieces.decode(ids) == "hi"
    assert pieces.decode(ids, continuation=True) == " hi"
    level = Tokenizer.load(byte_level)
    assert level.decode(level.encode(" hi")) == " hi"


@pytest.mark.parametrize("text", ["\ud800", "ok \udfff", "\udcff" * 3])
def test_lone_surrogates_are_refused(byte_level: Path, text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"lone surrogate, U\+D"):
        Tokenizer.load(byte_level).encode(text)


def test_other_types_are_refused(byte_level: Path) -> None:
    value: Any = b"bytes"
    with pytest.raises(InvalidRequest, match="a text is needed, not bytes"):
        Tokenizer.load(byte_level).encode(value)


def test_fewest_tokens_is_a_lower_bound(folder: Path) -> None:
    tokenizer = Tokenizer.load(folder)
    assert all(tokenizer.fewest_tokens(t) <= len(tokenizer.encode(t, False)) for t in texts(300))


@pytest.mark.model
@pytest.mark.slow
def test_megabytes_take_seconds() -> None:
    """Time that grew with the square of the length would be hours."""
    tokenizer = Tokenizer.load(resolve().path)
    tokenizer.token_bytes(300)  # the table of bytes is made once
    text = "The quick brown fox. " * 100_000
    started = time.perf_counter()
    assert tokenizer.fewest_tokens(text) > 20_000
    assert len(tokenizer.encode(text)) == 500_001
    assert time.perf_counter() - started < 120  # 1 s on a quiet machine


def test_chat_equals_the_reference(byte_level: Path) -> None:
    tokenizer = Tokenizer.load(byte_level)
    messages = [{"role": "system", "content": "Ngắn gọn."}, {"role": "user", "content": "Chào 🦄"}]
    text = tokenizer.render_chat(messages)
    assert text.endswith("Chào 🦄<|im_end|>\n<|im_start|>assistant\n")
    assert not tokenizer.render_chat(messages, add_generation_prompt=False).endswith("assistant\n")
    theirs = reference(byte_level).apply_chat_template(
        messages, add_generation_prompt=True, return_dict=False
    )
    assert tokenizer.chat(messages) == theirs
    assert tokenizer.chat(messages)[0] == 257


def test_templates_get_tools_and_variables(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path, "{{ tools[0].name }} {{ mood }} {{ messages | length }}")
    tokenizer = Tokenizer.load(tmp_path)
    messages = [{"role": "user", "content": "?"}]
    assert tokenizer.render_chat(messages, tools=[{"name": "clock"}], mood="calm") == "clock calm 1"


def test_arguments_of_transformers_are_no_variables(byte_level: Path) -> None:
    with pytest.raises(InvalidRequest, match="'chat_template' is not a variable"):
        Tokenizer.load(byte_level).render_chat([{"role": "user"}], chat_template="{{ 1 }}")


def test_a_missing_or_refusing_template_is_told(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "?"}]
    write_byte_tokenizer(tmp_path / "none", None)
    with pytest.raises(InvalidRequest, match="no chat template"):
        Tokenizer.load(tmp_path / "none").chat(messages)
    write_byte_tokenizer(tmp_path / "strict", "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(InvalidRequest, match="refused: roles must alternate"):
        Tokenizer.load(tmp_path / "strict").chat(messages)


def test_content_hash_follows_the_vocabulary(byte_level: Path, sentencepiece: Path) -> None:
    level = Tokenizer.load(byte_level)
    assert level.content_hash == Tokenizer.load(byte_level).content_hash
    assert level.content_hash != Tokenizer.load(sentencepiece).content_hash


# --- preparation ----------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RADIXGEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tokenizers"


def test_a_tokenizer_is_prepared_once(
    byte_level: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Tokenizer.load(byte_level)
    (folder,) = cache.iterdir()
    assert (folder / "radixgen.json").is_file()
    monkeypatch.setattr(PreTrainedTokenizerFast, "from_pretrained", None)  # not needed again
    assert Tokenizer.load(byte_level).content_hash == first.content_hash


def test_a_damaged_prepared_tokenizer_is_made_again(byte_level: Path, cache: Path) -> None:
    expected = Tokenizer.load(byte_level).encode("xin chào")
    (folder,) = cache.iterdir()
    for name, content in (
        ("tokenizer.json", b"{"),
        ("radixgen.json", b"\xff"),
        ("radixgen.json", b""),
    ):
        (folder / name).write_bytes(content)
        assert Tokenizer.load(byte_level).encode("xin chào") == expected
    assert [entry.name for entry in cache.iterdir()] == [folder.name]


def test_a_changed_model_is_prepared_anew(tmp_path: Path, cache: Path) -> None:
    write_byte_tokenizer(tmp_path / "model")
    assert Tokenizer.load(tmp_path / "model").eos_ids == (258,)
    (tmp_path / "model" / "generation_config.json").write_text('{"eos_token_id": [7, 8]}')
    assert Tokenizer.load(tmp_path / "model").eos_ids == (7, 8, 258)
    write_byte_tokenizer(tmp_path / "model", CHATML.replace("assistant", "bot"))
    changed = Tokenizer.load(tmp_path / "model")
    assert changed.render_chat([{"role": "user", "content": "?"}]).endswith("bot\n")


def test_an_unusable_cache_folder_is_told(
    byte_level: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("RADIXGEN_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"cannot be used .* set RADIXGEN_CACHE"):
        Tokenizer.load(byte_level)


def test_models_without_a_usable_tokenizer_are_told(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"has no tokenizer: tokenizer\.json, tokenizer\.model"):
        Tokenizer.load(tmp_path)
    with pytest.raises(ModelError, match=r"none\.gguf cannot be read"):
        Tokenizer.load(tmp_path / "none.gguf")
    write_byte_tokenizer(tmp_path / "cut")
    file = tmp_path / "cut" / "tokenizer.json"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(ModelError, match=r"tokenizer of .*cut cannot be read"):
        Tokenizer.load(tmp_path / "cut")


def test_other_kinds_of_tokenizer_are_refused(tmp_path: Path, cache: Path) -> None:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models

    backend = Backend(models.WordPiece(vocab={"[UNK]": 0, "a": 1}))
    backend.decoder = decoders.WordPiece()
    loader: Any = PreTrainedTokenizerFast
    loader(tokenizer_object=backend).save_pretrained(tmp_path / "model")
    with pytest.raises(UnsupportedModel, match="decodes by WordPiece"):
        Tokenizer.load(tmp_path / "model")


@pytest.mark.parametrize("width", [1, 2, 3, 50])
def test_blanks_before_a_text_stop_nothing_where_they_do_not_count(width: int) -> None:
    def stopped_at(text: bytes, stop: str) -> tuple[bytes, str | None]:
        matcher = StopMatcher((stop,))
        matcher.after_blanks = True
        found = b"".join(matcher.push(text[i : i + width]) for i in range(0, len(text), width))
        return found + matcher.finish(), matcher.stopped

    assert stopped_at(b" \n\nYes\nno", "\n") == (b" \n\nYes", "\n")
    assert stopped_at(b"\n\n\nYes\n\nno", "\n\n") == (b"\n\n\nYes", "\n\n")
    assert stopped_at(b"\n a", "\n a") == (b"", "\n a")  # it ends with what is no blank
    assert stopped_at(b" \n ", "\n") == (b" \n ", None)


def test_conversations_can_be_warmed_up(byte_level: Path, tmp_path: Path) -> None:
    ours = Tokenizer.load(byte_level)
    ours.warm_chat()
    assert "_chat" in vars(ours)
    for template in ("", "{% broken", "{{ raise_exception('no') }}"):
        folder = tmp_path / f"{len(template)}"
        shutil.copytree(byte_level, folder)
        (folder / "chat_template.jinja").write_text(template, "utf-8")
        Tokenizer.load(str(folder)).warm_chat()
