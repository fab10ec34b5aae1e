"""Makes one form of every model's tokenizer: a folder that loads fast and without torch.

    <cache>/tokenizers/<key>/tokenizer.json          the whole tokenizer, for the tokenizers library
                             tokenizer_config.json   special tokens and ...
                             chat_template.jinja     ... chat template, for transformers
                             radixgen.json           what the two above do not say (end tokens)

transformers reads the model's own files (or the GGUF header) and knows what they mean; its result
is saved here. `key` is a hash of those files: a changed model is prepared anew. Knows no texts.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from radixgen import env
from radixgen.errors import ModelError, ModelNotFound, RadixgenError, UnsupportedModel
from radixgen.gguf_header import GgufHeader, read_header

if TYPE_CHECKING:
    import tokenizers
    from transformers import PreTrainedTokenizerFast

_FORMAT = "1"  # of the folder; part of the key
_NOTES = "radixgen.json"
_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json")
_SOURCES = (*_VOCABULARIES, "merges.txt", "tokenizer_config.json", "special_tokens_map.json",
            "added_tokens.json", "chat_template.jinja", "chat_template.json", "config.json",
            "generation_config.json")  # fmt: skip
_AS_IT_IS = (
    "PreTrainedTokenizerFast",
    "TokenizersBackend",
)  # classes that change no tokenizer.json


@dataclass(frozen=True, slots=True)
class PreparedTokenizer:
    """A prepared folder and what is known of it.

    byte_level: tokens spell bytes in the GPT-2 alphabet, else as sentencepiece does ("\u2581" is a
    space, <0xNN> a byte). strips_first_space: decoding drops one space at a text's start.
    """

    directory: Path
    eos_ids: tuple[int, ...]
    byte_level: bool
    strips_first_space: bool


def prepare(path: Path) -> PreparedTokenizer:
    """The prepared tokenizer of a model directory or GGUF file, from the cache or made now.

    Raises ModelNotFound or ModelError naming what is missing or damaged, UnsupportedModel for a
    tokenizer that is neither byte-level nor sentencepiece.
    """
    if path.is_dir():
        return _cached(_directory_key(path), lambda: _from_directory(path))
    header = read_header(path)
    return _cached(_gguf_key(header), lambda: _from_gguf(header))


# --- the cache ------------------------------------------------------------------------------------


def _key(parts: list[bytes]) -> str:
    digest = hashlib.sha256()
    for part in (_FORMAT.encode(), version("transformers").encode(), *parts):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:32]


def _directory_key(directory: Path) -> str:
    if not any((directory / name).is_file() for name in _VOCABULARIES):
        raise ModelNotFound(
            f"{directory} has no tokenizer: {', '.join(_VOCABULARIES[:-1])} or {_VOCABULARIES[-1]}"
            " is needed"
        )
    parts: list[bytes] = []
    for name in _SOURCES:
        file = directory / name
        if file.is_file():
            parts += [name.encode(), _read(file)]
    return _key(parts)


def _gguf_key(header: GgufHeader) -> str:
    with header.path.open("rb") as file:
        return _key([file.read(header.size)])


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror or error}") from None


@dataclass(frozen=True, slots=True)
class _Converted:
    """A tokenizer as transformers made it, and the end tokens of its model."""

    tokenizer: "PreTrainedTokenizerFast"
    eos_ids: tuple[int, ...]


def _cached(key: str, convert: Callable[[], _Converted]) -> PreparedTokenizer:
    target = env.cache_folder() / "tokenizers" / key
    found = _load_notes(target)
    if found is not None:
        return found
    converted = convert()
    try:
        return _store(converted, target)
    except OSError as error:
        raise ModelError(
            f"the cache folder {target.parent} cannot be used ({error}); free some space there or"
            " set RADIXGEN_CACHE to another folder"
        ) from None


def _load_notes(target: Path) -> PreparedTokenizer | None:
    """None unless the folder is whole: notes that can be read and a tokenizer of the noted size."""
    try:
        notes = json.loads((target / _NOTES).read_text("utf-8"))
        if (target / "tokenizer.json").stat().st_size != notes["size"]:
            return None
        eos_ids = tuple(notes["eos_ids"])
        return PreparedTokenizer(target, eos_ids, notes["byte_level"], notes["strips_first_space"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _store(converted: _Converted, target: Path) -> PreparedTokenizer:
    """Write the folder beside its place, then rename it; another process may be first."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix="part-") as scratch:
        part = Path(scratch) / "tokenizer"
        converted.tokenizer.save_pretrained(part)
        _write_notes(converted, part)
        if _load_notes(target) is None:
            shutil.rmtree(target, ignore_errors=True)
            with suppress(OSError):  # someone else's stands there now
                part.rename(target)
    stored = _load_notes(target)
    if stored is None:
        raise ModelError(f"{target} cannot be written: delete it, or set RADIXGEN_CACHE")
    return stored


