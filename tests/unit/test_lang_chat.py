"""Conversations that grow against whole ones, for the shapes that models' chat templates have."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from scripted_backend import ScriptedBackend, generating

from radixgen.errors import InvalidRequest
from radixgen.lang import assistant, function, gen, select, system, user
from radixgen.lang.chat import ChatFormat, start_of

Messages = list[dict[str, str]]
Template = Callable[[Messages, bool], str]


def _alternating(messages: Messages) -> None:
    for place, message in enumerate(messages):
        if (message["role"] == "user") != (place % 2 == 0):
            raise ValueError("roles must alternate user/assistant")


def marked(messages: Messages, generation: bool) -> str:
    """A tag before and after each message."""
    text = "".join(f"<|{m['role']}|>{m['content']}<|end|>\n" for m in messages)
    return text + "<|assistant|>" * generation


def spaced(messages: Messages, generation: bool) -> str:
    """A space before each answer, which the model writes itself where it is asked for one."""
    _alternating(messages)
    users = "[INST] {} [/INST]".format
    texts = (
        users(m["content"]) if m["role"] == "user" else f" {m['content']}</s>" for m in messages
    )
    return "<s>" + "".join(texts)


def folded(messages: Messages, generation: bool) -> str:
    """A system message is a part of the user's that follows."""
    head, rest = "", messages
    if messages[0]["role"] == "system":
        head, rest = messages[0]["content"] + "\n\n", messages[1:]
    _alternating(rest)
    names = {"user": "user", "assistant": "model"}
    texts = [f"<turn>{names[m['role']]}\n{m['content']}</turn>\n" for m in rest]
    if texts:
        texts[0] = texts[0].replace("<turn>user\n", f"<turn>user\n{head}", 1)
    return "<bos>" + "".join(texts) + "<turn>model\n" * generation


def ended(messages: Messages, generation: bool) -> str:
    """A mark at the end of everything, if no answer is asked for."""
    text = "".join(f"<|{m['role']}|>\n{m['content']}<|end|>\n" for m in messages)
    return text + ("<|assistant|>\n" if generation else "<|endoftext|>")


def thinking(messages: Messages, generation: bool) -> str:
    """An answer is asked for with a thought that is not kept."""
    names = {"user": "<|User|>", "assistant": "<|Assistant|>", "system": ""}
    ends = {"assistant": "<|eos|>"}
    texts = [names[m["role"]] + m["content"] + ends.get(m["role"], "") for m in messages]
    return "<s>" + "".join(texts) + "<|Assistant|><think>\n" * generation


def wandering(messages: Messages, generation: bool) -> str:
    """The system message stands in the last of the user's."""
    systems = [m["content"] + "\n" for m in messages if m["role"] == "system"]
    rest = [m for m in messages if m["role"] != "system"]
    last = max((i for i, m in enumerate(rest) if m["role"] == "user"), default=-1)
    text = "<s>"
    for place, message in enumerate(rest):
        inside = "".join(systems) * (place == last)
        user_text = f"[INST]{inside}{message['content']}[/INST]"
        text += user_text if message["role"] == "user" else f"{message['content']}</s>"
    return text


TEMPLATES: list[Template] = [marked, spaced, folded, ended, thinking, wandering]
ROLES = ["u", "ua", "uaua", "sua", "suauaua", "uua", "au"]
_NAMES = {"u": "user", "a": "assistant", "s": "system"}


def conversation(roles: str) -> Messages:
    return [{"role": _NAMES[r], "content": f"text {i} of it"} for i, r in enumerate(roles)]


def grown(form: ChatFormat, messages: Messages) -> tuple[str, list[str]]:
    """The whole text, and the prompts before each answer."""
    text, prompts = "", []
    roles = [m["role"] for m in messages]
    for place, message in enumerate(messages):
        opening = form.opening(roles[:place], message["role"])
        if message["role"] == "assistant":
            prompts.append(text + opening.text + opening.before_answer)
        text += opening.text + opening.before_text + message["content"]
        text += form.closing(roles[: place + 1])
    return text, prompts


def whole(template: Template, messages: Messages) -> str | None:
    try:
        return template(messages, False)
    except ValueError:
        return None


