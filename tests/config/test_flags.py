"""The flags are the options: the same names, help and values, written twice so that `ts --help` stays light. T26."""

import pytest

from turbospark_chat.chat.options import OPTIONS, ChatOptions
from turbospark_chat.chat.window import OverflowPolicy
from turbospark_chat.config.flags import FLAGS, SETTINGS, Flag, flags_of
from turbospark_chat.engine.pacing import PowerProfile
from turbospark_chat.engine.sampling_config import SETTINGS as SAMPLING
from turbospark_chat.terminal.interface_options import (
    INTERFACE_OPTIONS,
    Editing,
    InterfaceOptions,
    Thinking,
)
from turbospark_chat.terminal.theme import THEMES

BY_NAME = {flag.name: flag for flag in FLAGS}
every_turn_flag = pytest.mark.parametrize(
    "flag", [flag for flag in FLAGS if flag.table == "turn"], ids=lambda flag: flag.name
)
every_interface_flag = pytest.mark.parametrize(
    "flag", [flag for flag in FLAGS if flag.table == "interface"], ids=lambda flag: flag.name
)
every_flag = pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)


@pytest.mark.parametrize(("table", "rows"), [("turn", OPTIONS), ("interface", INTERFACE_OPTIONS)])
def test_every_option_is_one_flag_and_may_be_set_for_good(table: str, rows: dict[str, object]) -> None:
    of_table = [flag.name for flag in FLAGS if flag.table == table]
    assert sorted(of_table) == sorted(rows)
    assert set(rows) <= set(SETTINGS)


def test_every_sampling_setting_is_a_flag_of_both_commands() -> None:
    for command in ("chat", "complete"):
        assert set(SAMPLING) <= {flag.name for flag in flags_of(command)}


@every_turn_flag
def test_a_turn_flag_has_its_options_help_and_is_a_switch_where_that_is(flag: Flag) -> None:
    option = OPTIONS[flag.name]
    assert flag.help == option.help
    assert flag.is_pair is isinstance(option.read(ChatOptions()), bool)


@every_interface_flag
def test_an_interface_flag_has_its_options_help_and_shows_its_choices(flag: Flag) -> None:
    option = INTERFACE_OPTIONS[flag.name]
    assert flag.help == option.help
    assert flag.is_pair is isinstance(getattr(InterfaceOptions(), flag.name), bool)
    assert flag.choices == (() if flag.is_pair else tuple(option.values))


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("on_overflow", OverflowPolicy),
        ("power_profile", PowerProfile),
        ("think", Thinking),
        ("editing", Editing),
        ("theme", THEMES),
    ],
)
def test_a_choice_shows_what_there_is_to_choose(name: str, choices: list[str]) -> None:
    assert BY_NAME[name].choices == tuple(choices)


@pytest.mark.parametrize("name", SAMPLING)
def test_a_number_says_whether_it_is_whole(name: str) -> None:
    expected = {int: "N", float: "NUMBER", dict: "ID:BIAS,..."}[SAMPLING[name].kind]
    assert BY_NAME[name].metavar == expected


@pytest.mark.parametrize("command", ["chat", "complete"])
def test_spellings_are_distinct_and_none_is_taken_by_help(command: str) -> None:
    spellings = [name for flag in flags_of(command) for name in flag.spellings] + ["-h", "--help"]
    assert len(spellings) == len(set(spellings))
    assert all(spelling.startswith("-") and "_" not in spelling for spelling in spellings)


def test_no_variable_of_a_setting_is_one_that_means_something_else() -> None:
    others = {"TS_CONFIG", "TS_MODELS_DIR", "TS_CACHE_DIR", "TS_DATA_DIR", "TS_ARITHMETIC"}
    assert others & {flag.variable for flag in SETTINGS.values()} == set()


def test_a_switch_that_is_a_setting_is_a_pair_so_that_a_flag_overrules_the_file_either_way() -> None:
    assert BY_NAME["reuse"].spellings == ("--reuse", "--no-reuse")
    assert BY_NAME["keep_reasoning"].spellings == ("--keep-reasoning", "--no-keep-reasoning")
    assert BY_NAME["quiet"].spellings == ("-q", "--quiet")


@every_flag
def test_help_is_one_sentence(flag: Flag) -> None:
    assert flag.help.endswith(".") and "\n" not in flag.help and "!" not in flag.help


@every_flag
def test_what_belongs_to_one_run_is_no_option_of_a_table(flag: Flag) -> None:
    assert flag.is_setting or flag.table is None
