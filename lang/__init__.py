"""The language: programs that call a model many times and share what they have said."""

from radixgen.lang.api import (
    assistant,
    assistant_begin,
    assistant_end,
    function,
    gen,
    gen_int,
    gen_string,
    image,
    select,
    separate_reasoning,
    system,
    system_begin,
    system_end,
    user,
    user_begin,
    user_end,
    video,
)
from radixgen.lang.backends.default import flush_cache, get_server_info, set_default_backend
from radixgen.lang.choices import (
    greedy_token_selection,
    token_length_normalized,
    unconditional_likelihood_normalized,
)
from radixgen.lang.ir import ToolCall
from radixgen.lang.program import Program
from radixgen.lang.state import AsyncProgramState, ProgramState, ProgramStateGroup
from radixgen.lang.tools import call, describe

__all__ = [
    "AsyncProgramState",
    "Program",
    "ProgramState",
    "ProgramStateGroup",
    "ToolCall",
    "assistant",
    "assistant_begin",
    "assistant_end",
    "call",
    "describe",
    "flush_cache",
    "function",
    "gen",
    "gen_int",
    "gen_string",
    "get_server_info",
    "greedy_token_selection",
    "image",
    "select",
    "separate_reasoning",
    "set_default_backend",
    "system",
    "system_begin",
    "system_end",
    "token_length_normalized",
    "unconditional_likelihood_normalized",
    "user",
    "user_begin",
    "user_end",
    "video",
]
