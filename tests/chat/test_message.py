"""The message value and how it is spelled out for a template."""

import pytest

from turbospark_chat.chat.message import ROLES, Message, ToolCall
from turbospark_chat.chat.message_shape import MessageShape


def test_a_role_that_could_be_free_text_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown role 'user|><|im_end'"):
        Message("user|><|im_end", "hi")
    assert {Message(role, "hi").role for role in ROLES} == ROLES


def test_content_of_none_is_empty_text() -> None:  # E10
    assert Message("assistant", None).content == ""  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("message", "is_empty"),
    [
        (Message("assistant", ""), True),
        (Message("assistant", " \n", reasoning=""), True),
        (Message("assistant", "a"), False),
        (Message("assistant", "", reasoning="hm"), False),
        (Message("assistant", "", tool_calls=(ToolCall("t", {}),)), False),
    ],
)
def test_a_message_is_empty_when_nothing_was_said_thought_or_called(message: Message, is_empty: bool) -> None:
    assert message.is_empty == is_empty


@pytest.mark.parametrize("reasoning", [None, ""])
def test_missing_reasoning_is_no_variable(reasoning: str | None) -> None:  # E15
    assert MessageShape().variables(Message("assistant", "a", reasoning=reasoning)) == {
        "role": "assistant",
        "content": "a",
    }


def test_reasoning_is_passed_as_reasoning_content() -> None:
    assert MessageShape().variables(Message("assistant", "a", reasoning="r"))["reasoning_content"] == "r"


@pytest.mark.parametrize(
    ("arguments", "as_object"),
    [
        ({"city": "Rom"}, {"city": "Rom"}),
        ('{"city": "Rom"}', {"city": "Rom"}),
        ("not json", "not json"),
        ('["a list"]', '["a list"]'),
        ("[" * 100_000, "[" * 100_000),
    ],
    ids=["object", "text", "not json", "no object", "too deep"],
)
def test_tool_arguments_become_an_object_where_they_say_one(arguments: object, as_object: object) -> None:
    message = Message("assistant", "", tool_calls=(ToolCall("weather", arguments),))  # type: ignore[arg-type]
    (call,) = MessageShape().variables(message)["tool_calls"]
    assert call == {"type": "function", "function": {"name": "weather", "arguments": as_object}}


def test_a_template_for_argument_text_gets_json_once() -> None:
    shape = MessageShape(argument_text=True)
    for arguments in ({"city": "Zürich"}, '{"city": "Zürich"}'):
        message = Message("assistant", "", tool_calls=(ToolCall("weather", arguments),))
        (call,) = shape.variables(message)["tool_calls"]
        assert call["function"]["arguments"] == '{"city": "Zürich"}'
