"""Every option reads what it shows, checks its range in one place, and leaves the others alone. T26."""

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turbospark_chat.chat.options import OPTIONS, ChatOptions, Option, find_option
from turbospark_chat.chat.reasoning import ReasoningTags
from turbospark_chat.chat.window import OverflowPolicy
from turbospark_chat.engine.pacing import PowerProfile
from turbospark_chat.engine.sampling_config import SETTINGS, SamplingConfig
from turbospark_chat.errors import SettingError, UsageError

DEFAULT = ChatOptions()

TYPED = [  # option, what is typed, the value it gives, how it is shown
    ("temperature", "0", 0.0, "0"),
    ("temperature", "0.1234567891", 0.1234567891, "0.1234567891"),
    ("top_k", "-1", -1, "-1"),
    ("top_p", ".5", 0.5, "0.5"),
    ("min_p", " 1 ", 1.0, "1"),
    ("repetition_penalty", "1e-2", 0.01, "0.01"),
    ("repetition_window", "16", 16, "16"),
    ("presence_penalty", "-2", -2.0, "-2"),
    ("frequency_penalty", "0.25", 0.25, "0.25"),
    ("logit_bias", "2:-100, '15':0.123456789", {2: -100.0, 15: 0.123456789}, "2:-100,15:0.123456789"),
    ("logit_bias", "{}", {}, "none"),
    ("logit_bias", "none", {}, "none"),
    ("seed", "0", 0, "0"),
    ("seed", "None", None, "none"),
    ("max_tokens", "0", 0, "0"),
    ("max_tokens", " none", None, "none"),
    ("stop", "END", ("END",), '"END"'),
    ("stop", " END", (" END",), '" END"'),
    ("stop", "it's", ("it's",), '"it\'s"'),
    ("stop", r"\n\nUser:", ("\n\nUser:",), r'"\n\nUser:"'),
    ("stop", r'"a\tb"  "\"c\"" "é\\n"', ("a\tb", '"c"', r"é\n"), r'"a\tb" "\"c\"" "é\\n"'),
    ("stop", '"a\nb"', ("a\nb",), r'"a\nb"'),
    ("stop", '"a" b', ('"a" b',), r'"\"a\" b"'),
    ("stop", '"', ('"',), r'"\""'),
    ("stop", '"none"', ("none",), '"none"'),
    ("stop", "NONE", (), "none"),
    ("on_overflow", "error", OverflowPolicy.ERROR, "error"),
    ("on_overflow", " Ask ", OverflowPolicy.ASK, "ask"),
    ("keep_reasoning", "on", True, "on"),
    ("keep_reasoning", "No", False, "off"),
    ("reuse", "false", False, "off"),
    ("reuse", " yes", True, "on"),
    ("power_profile", "efficiency", PowerProfile.EFFICIENCY, "efficiency"),
    ("max_tokens_per_sec", "12.5", 12.5, "12.5"),
    ("max_tokens_per_sec", "none", None, "none"),
    ("speculate", "15", 15, "15"),
    ("speculate", "auto", None, "auto"),
    ("max_thinking_tokens", "0", 0, "0"),
    ("max_thinking_tokens", "None", None, "none"),
    ("think_tags", " <a>  </a>", ReasoningTags("<a>", "</a>"), "<a> </a>"),
    ("think_tags", "none", None, "none"),
]

