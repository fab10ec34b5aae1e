"""What is checked of a prompt's ids before they leave."""

from array import array

import pytest

from radixgen.errors import InvalidRequest, PromptTooLong
from radixgen.messages import Ready
from radixgen.options import LONG_IDS, check_prompt, token_ids

READY = Ready("r", "model", 256, 10 * LONG_IDS, 8, 16, 1)


@pytest.mark.parametrize("num_ids", [2, LONG_IDS - 1, LONG_IDS, 10 * LONG_IDS])
def test_an_id_outside_the_vocabulary_is_named(num_ids: int) -> None:
    ids = array("i", [7]) * num_ids
    check_prompt("prompt", ids, READY, 0)
    for wrong in (-1, 256):
        ids[num_ids // 2] = wrong
        with pytest.raises(InvalidRequest, match=f"token id {wrong}; the vocabulary is 0 to 255"):
            check_prompt("prompt", ids, READY, 0)


def test_a_prompt_that_does_not_fit_is_too_long() -> None:
    ids = array("i", [7]) * (10 * LONG_IDS)
    with pytest.raises(PromptTooLong, match="shorten it"):
        check_prompt("prompt", ids, READY, 1)
    with pytest.raises(InvalidRequest, match="is empty"):
        check_prompt("prompt", array("i"), READY, 0)


def test_ids_are_taken_as_they_come() -> None:
    ids = array("i", [1, 2, 3])
    assert token_ids("prompt", ids) is ids
    assert token_ids("prompt", [1, 2, 3]) == token_ids("prompt", (1, 2, 3)) == ids
    assert token_ids("prompt", array("q", [1, 2, 3])) == ids
    for wrong in ([1, "2"], [1, 2**31], array("d", [1.0])):
        with pytest.raises(InvalidRequest, match="neither text nor a token id"):
            token_ids("prompt", wrong)  # type: ignore[arg-type]
