"""`radixgen grammar`: exit statuses, what is said about a text, and telling kinds apart."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from radixgen.cli import common
from radixgen.cli.grammar import app, guess_kind
from radixgen.errors import InvalidGrammar, InvalidRequest
from radixgen.grammars.encode import json_string, utf8
from radixgen.grammars.engine import Engine, NativeEngine, PythonEngine
from radixgen.grammars.expr import ANY_CHAR, EVERYTHING, And, Rule, chars, concat, literal, union
from radixgen.grammars.printing import show_bytes, show_rules

SCHEMA = '{"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}'


def _run(*arguments: str, stdin: str | None = None) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments), input=stdin)
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout


@pytest.mark.parametrize(
    ("schema", "text", "status", "said"),
    [
        (SCHEMA, '{"x": 1}', 0, "allowed"),
        (SCHEMA, '{"x": "a"}', 1, "line 1, column 7"),
        (SCHEMA, '{"x"', 1, "incomplete"),
        ("a", "\udcff", 1, "byte 0"),  # an argument that is not UTF-8
        ("[a-z]+@[a-z]+", "ada@example", 0, "allowed"),
        ("[a-z]+", "ab[/]c", 1, '"[/]c"'),
        ("sql_subset", "select a from t", 0, "as lark"),
        ('root ::= "a" | "b"', "a", 0, "as gbnf"),
        ('["yes", "no"]', "yes", 0, "as choice"),
        ('["yes", "no"]', "yess", 1, "only the end: the text is complete"),
        ("[a-z]+", "ab\n", 1, "[a-z] or the end"),
        ('{"type": "string"}', '"a"\n', 1, "only the end: the text is complete"),
        ('{"type": "structural_tag", "format": {"type": "any_text"}}', "x", 0, "as structural_tag"),
    ],
)
def test_check(schema: str, text: str, status: int, said: str) -> None:
    found, output = _run("check", schema, text)
    assert found == status, output
    assert said in output


def test_check_reads_files_and_stdin(tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text(SCHEMA)
    assert _run("check", str(path))[0] == 0
    assert _run("check", str(path), "-", stdin='{"x": 1}\n')[0] == 0
    assert _run("check", str(path), "-", stdin='{"x": }\n')[0] == 1
    grammar = tmp_path / "words.lark"
    grammar.write_text('start: "a"')
    assert _run("check", str(grammar), "a")[0] == 0


def test_options_and_kinds() -> None:
    assert _run("check", SCHEMA, '{"x": 1}', "-o", "whitespace=compact")[0] == 1
    assert _run("check", "b", "abc", "-k", "regex", "-o", "mode=search")[0] == 0
    with pytest.raises(InvalidRequest, match="--kind"):
        _run("check", "a", "-k", "xml")
    with pytest.raises(InvalidGrammar, match="group"):
        _run("check", "(a")
    with pytest.raises(InvalidGrammar):
        _run("check", '{"enum": []}')


def test_errors_are_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    def call() -> None:
        app(["check", "x[/]y[b-a]"], standalone_mode=False)

    assert common.run(call) == common.USAGE
    said = " ".join(capsys.readouterr().err.split())
    assert "'b-a' runs backwards" in said
    assert "x[/]y[b-a]" in said


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "schema.json"
    file.write_text('{"type": "integer"}', encoding="utf-8-sig")
    assert _run("check", str(file), "1")[0] == 0


def test_explain() -> None:
    status, output = _run("explain", SCHEMA)
    assert status == 0
    assert "root ::=" in output
    assert '"{"' in output
    status, output = _run("explain", '{"format": "idn-hostname"}')
    assert (status, "unchecked" in output) == (0, True)
    odd = '{"properties": {"n": {"type": "integer", "minimum": 2, "maximum": 1}}}'
    output = " ".join(_run("explain", odd)[1].split())
    assert "never no value satisfies the schema" in output
    assert "(at #/properties/n)" in output
    bound = _run("explain", '{"not": {"additionalProperties": {"type": "object"}}}')[1]
    assert "narrowed  additionalProperties at #/not: behind an" in " ".join(bound.split("\n"))
    bound = '{"properties": {"a": {"minimum": 2}}, "additionalProperties": {"type": "integer"}}'
    assert "narrowed" in _run("explain", f'{{"type": "object", "not": {bound}}}')[1]
    assert "narrowed" not in _run("explain", SCHEMA)[1]
    status, output = _run("explain", "json", "--rules", "2")
    assert "rules beside these" in output
    assert output.count("::=") == 2


def test_mask() -> None:
    status, output = _run("mask", "yes|no|maybe", "m", "--tokenizer", "bytes")
    assert status == 0
    assert "1 of 257" in output
    assert "the shortest text is 4 tokens more" in output
    assert "may end here" in _run("mask", "yes", "yes", "--tokenizer", "bytes")[1]
    assert '"aybe"' in output
    status, output = _run("mask", "yes|no|n", "n", "--tokenizer", "bytes", "--json")
    found = json.loads(output)
    assert found["end"]
    assert found["tokens"] == [[ord("o"), '"o"'], [256, "<end>"]]
    with pytest.raises(InvalidRequest, match="prefix"):
        _run("mask", "yes", "x", "--tokenizer", "bytes")
    with pytest.raises(InvalidRequest, match="only the end is allowed: the text is complete"):
        _run("mask", "yes", "yes\n", "--tokenizer", "bytes")


def test_check_refuses_what_a_compiler_refuses() -> None:
    for schema in ('{"anyOf": [{"$ref": "#"}, true]}', '{"items": {"minLength": 100000}}'):
        with pytest.raises(InvalidGrammar, match=r"refers to itself|minLength is at most"):
            _run("check", schema)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (SCHEMA, "json_schema"),
        ("true", "json_schema"),
        ('{"broken": ', "json_schema"),
        ('{"structures": [], "triggers": []}', "structural_tag"),
        ('["a"]', "choice"),
        ("[1-9]", "regex"),
        ('a ::= "b"', "gbnf"),
        ("X: /a/\n?start: X", "lark"),
        ("start", "regex"),
    ],
)
def test_kinds_are_told_apart(text: str, kind: str) -> None:
    assert guess_kind(text) == kind


def test_printing() -> None:
    rule = Rule("x", lambda: union(literal(b'a\n"'), concat(literal(b"("), rule, literal(b")"))))
    assert show_rules(rule) == [
        'root ::= "a\\n\\"" | "(" r1 ")"',
        'r1 ::= "a\\n\\"" | "(" r1 ")"',
    ]
    assert show_rules(utf8(ANY_CHAR)) == ["root ::= <any character>"]
    assert show_rules(json_string(ANY_CHAR)) == ["root ::= <string character>"]
    assert show_rules(EVERYTHING) == ["root ::= (everything)"]
    assert "&" in show_rules(And(literal(b"a"), utf8(chars([(97, 98)]))))[0]
    assert show_bytes((1 << 256) - 1) == "[any byte]"
    assert show_bytes(0b11 << 97) == "[ab]"
    assert show_bytes(((1 << 256) - 1) & ~(1 << 0x22)) == '[^"]'


def test_a_directory_is_not_taken_for_a_regex(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="is a directory"):
        _run("check", str(tmp_path), "x")
    assert _run("check", str(tmp_path), str(tmp_path), "-k", "regex")[0] == 0


@pytest.mark.parametrize("text", ["", "[1, 2]", '"x"', "# not JSON"])
def test_a_json_file_that_is_no_schema_is_not_taken_for_a_regex(tmp_path: Path, text: str) -> None:
    path = tmp_path / "schema.json"
    path.write_text(text)
    with pytest.raises(InvalidGrammar, match=r"not JSON|an object or a boolean"):
        _run("check", str(path))
    path.write_text('["yes", "no"]')
    assert _run("check", str(path), "yes")[0] == 0


@pytest.mark.parametrize("name", ["word.regex", "word.txt"])
def test_the_end_of_the_last_line_is_no_part_of_a_regex(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"[ab]+\r\n")
    assert _run("check", str(path), "ab")[0] == 0
    assert _run("check", str(path), "ab", "--kind", "regex")[0] == 0


def test_explain_tells_what_of_a_format_or_a_number_is_never_written() -> None:
    status, said = _run("explain", '{"type": "string", "format": "regex"}')
    assert status == 0
    assert "narrowed" in said
    assert "a portable subset of ECMA-262" in said
    status, said = _run("explain", '{"type": "number", "multipleOf": 1e-7}')
    assert status == 0
    assert "narrowed" in said
    assert "without an exponent" in said
    assert "narrowed" not in _run("explain", '{"type": "integer", "multipleOf": 3}')[1]


def test_a_name_of_no_file_is_not_taken_for_a_regex() -> None:
    with pytest.raises(InvalidRequest, match=r"there is no file schemas/user\.json"):
        _run("check", "schemas/user.json", "x")
    assert _run("check", "user.json", "user.json", "-k", "regex")[0] == 0


def test_mask_says_where_a_prefix_departs() -> None:
    with pytest.raises(InvalidRequest, match=r"from byte 5 on: after '\{\"a\":' found 'x'"):
        _run("mask", '{"properties": {"a": {"const": 1}}}', '{"a":x', "--tokenizer", "bytes")


def test_unique_items_are_told_apart() -> None:
    schema = '{"type": "array", "items": {"type": "string"}, "uniqueItems": true}'
    assert _run("check", schema, '["a", "b"]')[0] == 0
    status, said = _run("check", schema, '["a", "a"]')
    assert (status, "column 9" in said) == (1, True)
    assert "the text before it excludes" in _run("explain", schema)[1]


def test_mask_says_when_the_shortest_end_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(self: Engine, state: int) -> int:
        raise InvalidGrammar("over 20000 states")

    for engine in (NativeEngine, PythonEngine):
        monkeypatch.setattr(engine, "fewest_tokens", unknown)
    schema = json.dumps({"type": "string", "minLength": 3})
    status, said = _run("mask", schema, '"ab', "--tokenizer", "bytes")
    assert status == 0
    assert "may end here" not in said
    assert "how the text ends soonest is not known" in said
    status, said = _run("mask", schema, '"ab', "--tokenizer", "bytes", "--json")
    found = json.loads(said)
    assert found["shortest_completion"] is None
    assert "20000 states" in found["error"]
