"""Token healing from text to text: the client backs off, the runtime begins with the bytes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import write_byte_tokenizer, write_tiny_model

import radixgen as rg
from radixgen import InvalidRequest, Runtime
from radixgen.types import GrammarSpec, Thinking

MERGES = [("c", "a"), ("ca", "t"), ("cat", "s"), (":", "/"), (":/", "/")]
PIECES = [*(bytes([i]) for i in range(256)), *("".join(pair).encode() for pair in MERGES)]
NUM_SPECIAL = 3


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model whose tokenizer joins some bytes: ids 256 on, the special tokens behind them."""
    path = tmp_path_factory.mktemp("model")
    size = len(PIECES) + NUM_SPECIAL
    write_tiny_model(path, vocab_size=size, eos_token_id=size - 1)
    write_byte_tokenizer(path, merges=MERGES)
    return path


@pytest.fixture(scope="module")
def runtime(model: Path) -> Iterator[Runtime]:
    with Runtime(model, num_pages=200, threads=1) as runtime:
        yield runtime


def expected(model: Path, prompt: list[int], data: bytes, count: int) -> list[int]:
    """Greedy tokens that begin with `data`, by transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    loader: Any = AutoModelForCausalLM
    reference = loader.from_pretrained(model).eval()
    found: list[int] = []
    for _ in range(count):
        with torch.no_grad():
            logits = reference(torch.tensor([[*prompt, *found]])).logits[0, -1]
        if data:
            fits = [i for i, p in enumerate(PIECES) if p.startswith(data) or data.startswith(p)]
            found.append(max(fits, key=lambda i: float(logits[i])))
            data = data[len(PIECES[found[-1]]) :]
        else:
            found.append(int(logits.argmax()))
    return found


@pytest.mark.parametrize(("prompt", "data"), [("a ca", b"ca"), ("http:", b":"), ("ab", b"")])
def test_an_output_is_the_likeliest_that_begins_so(
    model: Path, runtime: Runtime, prompt: str, data: bytes
) -> None:
    kept = list(prompt.encode()[: len(prompt) - len(data)])
    tokens = expected(model, kept, data, 6)
    result = runtime.generate(
        prompt,
        token_healing=True,
        max_tokens=6,
        temperature=0,
        ignore_eos=True,
        skip_special_tokens=True,
    )
    assert list(result.token_ids) == tokens
    whole = b"".join(PIECES[token] for token in tokens).decode("utf-8", "replace")
    assert data.decode() + result.text == whole
    assert result.usage.prompt_tokens == len(kept)


def test_pieces_and_constraints_leave_out_what_was_backed_off(runtime: Runtime) -> None:
    spec = GrammarSpec("regex", "s?( cats){1,3}")
    options: Any = {"token_healing": True, "max_tokens": 20, "seed": 1, "grammar": spec}
    pieces = list(runtime.generate("my cat", stream=True, **options))
    text = "".join(piece.text for piece in pieces)
    assert text.removeprefix("s").startswith(" cats")
    assert runtime.generate("my cat", **options).text == text
    assert runtime.generate("my cat", **options | {"stop": "at"}).text.endswith(" c")


def test_a_program_goes_on_behind_healed_text(runtime: Runtime) -> None:
    @rg.function
    def program(s: Any) -> None:
        s += "my cat"
        s += rg.gen("more", regex="s( cats){2}", token_healing=True, max_tokens=20)
        s += " and http:"
        s += rg.gen("rest", regex="//|x", token_healing=True, max_tokens=9)

    state = program.run(backend=runtime)
    assert state["more"] == "s cats cats"
    assert state.text() == f"my cats cats cats and http:{state['rest']}"


def test_thoughts_are_not_healed(runtime: Runtime) -> None:
    with pytest.raises(InvalidRequest, match="thoughts begin"):
        runtime.generate("a ca", token_healing=True, thinking=Thinking(9), max_tokens=20)
