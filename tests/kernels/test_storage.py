"""Memory for weights: pieces of chunks."""

import pytest
import torch

from radixgen.kernels import storage


@pytest.fixture(autouse=True)
def new_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests do not depend on what others took."""
    monkeypatch.setattr(storage._State, "rest", torch.empty(0, dtype=torch.uint8))


def test_pieces_lie_beside_each_other_and_do_not_meet() -> None:
    pieces = [storage.take((3, 5), torch.bfloat16), storage.take((7,), torch.float32)]
    pieces.append(storage.take((2, 2), torch.uint8))
    for i, piece in enumerate(pieces):
        piece.fill_(i)
    for i, piece in enumerate(pieces):
        assert piece.is_contiguous()
        assert piece.data_ptr() % 64 == 0
        assert (piece == i).all()
    first, second = pieces[0].untyped_storage(), pieces[1].untyped_storage()
    assert first.data_ptr() == second.data_ptr()


@pytest.mark.parametrize("shape", [(0,), (0, 8), (storage.CHUNK_BYTES // 4 + 1,)])
def test_nothing_and_much(shape: tuple[int, ...]) -> None:
    before = storage.take((1,), torch.uint8)
    made = storage.take(shape, torch.uint8)
    after = storage.take((1,), torch.uint8)
    assert made.shape == shape
    assert before.untyped_storage().data_ptr() == after.untyped_storage().data_ptr()


def test_a_piece_taken_in_inference_mode_may_be_written_outside_of_it() -> None:
    with torch.inference_mode():
        made = storage.take((4,), torch.float32)
    made.fill_(1.0)
    assert made.sum() == 4.0
