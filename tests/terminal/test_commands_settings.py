"""Commands that show and change options, the template and the model."""

from pathlib import Path

import pytest
from command_context import Chats
from scripted_chat import make_session
from tiny_model import CHATML

from turbospark_chat.chat.message import Message
from turbospark_chat.chat.options import OPTIONS
from turbospark_chat.errors import SettingError, TemplateError, UnknownModelError, UsageError


def test_set_shows_every_option_by_its_flag_with_its_value_and_range(chat: Chats) -> None:
    context = chat()
    lines = context.run("/set").split("\n")
    for line, row in zip(lines, OPTIONS.values(), strict=True):
        flag, value = line.split()[:2]
        assert (flag, value) == (f"--{row.name.replace('_', '-')}", row.show(context.session.options))
        assert line.endswith(f"  {row.help} ({row.values})")


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("/set temperature 0.5", "temperature", "0.5"),
        ("/set --top-k 40", "top_k", "40"),
        ("/set top-k 40", "top_k", "40"),
        ("/set max_tokens none", "max_tokens", "none"),
        ("/set stop [/INST]", "stop", '"[/INST]"'),
        ("/set keep_reasoning on", "keep_reasoning", "on"),
        ("/set logit_bias 'a':-5", "logit_bias", "97:-5"),
    ],
)  # T26
def test_set_changes_an_option_and_shows_it(chat: Chats, line: str, name: str, value: str) -> None:
    context = chat("a")
    shown = context.run(line)
    assert shown.split()[:2] == ["--" + name.replace("_", "-"), value]
    assert OPTIONS[name].show(context.session.options) == value
    assert context.run(f"/set {name}") == shown
    assert len(context.turns) == 1 and context.noted == []


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("/set temperature -1", "temperature"),
        ("/set temperature warm", "temperature is 'warm'"),
        ("/set top_p 2", "top_p"),
        ("/set tempreature 1", "unknown setting `tempreature`: did you mean `temperature`?"),
        ("/set heat", "unknown setting `heat`: give one of temperature, "),
    ],
)
def test_set_refuses_what_is_no_value(chat: Chats, line: str, problem: str) -> None:
    with pytest.raises(SettingError) as caught:
        chat().run(line)
    assert str(caught.value).startswith(problem)


def test_a_changed_option_holds_for_the_next_turn(chat: Chats) -> None:
    context = chat(replies=["abcdef"])
    context.run("/set max_tokens 3")
    assert context.say("hi").turn.reply == Message("assistant", "abc", complete=False)


def test_template_shows_the_template_and_takes_another_from_a_file(chat: Chats, tmp_path: Path) -> None:
    context = chat("hi", replies=["first", "second"])
    assert context.run("/template") == CHATML
    file = tmp_path / "plain.jinja"
    file.write_text(
        "{% for m in messages %}[{{ m.content }}]<|im_end|>{% endfor %}{% if add_generation_prompt %}>{% endif %}"
    )
    assert context.run(f"/template {file}").startswith(f"using the template in {file}: ")
    assert context.noted == ["changed"]
    context.say("again")
    model = context.session.model
    assert model.tokenizer.decode(model.producer.record) == "[hi][first][again]>second"


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("{% if %}", "line 1"),
        ("{{ raise_exception('no') if messages|length > 1 }}", "failed: no"),
        (None, "cannot read"),
    ],
    ids=["E12: syntax error", "refuses this conversation", "no such file"],
)
def test_a_template_that_cannot_be_used_changes_nothing(
    chat: Chats, tmp_path: Path, source: str | None, problem: str
) -> None:
    context = chat("hi", "there")
    before = context.state
    file = tmp_path / "broken.jinja"
    if source is not None:
        file.write_text(source + CHATML)
    with pytest.raises(TemplateError, match=problem):
        context.run(f"/template {file}")
    assert (context.state, context.shown) == (before, [])


def test_another_template_brings_its_own_turn_end_and_reasoning_tags() -> None:
    session = make_session("one")
    assert session.model.end_ids().keys() == {256, 257}
    plain = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ add_generation_prompt }}"
    source = "{# </seed:think> #}" + plain
    model = session.model.with_template(source)
    assert model.end_ids() == {}
    assert model.reasoning_tags != session.model.reasoning_tags


def test_show_model_and_models_say_what_there_is(chat: Chats) -> None:
    context = chat()
    assert context.run("/show") == "architecture  llama\nlayers        2"
    assert context.run("/models") == "tiny   installed\nother  42 MB"
    assert context.run("/model") == "tiny"


def test_another_model_takes_the_conversation_over(chat: Chats) -> None:
    context = chat("a")
    n_tokens = context.session.costs.count_tokens()
    old = context.session.model
    context.run("/model other")
    assert context.shown == [
        f"loading other: {n_tokens} of {n_tokens} tokens are computed again with the next message",
        "other answers from here on",
    ]
    assert [state.model is old for state in context.states] == [True, False]
    context.say("b")
    assert context.turns == [("a", "reply to a"), ("b", "from the other")]


def test_the_model_is_loaded_by_what_was_started_not_by_the_command(
    chat: Chats,
) -> None:  # the screen goes on
    context = chat("a")
    context.start = lambda work, **how: None
    context.run("/model other")
    assert context.models.current == "tiny"


def test_a_model_that_was_not_waited_for_leaves_the_old_one(chat: Chats) -> None:
    context = chat("a")
    before = context.state
    context.cancel.set()
    assert context.run("/model other") == "stopped: tiny goes on"
    assert (context.state, context.models.current) == (before, "tiny")


def test_a_model_that_cannot_be_loaded_leaves_the_old_one(chat: Chats) -> None:
    context = chat("a")
    before = context.state
    with pytest.raises(UnknownModelError):
        context.run("/model nope")
    assert (context.state, context.models.current) == (before, "tiny")
    assert context.say("b").raw.reused_prefix_tokens > 0


def test_a_models_name_cannot_drive_the_terminal(chat: Chats) -> None:
    context = chat()
    context.models.current = "\x1b[2J"
    context.models.open = lambda name: context.session.model
    context.run("/model")
    context.run("/model other")
    assert "\x1b" not in "".join(context.shown)


def test_the_model_that_answers_is_not_loaded_again(chat: Chats) -> None:
    with pytest.raises(UsageError, match="tiny is the model that answers already"):
        chat("a").run("/model tiny")
