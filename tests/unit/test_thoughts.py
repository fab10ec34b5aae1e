"""The text of thoughts from their tokens, and the names that models' tags go by."""

import pytest
from helpers import write_byte_tokenizer

from radixgen.errors import InvalidRequest
from radixgen.thoughts import (
    EFFORTS,
    PARSERS,
    THINK,
    Tags,
    effort_budget,
    parser_tags,
    template_tags,
    thought_decoder,
)
from radixgen.tokenizer import Tokenizer
from radixgen.types import Thinking

UNICODE = "caf\u00e9 \U0001f914 \u4e2d\u6587 </thin"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path = tmp_path_factory.mktemp("tokenizer")
    write_byte_tokenizer(path, merges=[("k", ">"), ("<", "/")])
    return Tokenizer.load(path)


@pytest.mark.parametrize("begin", ["", "<think>", "\u25c1t\u25b7"])
@pytest.mark.parametrize("width", [1, 2, 7, 1000])
def test_tags_are_cut_off_wherever_tokens_cut_them(
    tokenizer: Tokenizer, begin: str, width: int
) -> None:
    decoder = thought_decoder(tokenizer, Thinking(99, begin, "</think>"))
    ids = tokenizer.encode(f"{begin}{UNICODE}</think>", add_special_tokens=False)
    text = "".join(decoder.push(ids[i : i + width]) for i in range(0, len(ids), width))
    assert text == UNICODE
    assert decoder.finish() == ""


def test_thoughts_that_are_cut_keep_what_may_have_been_a_tag(tokenizer: Tokenizer) -> None:
    decoder = thought_decoder(tokenizer, Thinking(99, "<think>", "</think>"))
    ids = tokenizer.encode(f"<think>{UNICODE}", add_special_tokens=False)
    assert decoder.push(ids) + decoder.finish() == UNICODE


def test_a_special_token_may_be_spelled_as_text_before_it_ends_thoughts(
    tokenizer: Tokenizer,
) -> None:
    thinking = Thinking(99, "", "<|im_start|>")
    ids = [*b"so <|im_start|> is text", *tokenizer.encode("<|im_start|>", False)]
    decoder = thought_decoder(tokenizer, thinking)
    assert decoder.push(ids) + decoder.finish() == "so <|im_start|> is text"


def test_parsers_by_their_names_and_templates_by_their_tags() -> None:
    assert parser_tags("deepseek_r1", "x") == parser_tags("qwen3", "x") == THINK
    assert template_tags("{{ '◁/think▷' }}") == Tags("◁think▷", "◁/think▷")
    assert template_tags("{{ content }}") is None
    assert all(tags.begin != tags.end for tags in PARSERS.values())
    with pytest.raises(InvalidRequest, match="parser='gpt-oss' is none of deepseek-r1, "):
        parser_tags("gpt-oss", "parser")


def test_an_effort_leaves_half_of_the_output() -> None:
    assert effort_budget("high", None) == EFFORTS["high"]
    assert effort_budget("high", 100) == 50
    assert effort_budget("minimal", 100_000) == EFFORTS["minimal"]
