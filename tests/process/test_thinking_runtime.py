"""Thoughts through a whole runtime: apart from the answer, in results and in streams."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import CHATML, write_byte_tokenizer, write_tiny_model

import radixgen as rg
from radixgen import Runtime
from radixgen.types import FinishReason, GrammarSpec, Thinking

DIGITS = GrammarSpec("regex", "[0-9]{3}")
TAGS = Thinking(24, "<t>", "</t>")
SPECIAL = Thinking(8, end="<|im_start|>")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def runtime(model: Path) -> Iterator[Runtime]:
    with Runtime(model, num_pages=200, threads=1, check=True) as runtime:
        yield runtime


@pytest.mark.parametrize("thinking", [TAGS, SPECIAL])
def test_the_text_is_the_answer_and_the_thoughts_are_apart(
    runtime: Runtime, thinking: Thinking
) -> None:
    result = runtime.generate("Q: ", thinking=thinking, grammar=DIGITS, seed=3, max_tokens=60, n=4)
    for choice in result.choices:
        assert choice.text.isdigit()
        assert len(choice.text) == 3
        assert len(choice.token_ids) == choice.num_thought_tokens + 3
        assert 0 < choice.num_thought_tokens <= thinking.budget
        assert thinking.end not in choice.thoughts
        assert not choice.thoughts.startswith("<t>")
        assert choice.finish_reason is FinishReason.STOP
        ids = [i for i in choice.token_ids[: choice.num_thought_tokens] if i < 256]
        tagged = bytes(ids).decode("utf-8", "replace")
        end = "" if thinking is SPECIAL else thinking.end
        assert tagged == thinking.begin + choice.thoughts + end


def test_a_stream_gives_thoughts_before_the_answer(runtime: Runtime) -> None:
    asked: dict[str, Any] = {"thinking": TAGS, "grammar": DIGITS, "seed": 3, "max_tokens": 60}
    whole = runtime.generate("Q: ", **asked)
    pieces = list(runtime.generate("Q: ", stream=True, **asked))
    assert "".join(piece.thoughts for piece in pieces) == whole.thoughts
    assert "".join(piece.text for piece in pieces) == whole.text
    answered = [bool(piece.text) for piece in pieces]
    assert not any(piece.thoughts for piece in pieces[answered.index(True) + 1 :])


def test_a_budget_of_nothing_is_an_answer_at_once(runtime: Runtime) -> None:
    asked: dict[str, Any] = {"grammar": DIGITS, "seed": 3, "max_tokens": 20}
    none = runtime.generate("Q: ", thinking=Thinking(0, "<t>", "</t>"), **asked)
    assert none.thoughts == ""
    assert none.token_ids == runtime.generate("Q: ", **asked).token_ids


def test_a_constraint_that_is_over_ends_a_text_before_its_least_tokens(runtime: Runtime) -> None:
    for source, told in (('[""]', ""), ('["ab"]', "ab")):
        result = runtime.generate(
            "Q: ", grammar=GrammarSpec("choice", source), min_tokens=10, max_tokens=20
        )
        assert (result.text, result.choices[0].finish_reason) == (told, FinishReason.STOP)


def test_what_stops_an_answer_does_not_stop_thoughts(runtime: Runtime) -> None:
    asked: dict[str, Any] = {"thinking": TAGS, "seed": 5, "max_tokens": 50, "ignore_eos": True}
    plain = runtime.generate("Q: ", **asked)
    in_both = next(c for c in plain.text if c.isascii() and c in plain.thoughts)
    stopped = runtime.generate("Q: ", stop=in_both, **asked)
    assert stopped.thoughts == plain.thoughts
    assert stopped.text == plain.text.partition(in_both)[0]
    assert stopped.choices[0].stop_reason == in_both
    by_id = runtime.generate("Q: ", stop_token_ids=[ord(in_both)], **asked)
    assert (by_id.thoughts, by_id.text) == (stopped.thoughts, stopped.text)


def test_blanks_before_an_answer_stop_nothing(runtime: Runtime) -> None:
    lines = GrammarSpec("regex", "[ \n]{1,4}[a-z]{2}\n[a-z]{2}")
    result = runtime.generate(
        "Q: ", thinking=TAGS, grammar=lines, stop=["\n", " "], max_tokens=60, seed=2, n=3
    )
    for choice in result.choices:
        assert choice.text.strip().isalpha()
        assert choice.text[0].isspace()
        assert choice.stop_reason == "\n"


def test_least_tokens_count_thoughts(runtime: Runtime) -> None:
    """As `max_tokens` does: both are of the whole output."""
    asked: dict[str, Any] = {"thinking": TAGS, "seed": 5, "max_tokens": 50, "ignore_eos": True}
    plain = runtime.generate("Q: ", **asked)
    num_thoughts = plain.choices[0].num_thought_tokens
    first = plain.token_ids[num_thoughts]
    stopped = runtime.generate("Q: ", stop_token_ids=[first], min_tokens=num_thoughts, **asked)
    assert len(stopped.token_ids) == num_thoughts + 1
    later = runtime.generate("Q: ", stop_token_ids=[first], min_tokens=num_thoughts + 1, **asked)
    assert len(later.token_ids) > num_thoughts + 1


def test_thoughts_beyond_max_tokens_leave_room_for_the_answer(runtime: Runtime) -> None:
    result = runtime.generate(
        "Q: ", thinking=Thinking(1000, "<t>", "</t>"), grammar=DIGITS, max_tokens=20, seed=1
    )
    assert result.text.isdigit()
    assert len(result.token_ids) <= 20


def test_forced_text_after_thoughts_changes_no_token(runtime: Runtime, model: Path) -> None:
    fixed = GrammarSpec("regex", '\\{"answer": "[a-c]{2}", "done": true\\}')
    asked: dict[str, Any] = {"thinking": TAGS, "grammar": fixed, "max_tokens": 90, "temperature": 0}
    exact = runtime.generate("Q: ", logprobs=2, **asked)
    assert len(exact.choices[0].logprobs) == len(exact.token_ids)
    others = []
    for mode in ("off", "fast"):
        with Runtime(model, num_pages=100, threads=1, jump_forward=mode, check=True) as other:
            others.append(other.generate("Q: ", **asked))
    off, fast = others
    assert (off.token_ids, off.thoughts) == (exact.token_ids, exact.thoughts)
    assert re.fullmatch(fixed.source, fast.text)
    assert fast.thoughts == exact.thoughts


FORGETS = CHATML.replace("m.content }}", "m.content.split('</think>')[-1] }}")


@pytest.mark.parametrize("template", [CHATML, FORGETS])
def test_conversations_reuse_all_that_their_template_keeps(tmp_path: Path, template: str) -> None:
    """Where thoughts stay every turn computes its new tokens alone; where they go, the answers that
    were computed after them as well."""
    model = write_tiny_model(tmp_path, max_position_embeddings=2048)
    write_byte_tokenizer(model, template)
    drafts: Any = {"jump_forward": "off", "prompt_lookup": False, "suffix_drafts": False}

    @rg.function
    def program(s: Any) -> None:
        for turn in range(4):
            s += rg.user(f"Turn {turn}?")
            s += rg.assistant(rg.gen(f"x{turn}", regex="[0-9]{3}", thinking=30, max_tokens=60))

    with Runtime(model, page_size=1, num_pages=3000, threads=1, **drafts) as runtime:
        state = program.run(backend=runtime, temperature=0)
    known = 0
    for turn in range(4):
        meta = state.get_meta_info(f"x{turn}")
        assert meta["cached_tokens"] == known
        if template is CHATML:
            known = meta["prompt_tokens"] + meta["completion_tokens"] - 1
        else:
            known = meta["prompt_tokens"]
    assert (state.text().count("<think>") == 4) == (template is CHATML)
    tokenizer_text = bytes(i for i in state.executor.conversation.ids if i < 256).decode()
    marks = ("<|im_start|>", "<|im_end|>")
    plain = state.text()
    for mark in marks:
        plain = plain.replace(mark, "")
    assert plain.startswith(tokenizer_text)
