"""The header of a GGUF file: its metadata and where its tensors lie.

Knows bytes, nothing of models, tokenizers or arrays. The gguf library reads the same header, but
keeps one numpy array for each of some 100,000 vocabulary strings, which takes longer than loading
the weights; here a string is one slice.

    magic "GGUF" | version u32 | num_tensors u64 | num_pairs u64
    pairs:   key string, type u32, value          (string = length u64, bytes)
    tensors: name string, num_dims u32, dims u64 x num_dims, type u32, offset u64
    padding to `general.alignment`, then the tensors' bytes
"""

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radixgen.errors import ModelError, UnsupportedModel

_SCALARS: dict[int, str] = dict(
    zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True)
)
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor. `shape`: rows before columns. `offset`: bytes from the file's start."""

    name: str
    shape: tuple[int, ...]
    type_id: int  # a gguf.GGMLQuantizationType
    offset: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """`metadata`: str, int, float, bool or a list of one of them by key. `size`: header's bytes."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]
    size: int

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    @property
    def eos_ids(self) -> tuple[int, ...]:
        """The tokens that end a text, a turn or a message, as far as the file names them."""
        keys = ("eos_token_id", "eot_token_id", "eom_token_id")
        found = (self.token_id(key) for key in keys)
        return tuple(dict.fromkeys(token for token in found if token is not None))

    def token_id(self, key: str) -> int | None:
        """`tokenizer.ggml.<key>`. Raises ModelError when it is no id."""
        value = self.metadata.get(f"tokenizer.ggml.{key}")
        if value is None or (isinstance(value, int) and not isinstance(value, bool)):
            return value
        raise ModelError(f"{self.path} is damaged: tokenizer.ggml.{key} is {value!r}")


def read_header(path: Path) -> GgufHeader:
    """Parse the header of `path`.

    Raises ModelError, naming the file and the cause, when it cannot be read, is no GGUF, or ends
    early; UnsupportedModel for a version or byte order that is not read.
    """
    try:
        if path.stat().st_size == 0:
            raise ModelError(f"{path} is empty: it is no GGUF file; fetch it again")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(path, data).header()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from None
    except ValueError as error:  # mmap refuses an empty file; a string that is not UTF-8
        raise ModelError(f"{path} is not a usable GGUF file: {error}") from None


class _Reader:
    """A cursor over the mapped file that never reads past its end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.position = path, data, 0

    def header(self) -> GgufHeader:
        self._check_magic()
        num_tensors, num_pairs = self._scalar("Q"), self._scalar("Q")
        metadata: dict[str, Any] = {}
        for _ in range(num_pairs):
            key = self._string()
            metadata[key] = self._value(self._scalar("I"))
        raw = [self._tensor() for _ in range(num_tensors)]
        start = self._aligned(metadata.get("general.alignment", 32))
        tensors = {t.name: TensorInfo(t.name, t.shape, t.type_id, start + t.offset) for t in raw}
        if len(tensors) != len(raw):
            raise ModelError(f"{self.path} names a tensor twice; fetch the file again")
        return GgufHeader(self.path, metadata, tensors, start)

    def _check_magic(self) -> None:
        magic = self._take(4)
        if magic != b"GGUF":
            raise ModelError(f"{self.path} is not a GGUF file: it starts with {magic!r}")
        version = self._scalar("I")
        if version not in _VERSIONS:
            order = " (big-endian)" if version & 0xFFFF == 0 else ""
            raise UnsupportedModel(
                f"{self.path}: GGUF version {version}{order} is not read; little-endian 2 and 3 are"
            )

    def _take(self, count: int) -> bytes:
        end = self.position + count
        if end > len(self.data):
            raise ModelError(
                f"{self.path} is truncated: its header does not end before the file does, at byte"
                f" {len(self.data)}; fetch it again"
            )
        piece = self.data[self.position : end]
        self.position = end
        return piece

    def _scalar(self, code: str) -> Any:
        return struct.unpack("<" + code, self._take(struct.calcsize("<" + code)))[0]

    def _string(self) -> str:
        return self._take(self._scalar("Q")).decode("utf-8")

    def _value(self, type_id: int) -> Any:
        if type_id == _STRING:
            return self._string()
        if type_id == _ARRAY:
            return self._array(self._scalar("I"), self._scalar("Q"))
        return self._scalar(self._code(type_id))

    def _array(self, type_id: int, length: int) -> list[Any]:
        if type_id == _STRING:
            return [self._string() for _ in range(length)]
        code = self._code(type_id)
        piece = self._take(length * struct.calcsize("<" + code))
        return list(struct.unpack(f"<{length}{code}", piece))

    def _code(self, type_id: int) -> str:
        code = _SCALARS.get(type_id)
        if code is None:
            raise ModelError(f"{self.path} is damaged: value type {type_id} does not exist")
        return code

    def _tensor(self) -> TensorInfo:
        name = self._string()
        dims = self._array(10, self._scalar("I"))
        return TensorInfo(name, tuple(reversed(dims)), self._scalar("I"), self._scalar("Q"))

    def _aligned(self, alignment: Any) -> int:
        if not isinstance(alignment, int) or alignment < 1:
            raise ModelError(f"{self.path} is damaged: general.alignment is {alignment}")
        return -(-self.position // alignment) * alignment
