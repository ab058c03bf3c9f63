"""What a script says, line by line."""

import io
import json

import pytest

from turbospark_chat.errors import UsageError
from turbospark_chat.terminal.script_input import Content, Typed, read_input, read_lines


def lines_of(data, *, prompt=""):
    prompts = io.StringIO()
    return list(read_lines(io.BytesIO(data), prompt=prompt, prompt_stream=prompts)), prompts.getvalue()


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        pytest.param(b"", [], id="H5-nothing"),
        pytest.param(b"hi", ["hi"], id="H5-no-last-newline"),
        pytest.param(b"one\ntwo\n", ["one", "two"], id="T16-each-line-is-one"),
        pytest.param(b"one\r\ntwo\r\n", ["one", "two"], id="carriage-returns"),
        pytest.param(b"\n  \n\t\r\none\n\n", ["one"], id="H5-H14-empty-lines-are-no-end"),
        pytest.param(b"  one \n", ["  one "], id="spaces-stay"),
        pytest.param(b"\xef\xbb\xbfone\n", ["one"], id="byte-order-mark"),
        pytest.param(b"caf\xe9 \xff\n\xf0\x9f\n", ["caf\ufffd \ufffd", "\ufffd"], id="T45-no-utf8"),
        pytest.param(b"a\xed\xa0\x80\n", ["a\ufffd\ufffd\ufffd"], id="T45-half-a-pair"),
        pytest.param(b"a\0b\n", ["a\0b"], id="T45-nul"),
        pytest.param("中\u2028文\x85\n".encode(), ["中\u2028文\x85"], id="other-separators-stay"),
        pytest.param(b"x" * 1_000_000, ["x" * 1_000_000], id="H13-megabyte"),
    ],
)
def test_lines_are_those_that_hold_anything(data, lines):
    assert lines_of(data) == (lines, "")


@pytest.mark.parametrize(("data", "prompts"), [(b"", "> \n"), (b"one\n\ntwo\n", "> > > > \n")])
def test_a_person_is_prompted_for_each_line_and_the_end_ends_the_row(data, prompts):  # T11, H5
    assert lines_of(data, prompt="> ")[1] == prompts


@pytest.mark.parametrize("line", ["hi", "/undo", '{"content": "hi"}', "{", " [1]", '"hi"', "中", "null"])
def test_without_json_a_line_is_what_was_typed(line):
    assert read_input(line, is_json=False) == Typed(line)


@pytest.mark.parametrize("line", ["hi", "/undo", "  hi", "[1]", '"hi"', "null", "3", "a {"])
def test_with_json_a_line_that_is_no_object_is_still_what_was_typed(line):
    assert read_input(line, is_json=True) == Typed(line)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"content": "hi"}', Content("hi")),
        ('  {"content": "hi"}  ', Content("hi")),
        ('{"content": "/etc"}', Content("/etc")),
        ('{"content": "{\\"content\\": 1}"}', Content('{"content": 1}')),
        ('{"content": "a\\n\\nb\\n"}', Content("a\n\nb\n")),
        ('{"content": "hi", "role": "user", "id": 7}', Content("hi")),
        ('{"content": "hi", "command": null}', Content("hi")),
        ('{"content": "\\ud83d\\ude00 \\u00e9"}', Content("😀 é")),
        ('{"content": "a\\ud83d"}', Content("a\ufffd")),  # T45
        ('{"content": "\\ude00\\ud83d"}', Content("\ufffd\ufffd")),  # T45
        ('{"content": "a\\u0000b"}', Content("a\0b")),  # T45
        ('{"command": "/undo 2"}', Typed("/undo 2")),
        ('{"command": "/system \\ud800", "content": null}', Typed("/system \ufffd")),
    ],
)
def test_an_object_is_a_message_or_a_command(line, said):
    assert read_input(line, is_json=True) == said


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "is no JSON object"),
        ('{"content": "hi"', "is no JSON object"),
        ('{"content": "hi"} more', "is no JSON object"),
        ('{"content": ' + "[" * 100_000, "is no JSON object"),
        ('{"content": ' + "9" * 5_000 + "}", "is no JSON object"),
        ('{"content": "a\x01"}', "is no JSON object"),
        ("{}", "give one of them"),
        ('{"text": "hi"}', "give one of them"),
        ('{"content": 3}', "give one of them"),
        ('{"content": ["hi"]}', "give one of them"),
        ('{"content": null}', "give one of them"),
        ('{"content": "hi", "role": "assistant"}', "give one of them"),
        ('{"content": "hi", "command": "/undo"}', "give one of them"),
        ('{"command": "undo"}', "give one of them"),
        ('{"command": "/undo\\n/undo"}', "give one of them"),
        ('{"command": ["/undo"]}', "give one of them"),
        ('{"content": ""}', "blank content"),  # H14
        ('{"content": " \\n\\t"}', "blank content"),
    ],
    ids=lambda text: text[:40],
)
def test_an_object_that_is_neither_is_refused_in_one_short_line(line, problem):
    with pytest.raises(UsageError, match=problem) as caught:
        read_input(line, is_json=True)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 300


def test_every_text_can_be_said_in_an_object():
    text = "".join(map(chr, range(0xD800))) + "\U0010ffff"
    for is_ascii in (True, False):
        line = json.dumps({"content": text}, ensure_ascii=is_ascii)
        assert read_input(line, is_json=True) == Content(text)