REFUSED = [
    ("temperature", "hot", "temperature is 'hot': give a number, 0 to 100"),
    ("temperature", "-1", "temperature is -1.0: give a number, 0 to 100"),
    ("top_k", "1.5", "top_k is '1.5': give a whole number, -1 or more"),
    ("logit_bias", "cat:-5", "logit_bias is {'cat': -5.0}: give token ids with a bias each, -100 to 100"),
    ("seed", "", "seed is '': give a whole number, 0 or more or none"),
    ("max_tokens", "-1", "max_tokens is -1: give a whole number, 0 or more, or none"),
    ("max_tokens", "many", "max_tokens is 'many': give a whole number, 0 or more, or none"),
    ("max_tokens", "1.5", "max_tokens is '1.5': give a whole number, 0 or more, or none"),
    ("stop", "", "stop is '': an empty text would end every reply at once; give another"),
    ("stop", '"a" ""', "stop is '': an empty text would end every reply at once; give another"),
    ("stop", r'"\d"', r"""stop is '"\\d"': give a text that is not empty, several in "quotes", or none"""),
    ("on_overflow", "truncate", "on_overflow is 'truncate': give one of drop, error, ask"),
    ("keep_reasoning", "maybe", "keep_reasoning is 'maybe': give on or off"),
    ("reuse", "", "reuse is '': give on or off"),
    ("power_profile", "eco", "power_profile is 'eco': give one of performance, balanced, efficiency"),
    ("max_tokens_per_sec", "0", "max_tokens_per_sec is 0.0: give 0.01 to 1000000, or none"),
    ("max_tokens_per_sec", "nan", "max_tokens_per_sec is nan: give 0.01 to 1000000, or none"),
    ("speculate", "16", "speculate is 16: give 0 to 15"),
    ("speculate", "none", "speculate is 'none': give a whole number, 0 to 15, or auto"),
    (
        "max_thinking_tokens",
        "-1",
        "max_thinking_tokens is -1: give a whole number, 0 or more, or none",
    ),
    *(
        (
            "think_tags",
            text,
            f"think_tags is {text!r}: give an opening and a closing tag, such as <think> </think>, or none",
        )
        for text in ("", "<a>", "<a> b </a>")
    ),
    ("max_tokens_per_sec", "fast", "max_tokens_per_sec is 'fast': give 0.01 to 1000000, or none"),
]


@pytest.mark.parametrize(("name", "text", "value", "shown"), TYPED)
def test_typed_text_gives_the_value_and_shows_as_it_would_be_typed(
    name: str, text: str, value: object, shown: str
) -> None:
    row = OPTIONS[name]
    options = row.change(DEFAULT, text)
    assert row.read(options) == value
    assert row.show(options) == shown
    assert row.change(DEFAULT, shown) == options


def test_every_option_is_tried_and_refuses_something() -> None:
    assert {name for name, *_ in TYPED} == set(OPTIONS)
    by_default_range = {row.name for row in SETTINGS.values()}  # their ranges are SamplingConfig's tests' own
    assert {name for name, *_ in REFUSED} | by_default_range == set(OPTIONS)


@pytest.mark.parametrize("row", OPTIONS.values(), ids=lambda row: row.name)
def test_a_change_leaves_every_other_option_alone(row: Option) -> None:
    text = next(text for name, text, value, _ in TYPED if name == row.name and value != row.read(DEFAULT))
    changed = row.change(DEFAULT, text)
    assert {name for name, other in OPTIONS.items() if other.read(changed) != other.read(DEFAULT)} == {
        row.name
    }


@pytest.mark.parametrize("row", OPTIONS.values(), ids=lambda row: row.name)
def test_what_is_shown_by_default_can_be_typed(row: Option) -> None:
    assert row.change(DEFAULT, row.show(DEFAULT)) == DEFAULT


@given(st.lists(st.text(min_size=1), max_size=3).map(tuple))
def test_any_stop_strings_can_be_typed_as_they_are_shown(stops: tuple[str, ...]) -> None:
    row = OPTIONS["stop"]
    options = row.replace(DEFAULT, stops)
    assert row.change(DEFAULT, row.show(options)) == options


@given(st.floats(0.01, 1e6) | st.none())
def test_any_number_can_be_typed_as_it_is_shown(number: float | None) -> None:
    row = OPTIONS["max_tokens_per_sec"]
    options = row.replace(DEFAULT, number)
    assert row.change(DEFAULT, row.show(options)) == options


@pytest.mark.parametrize(("name", "text", "message"), REFUSED)
def test_what_is_no_value_is_refused_in_one_line(name: str, text: str, message: str) -> None:
    with pytest.raises(SettingError) as caught:
        OPTIONS[name].change(DEFAULT, text)
    assert str(caught.value) == message


@pytest.mark.parametrize("name", ["top_k", "top-k", "--top-k", "--top_k"])
def test_an_option_is_found_as_a_flag_spells_it(name: str) -> None:
    assert find_option(name) is OPTIONS["top_k"]


def test_a_misspelt_option_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="unknown setting `topk`: did you mean `top_k`"):
        find_option("topk")


@pytest.mark.parametrize("name", ["", "TOP_K", "xyz"])
def test_an_unknown_option_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(UsageError, match=f"unknown setting `{name}`: give one of temperature, .*, reuse, "):
        find_option(name)


def test_every_sampling_field_is_an_option_with_its_help() -> None:  # T26
    for setting in fields(SamplingConfig):
        assert OPTIONS[setting.name].help == SETTINGS[setting.name].help
