"""What can be known to be wrong with a constraint before it is sent. Knows grammars, no backend."""

import json
from functools import lru_cache

from radixgen.errors import InvalidGrammar
from radixgen.grammars.regex import parse
from radixgen.types import GrammarSpec

MEMO_SIZE = 1024


@lru_cache(MEMO_SIZE)
def check_constraint(spec: GrammarSpec) -> None:
    """Raises InvalidGrammar for a source that is not of its kind at all."""
    if spec.kind == "regex":
        parse(spec.source)
    elif spec.kind == "json_schema":
        _check_json_schema(spec.source)


def _check_json_schema(source: str) -> None:
    try:
        schema = json.loads(source)
    except ValueError as error:
        raise InvalidGrammar(f"the JSON schema is not JSON: {error}") from None
    if not isinstance(schema, dict | bool):
        raise InvalidGrammar(f"a JSON schema is an object or a bool, not {schema!r}")
