"""Which tokens of an answer spell its text, so that a conversation continues from exactly them."""

from collections.abc import Sequence

from radixgen.tokenizer import Tokenizer


def spelled_ids(
    tokenizer: Tokenizer, text: str, token_ids: Sequence[int], stop_reason: str | int | None
) -> tuple[Sequence[int], str]:
    """The tokens that spell `text`, and the end of it that they do not.

    The token that ended the text (`stop_reason` is its id) is not part of it. A stop string may end
    inside a token: then only the whole tokens before it count, and the rest of the text is
    tokenised again.
    """
    ids = list(token_ids)
    if isinstance(stop_reason, int):
        return (ids[:-1] if ids and ids[-1] == stop_reason else ids), ""
    if stop_reason is None:
        return ids, ""
    data, spelled, count = text.encode(), 0, 0
    for token_id in ids:
        size = len(tokenizer.token_bytes(token_id))
        if spelled + size > len(data):
            break
        spelled, count = spelled + size, count + 1
    while True:  # a cut inside a character moves back to its beginning
        try:
            return ids[:count], data[spelled:].decode()
        except UnicodeDecodeError:
            count -= 1
            spelled -= len(tokenizer.token_bytes(ids[count]))