def _write_notes(converted: _Converted, part: Path) -> None:
    content = (part / "tokenizer.json").read_bytes()
    byte_level, strips = _spelling(json.loads(content))
    notes = {
        "size": len(content),
        "eos_ids": converted.eos_ids,
        "byte_level": byte_level,
        "strips_first_space": strips,
    }
    (part / _NOTES).write_text(json.dumps(notes), "utf-8")


def _spelling(content: dict[str, Any]) -> tuple[bool, bool]:
    """(byte_level, strips_first_space) as the decoder of a tokenizer.json says."""
    decoder = content.get("decoder") or {}
    steps = decoder.get("decoders", [decoder])
    kinds = {step.get("type") for step in steps}
    if "ByteLevel" in kinds:
        return True, False
    if not kinds & {"ByteFallback", "Metaspace"}:
        raise UnsupportedModel(
            f"the tokenizer decodes by {', '.join(sorted(map(str, kinds)))}; byte-level and"
            " sentencepiece ones are supported"
        )
    strips = any(step.get("type") == "Strip" and step.get("start", 0) > 0 for step in steps)
    metaspace = any(
        step.get("type") == "Metaspace" and step.get("prepend_scheme", "always") != "never"
        for step in steps
    )
    return False, strips or metaspace


# --- what transformers makes of a model's files ---------------------------------------------------


def _from_directory(directory: Path) -> _Converted:
    config = _json(directory / "tokenizer_config.json")
    plain = config.get("tokenizer_class") in _AS_IT_IS and (directory / "tokenizer.json").is_file()
    tokenizer = _load(str(directory), directory, plain)
    named = _json(directory / "generation_config.json").get("eos_token_id")
    if named is None:
        named = _json(directory / "config.json").get("eos_token_id")
    ids = named if isinstance(named, list) else [named]
    return _Converted(tokenizer, _unique(*ids, tokenizer.eos_token_id))


def _from_gguf(header: GgufHeader) -> _Converted:
    path = header.path
    if "tokenizer.ggml.model" not in header.metadata:
        raise ModelError(f"{path} holds no tokenizer (no key tokenizer.ggml.model)")
    tokenizer = _load(str(path.parent), path, False, gguf_file=path.name)
    _correct(tokenizer.backend_tokenizer, str(header.metadata.get("tokenizer.ggml.pre", "")))
    return _Converted(tokenizer, _unique(*header.eos_ids, tokenizer.eos_token_id))


def _correct(backend: "tokenizers.Tokenizer", kind: str) -> None:
    """Where transformers takes GPT-2's splitting for a GGUF vocabulary that was made with another.

    SmolLM's vocabulary was made with single digits, which matters for spaces before them; Qwen2's
    with composed characters (NFC).
    """
    from tokenizers import normalizers, pre_tokenizers

    if kind == "smollm":
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False),
            ]
        )
    if kind == "qwen2":
        backend.normalizer = normalizers.NFC()


def _load(name: str, source: Path, plain: bool, **options: Any) -> "PreTrainedTokenizerFast":
    """A plain tokenizer.json needs no look-up of classes, which would load torch."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    loader: Any = PreTrainedTokenizerFast if plain else AutoTokenizer
    try:
        tokenizer = loader.from_pretrained(name, local_files_only=True, **options)
    except RadixgenError:
        raise
    except Exception as error:  # transformers and tokenizers raise whatever they like
        raise ModelError(f"the tokenizer of {source} cannot be read: {error}") from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise UnsupportedModel(
            f"{source}: tokenizers of class {type(tokenizer).__name__} are not supported; save it"
            " with a tokenizer.json"
        )
    return tokenizer


def _json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        content = json.loads(_read(file))
    except ValueError as error:
        raise ModelError(f"{file} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ModelError(f"{file} does not hold a JSON object")
    return content


def _unique(*ids: Any) -> tuple[int, ...]:
    return tuple(dict.fromkeys(int(token) for token in ids if token is not None))
