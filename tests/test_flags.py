"""The flags are the options: the same names, help and values, written twice so that `ts --help` stays light. T26."""

from collections.abc import Callable
from typing import Any

import pytest

from turbospark_chat.chat.options import OPTIONS, ChatOptions
from turbospark_chat.chat.window import OverflowPolicy
from turbospark_chat.engine.pacing import PowerProfile
from turbospark_chat.engine.sampling_config import SETTINGS
from turbospark_chat.errors import SettingError
from turbospark_chat.flags import FLAGS, Flag
from turbospark_chat.launch import _read_options

BY_OPTION = {flag.option: flag for flag in FLAGS if flag.option}
every_turn_flag = pytest.mark.parametrize("flag", BY_OPTION.values(), ids=lambda flag: flag.name)


def test_every_option_is_one_flag() -> None:
    assert list(BY_OPTION) == [flag.option for flag in FLAGS if flag.option]
    assert set(BY_OPTION) == set(OPTIONS)
    assert set(SETTINGS) < set(BY_OPTION)


@every_turn_flag
def test_a_flag_has_its_options_name_and_help(flag: Flag) -> None:
    if flag.name == "no_reuse":  # the one that is the opposite of its option
        assert (flag.option, flag.switch_value) == ("reuse", "off")
    else:
        assert (flag.name, flag.help) == (flag.option, OPTIONS[flag.name].help)


@every_turn_flag
def test_a_switch_changes_its_option_and_others_take_a_value(flag: Flag) -> None:
    option = OPTIONS[flag.option or ""]
    if flag.metavar is None:
        changed = option.change(ChatOptions(), flag.switch_value)
        assert option.read(changed) is not option.read(ChatOptions())
    else:
        assert not isinstance(option.read(ChatOptions()), bool)


@pytest.mark.parametrize(
    "flag", [flag for flag in BY_OPTION.values() if flag.metavar], ids=lambda flag: flag.name
)
@pytest.mark.parametrize("text", ["0", "1.5", "none", "-1", "drop", "efficiency", " 7 ", "2:-100", "x", ""])
def test_a_flag_reads_text_as_set_does(flag: Flag, text: str) -> None:
    typed = NOT_TYPED | {flag.name: [text] if flag.is_repeatable else text}
    assert outcome(lambda: _read_options(typed)) == outcome(
        lambda: OPTIONS[flag.name].change(ChatOptions(), text)
    )


def test_a_repeated_stop_flag_gives_several_stop_strings() -> None:
    typed = NOT_TYPED | {"stop": ["END", '"a" "b"', r"\n"]}
    assert _read_options(typed).completion.stop_strings == ("END", "a", "b", "\n")


NOT_TYPED: dict[str, Any] = {flag.name: [] if flag.is_repeatable else None for flag in FLAGS}


def outcome(read: Callable[[], ChatOptions]) -> ChatOptions | str:
    """What was read, or the complaint."""
    try:
        return read()
    except SettingError as error:
        return str(error)


@pytest.mark.parametrize(("name", "kind"), [("on_overflow", OverflowPolicy), ("power_profile", PowerProfile)])
def test_a_choice_shows_what_there_is_to_choose(name: str, kind: type[OverflowPolicy | PowerProfile]) -> None:
    assert BY_OPTION[name].metavar == "|".join(kind)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_number_says_whether_it_is_whole(name: str) -> None:
    expected = {int: "N", float: "NUMBER", dict: "ID:BIAS,..."}[SETTINGS[name].kind]
    assert BY_OPTION[name].metavar == expected


def test_spellings_are_distinct_and_none_is_taken_by_help() -> None:
    spellings = [name for flag in FLAGS for name in (flag.spelling, flag.short) if name] + ["-h", "--help"]
    assert len(spellings) == len(set(spellings))
    assert all(spelling.startswith("-") and "_" not in spelling for spelling in spellings)


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_help_is_one_sentence(flag: Flag) -> None:
    assert flag.help.endswith(".") and "\n" not in flag.help and "!" not in flag.help