@pytest.mark.parametrize("roles", ROLES)
@pytest.mark.parametrize("template", TEMPLATES)
def test_what_grows_is_what_the_template_renders(template: Template, roles: str) -> None:
    messages, form = conversation(roles), ChatFormat(template)
    rendered = whole(template, messages)
    if rendered is None:
        with pytest.raises(InvalidRequest, match="refuses the roles"):
            grown(form, messages)
        return
    text, prompts = grown(form, messages)
    if template is wandering and roles.count("u") > 1:
        assert text.startswith("<s>[INST]" + "text 0 of it\n" * (roles[0] == "s"))
        assert "content-" not in text
        return
    assert rendered.removesuffix("<|endoftext|>") == text
    answers = [i for i, role in enumerate(roles) if role == "a" and i]
    asked = [template(messages[:i], True) for i in answers]
    assert prompts[len(prompts) - len(asked) :] == asked


def test_messages_that_a_template_drops_are_refused() -> None:
    form = ChatFormat(lambda messages, _: "".join(m["content"] for m in messages[:1]))
    assert form.opening([], "user").text == ""
    with pytest.raises(InvalidRequest, match="drops 'assistant' messages"):
        form.opening(["user"], "assistant")


def test_conversations_of_the_same_roles_ask_the_template_once() -> None:
    num_rendered = 0

    def render(messages: Messages, generation: bool) -> str:
        nonlocal num_rendered
        num_rendered += 1
        return marked(messages, generation)

    def talk() -> list[str]:
        turns, found = start_of(form), []
        for role in ("user", "assistant") * 20:
            turns = turns.then(role)
            found += [turns.opening.text, turns.closing]
        assert turns.roles == ("user", "assistant") * 20
        return found

    form = ChatFormat(render)
    first, needed = talk(), num_rendered
    assert talk() == first
    assert num_rendered == needed
    with pytest.raises(InvalidRequest, match="refuses the roles"):
        start_of(ChatFormat(_refuse)).then("tool").opening  # noqa: B018


def _refuse(messages: Messages, generation: bool) -> str:
    raise ValueError(f"{len(messages)} messages")


@pytest.fixture
def backend() -> Iterator[ScriptedBackend]:
    made = ScriptedBackend(lambda _: " said")
    yield made
    made.close()


def say(backend: ScriptedBackend, template: Template, messages: Sequence[Any]) -> Any:
    backend.chat = ChatFormat(template)

    @function
    def program(s: Any) -> None:
        for message in messages:
            s += message

    return program.run(backend=backend)


def test_who_writes_first_decides_what_comes_before(backend: ScriptedBackend) -> None:
    state = say(
        backend,
        spaced,
        [
            *(user("1"), assistant("one")),  # the program: as the template keeps it
            *(user("2"), assistant(gen("a"))),  # the model: as the template asks for it
            *(user("3"), assistant("so" + gen("b"))),
            *(user("4"), assistant(select("c", ["x", "y"]))),
            *(user("5"), assistant("")),
        ],
    )
    assert state.text() == (
        "<s>[INST] 1 [/INST] one</s>[INST] 2 [/INST] said</s>[INST] 3 [/INST] so said</s>"
        "[INST] 4 [/INST] x</s>[INST] 5 [/INST] </s>"
    )
    contents = [m["content"] for m in state.messages() if m["role"] == "assistant"]
    assert contents == ["one", " said", "so said", "x", ""]
    assert [text[-8:] for text in generating(backend)] == [" [/INST]", "INST] so"]
    assert "".join(state.text_iter()) == state.text()


def test_a_thought_is_asked_for_and_not_put_before_texts(backend: ScriptedBackend) -> None:
    state = say(backend, thinking, [user("1"), assistant("one"), user("2"), assistant(gen("a"))])
    assert state.text() == (
        "<s><|User|>1<|Assistant|>one<|eos|><|User|>2<|Assistant|><think>\n said<|eos|>"
    )


def test_a_system_message_of_a_template_without_one(backend: ScriptedBackend) -> None:
    state = say(backend, folded, [system("be kind"), user("1"), assistant(gen("a"))])
    assert state.text() == "<bos><turn>user\nbe kind\n\n1</turn>\n<turn>model\n said</turn>\n"
    with pytest.raises(InvalidRequest, match="refuses the roles user, user: roles must alternate"):
        say(backend, folded, [user("1"), user("2")])
