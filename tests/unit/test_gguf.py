"""GGUF files: header, every tensor type against the gguf library, damage."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quants
from helpers import llama_gguf_shapes, random_blocks, write_tiny_gguf
from hypothesis import given, settings
from hypothesis import strategies as st

from radixgen.errors import ModelError, UnsupportedModel
from radixgen.gguf_header import read_header
from radixgen.kernels.linear import PackedWeight
from radixgen.kernels.linear import dequantize as dequantize_packed
from radixgen.model.gguf import open_gguf

QUANTISED = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")


def stored(kind: str, rows: int, columns: int) -> np.ndarray[Any, Any]:
    """Random values of a type as they lie in a file."""
    if kind in QUANTISED:
        return random_blocks(kind, rows, columns)
    values = np.random.default_rng(1).normal(size=(rows, columns)).astype(np.float32)
    result: np.ndarray[Any, Any] = quants.quantize(values, GGMLQuantizationType[kind])
    return result


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", *QUANTISED])
def test_every_type_equals_the_librarys(tmp_path: Path, kind: str) -> None:
    values = stored(kind, 1100, 512)  # more than one piece of the conversion
    path = write_tiny_gguf(tmp_path / "model.gguf", {"w": (kind, values)})
    expected = torch.from_numpy(quants.dequantize(values, GGMLQuantizationType[kind]))
    assert torch.isfinite(expected).all()
    file = open_gguf(path)
    assert file.shape("w") == (1100, 512)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        found = file.values("w", dtype)
        assert found.dtype == dtype
        assert torch.equal(found, expected.to(dtype))
    packed = file.packed("w")
    if kind in QUANTISED:
        assert isinstance(packed, PackedWeight)
        assert packed.kind == kind.lower()
        assert torch.equal(packed.data, torch.from_numpy(values))
        assert torch.equal(dequantize_packed(packed), expected)
    else:
        assert packed is None


def test_header_equals_the_librarys(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("a.u8", 200)
    writer.add_int8("a.i8", -3)
    writer.add_uint16("a.u16", 60_000)
    writer.add_int16("a.i16", -30_000)
    writer.add_int32("a.i32", -5)
    writer.add_uint64("a.u64", 2**63)
    writer.add_int64("a.i64", -(2**62))
    writer.add_float32("a.f32", 0.25)
    writer.add_float64("a.f64", 0.1)
    writer.add_bool("a.bool", True)
    writer.add_string("a.text", "xin chào 🦄")
    writer.add_array("a.ints", [1, -2, 3])
    writer.add_array("a.floats", [0.5, -0.5])
    writer.add_array("a.texts", ["", "é", "abc"])
    writer.add_tensor("one", np.arange(96, dtype=np.float32).reshape(2, 3, 16))
    writer.add_tensor("two", np.ones(5, np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header, reader = read_header(path), gguf.GGUFReader(path)
    theirs = {k: f.contents() for k, f in reader.fields.items() if not k.startswith("GGUF.")}
    assert header.metadata == theirs
    assert header.architecture == "llama"
    for tensor in reader.tensors:
        info = header.tensors[tensor.name]
        assert info.offset == tensor.data_offset
        assert info.shape == tuple(reversed(tensor.shape.tolist()))
        assert info.type_id == tensor.tensor_type
    assert torch.equal(open_gguf(path).values("two", torch.float32), torch.ones(5))


def small_file(folder: Path) -> Path:
    shapes = llama_gguf_shapes()
    tensors = {name: ("F32", np.zeros(shape, np.float32)) for name, shape in shapes.items()}
    return write_tiny_gguf(folder / "model.gguf", tensors)


def test_truncation_anywhere_is_told(tmp_path: Path) -> None:
    whole = small_file(tmp_path).read_bytes()
    size = read_header(tmp_path / "model.gguf").size
    cut = tmp_path / "cut.gguf"
    for end in [*range(5, size, 97), size, len(whole) // 2, len(whole) - 4]:
        cut.write_bytes(whole[:end])
        with pytest.raises(ModelError, match=r"cut\.gguf is truncated.*fetch it again"):
            open_gguf(cut)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_headers_never_raise_anything_else(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp()
    whole = folder / "model.gguf"
    if not whole.exists():
        small_file(folder)
    size = read_header(whole).size
    content = bytearray(whole.read_bytes()[: size + 64])
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, size - 1))] = data.draw(st.integers(0, 255))
    damaged = folder / "damaged.gguf"
    damaged.write_bytes(content)
    assert complaint(damaged) in (None, "damaged.gguf")


def complaint(path: Path) -> str | None:
    """The file that the error names, None when the header is read."""
    try:
        header = read_header(path)
        assert header.eos_ids is not None
    except ModelError as error:
        return path.name if str(path) in str(error) else str(error)
    return None


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (b"", "is empty"),
        (b"PK\x03\x04" + bytes(60), r"not a GGUF file: it starts with b'PK"),
        (b"GGUF" + (1).to_bytes(4, "little") + bytes(60), "GGUF version 1"),
        (b"GGUF" + (3).to_bytes(4, "big") + bytes(60), "big-endian"),
    ],
)
def test_other_files_are_told_apart(tmp_path: Path, content: bytes, what: str) -> None:
    path = tmp_path / "other.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=what):
        open_gguf(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"none\.gguf cannot be read: No such file"):
        open_gguf(tmp_path / "none.gguf")


def test_unsupported_types_are_named(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "model.gguf", {"w": ("Q2_K", np.zeros((2, 84), np.uint8))})
    with pytest.raises(
        UnsupportedModel, match=r"tensor w is of type Q2_K. Supported: F32, F16, BF16, Q4_0"
    ):
        open_gguf(path)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no tensor nonesuch"):
        open_gguf(small_file(tmp_path)).values("nonesuch", torch.float32)


def test_the_file_is_never_changed(tmp_path: Path) -> None:
    path = small_file(tmp_path)
    before = path.read_bytes()
    open_gguf(path).values("token_embd.weight", torch.float32).fill_(7.0)
    assert path.read_bytes() == before
