"""The tokenizer of a server's model, where its files are on this machine.

A server names its model; what lies here under that name may be another. So whatever is found is
compared with the server's own answer before it is used. Knows no requests.
"""

import pkgutil
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from radixgen import env
from radixgen.errors import InvalidRequest, RadixgenError
from radixgen.tokenizer import Tokenizer

Post = Callable[[str, Mapping[str, Any]], Awaitable[Any]]
"""(path, body) -> the server's answer."""

# By name, because models are no business of this layer.
_EMBEDDED = "radixgen.model.embedded:EMBEDDED"
PROBE = "Grüße: 12+3 = 15?\n\n\tfunction(x) 'tokenization' 你好 🙂"


def find_files(info: Mapping[str, Any]) -> Path | None:
    """Where the files of a server's model are on this machine, by what it says of itself."""
    for key in ("tokenizer_path", "model_path"):
        name = str(info.get(key) or "")
        if not name:
            continue
        if Path(name).exists():
            return Path(name)
        found = _in_hub_cache(name) if name.count("/") == 1 else _embedded(name)
        if found is not None:
            return found
    return None


def _embedded(name: str) -> Path | None:
    embedded = pkgutil.resolve_name(_EMBEDDED)
    file = env.cache_folder() / "models" / str(embedded.file_name)
    return file if name == embedded.name and file.exists() else None


def _in_hub_cache(repository: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(repository, "tokenizer.json")
    except HFValidationError:
        return None
    return Path(found).parent if isinstance(found, str) else None


async def load_same(
    given: str | Path | None, info: Mapping[str, Any], post: Post, who: str
) -> Tokenizer | None:
    """The tokenizer at `given`, else one found by the server's `info`, else None.

    Raises InvalidRequest when `given` is another one than the server's, which would make nonsense
    of every prompt; one that was merely found is passed over then.
    """
    place = given or find_files(info)
    if place is None:
        return None
    try:
        tokenizer = Tokenizer.load(Path(place))
    except RadixgenError:
        if given is not None:
            raise
        return None
    if await _agrees(tokenizer, post):
        return tokenizer
    if given is not None:
        raise InvalidRequest(
            f"tokenizer={str(given)!r} is not the one of {who}: they read the same text as "
            "different tokens; give the path of its model",
            "tokenizer",
        )
    return None


async def _agrees(tokenizer: Tokenizer, post: Post) -> bool:
    """Whether the server reads a text as the same tokens. One that does not say is believed."""
    try:
        answer = await post("/tokenize", {"prompt": PROBE, "add_special_tokens": False})
    except InvalidRequest:  # it has no such route
        return True
    tokens = answer.get("tokens") if isinstance(answer, Mapping) else None
    return not isinstance(tokens, list) or tokens == tokenizer.encode(
        PROBE, add_special_tokens=False
    )
