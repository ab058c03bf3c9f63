"""Which of the sources of a value wins, that each is read as `/set` would, and that a refusal says where it was set."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turbospark_chat.chat.options import OPTIONS, ChatOptions
from turbospark_chat.command_line.configuration import (
    read_chat_options,
    read_ctx,
    read_interface_options,
    read_theme,
)
from turbospark_chat.config.config_file import ConfigFile, read_config_file
from turbospark_chat.config.flag_values import FlagValues
from turbospark_chat.config.flags import FLAGS, SETTINGS, flags_of
from turbospark_chat.errors import ConfigError, SettingError
from turbospark_chat.terminal.interface_options import InterfaceOptions, Thinking
from turbospark_chat.terminal.theme import THEMES
from turbospark_chat.threads import read_threads


def given(
    command: str = "chat",
    typed: dict[str, Any] | None = None,
    config: ConfigFile | None = None,
    **variables: str,
) -> FlagValues:
    return FlagValues(command, typed or {}, config or ConfigFile(Path("config.toml")), variables)


@pytest.fixture
def in_file(tmp_path: Path) -> Callable[[str], ConfigFile]:
    """Return the config file that says so."""

    def write(text: str) -> ConfigFile:
        path = tmp_path / "config.toml"
        path.write_text(text)
        return read_config_file(path)

    return write


InFile = Callable[[str], ConfigFile]


@pytest.mark.parametrize("command", ["chat", "complete"])
def test_what_nobody_set_is_none_and_a_switch_of_one_run_is_off(command: str) -> None:
    values = given(command)
    assert set(values) == {flag.name for flag in flags_of(command)}
    for flag in flags_of(command):
        expected = () if flag.is_repeatable else None if flag.metavar or flag.is_setting else False
        assert values[flag.name] == expected
        assert not values.is_typed(flag.name)
    assert read_chat_options(values) == ChatOptions()
    assert read_interface_options(values) == InterfaceOptions()


def test_the_command_line_beats_a_variable_and_that_the_file(in_file: InFile) -> None:
    config = in_file("seed = 1\ntop_k = 1\nctx = 1")
    values = given(typed={"seed": "3"}, config=config, TS_SEED="2", TS_TOP_K="2")
    assert (values["seed"], values["top_k"], values["ctx"]) == ("3", "2", "1")
    assert [values.is_typed(name) for name in ("seed", "top_k", "ctx")] == [True, False, False]


@pytest.mark.parametrize("flag", SETTINGS.values(), ids=lambda flag: flag.name)
def test_an_empty_variable_is_as_good_as_none(flag: Any, in_file: InFile) -> None:
    command = flag.commands[0]
    assert given(command, **{flag.variable: ""})[flag.name] == given(command)[flag.name]


@pytest.mark.parametrize("flag", SETTINGS.values(), ids=lambda flag: flag.name)
def test_every_setting_has_a_variable(flag: Any) -> None:
    value = given(flag.commands[0], **{"TS_" + flag.name.upper(): "x"})[flag.name]
    assert value == (("x",) if flag.is_repeatable else "x")


@pytest.mark.parametrize("flag", [flag for flag in FLAGS if not flag.is_setting], ids=lambda flag: flag.name)
def test_what_belongs_to_one_run_has_none(flag: Any) -> None:
    command = flag.commands[0]
    assert given(command, **{flag.variable: "1"})[flag.name] == given(command)[flag.name]


@pytest.mark.parametrize(("typed", "expected"), [(True, True), (False, False), (None, False)])
def test_a_pair_overrules_the_file_either_way(typed: bool | None, expected: bool, in_file: InFile) -> None:
    values = given(typed={"reuse": typed}, config=in_file("reuse = false"))
    assert read_chat_options(values).completion.reuse is expected


def test_typed_stop_strings_take_the_place_of_those_in_the_file(in_file: InFile) -> None:
    config = in_file('stop = ["a", "\\\\n", "none"]')

    def stops(values: FlagValues) -> tuple[str, ...]:
        return read_chat_options(values).completion.stop_strings

    assert stops(given(config=config)) == ("a", r"\n", "none")  # as they stand
    assert stops(given(config=config, typed={"stop": ["END", '"a" "b"', r"\n"]})) == ("END", "a", "b", "\n")
    assert stops(given(config=config, typed={"stop": ["none"]})) == ()
    assert stops(given(config=config, TS_STOP='"x" "y"')) == ("x", "y")


def test_biases_of_a_table_are_ids_or_wait_for_a_tokenizer(in_file: InFile) -> None:
    options = read_chat_options(given(config=in_file("logit_bias = {2 = -100, 3 = 1}")))
    assert dict(options.completion.sampling.logit_bias) == {2: -100.0, 3: 1.0}
    by_text = given(config=in_file("logit_bias = {cat = -5}"))
    assert read_chat_options(by_text) == ChatOptions()
    assert by_text["logit_bias"] == "'cat':-5"


def outcome(read: Callable[[], ChatOptions]) -> ChatOptions | str:
    """What was read, or the complaint."""
    try:
        return read()
    except SettingError as error:
        return str(error)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("text", ["0", "1.5", "none", "-1", "drop", "efficiency", " 7 ", "2:-100", "x", ""])
def test_a_flag_reads_text_as_set_does(name: str, text: str) -> None:  # T26
    if SETTINGS[name].is_pair:
        text = {"0": "on", "x": "off"}.get(text, text)
    typed = {name: [text] if SETTINGS[name].is_repeatable else text}
    assert outcome(lambda: read_chat_options(given(typed=typed))) == outcome(
        lambda: OPTIONS[name].change(ChatOptions(), text)
    )


def test_the_screens_options_come_from_every_source(in_file: InFile) -> None:
    config = in_file('think = "hide"\ntoolbar = false\ntheme = "light"\nsave = false')
    values = given(config=config, typed={"save": True}, TS_THINK=" SHOW ", TS_THEME="dark")
    assert read_interface_options(values) == InterfaceOptions(
        think=Thinking.SHOW, toolbar=False, theme="dark", save=True
    )


def test_styles_of_the_file_change_the_theme(in_file: InFile) -> None:
    values = given(config=in_file('theme = "dark"\n[styles]\nerror = "bold blue"'))
    theme = read_theme(values)
    assert theme.styles == {**THEMES["dark"].styles, "error": "bold blue"}
    assert theme.code_theme == THEMES["dark"].code_theme


@pytest.mark.parametrize(
    ("text", "read", "problem"),
    [
        ("\ntemperature = true", read_chat_options, ":2: temperature is 'true': give a number, 0 to 100"),
        ("temperature = 1000", read_chat_options, ":1: temperature is 1000.0: give a number, 0 to 100"),
        ("seed = 1.5", read_chat_options, ":1: seed is '1.5': give a whole number"),
        ("temperature = nan", read_chat_options, ":1: temperature is nan: give a number"),
        ("reuse = 'maybe'", read_chat_options, ":1: reuse is 'maybe': give on or off"),
        ("stop = ['']", read_chat_options, ":1: "),
        ("think = 'no'", read_interface_options, ":1: think is 'no': give one of show, fold, hide"),
        ("editing = 'joe'", read_interface_options, ":1: editing is 'joe': give emacs or vi"),
        ("save = 1", read_interface_options, ":1: save is '1': give on or off"),
        ("theme = 'drak'", read_theme, ":1: theme is 'drak': give one of default, dark"),
        ("[styles]\neror = 'red'", read_theme, ":2: unknown style `eror`: did you mean `error`?"),
        ("[styles]\nerror = 'rde'", read_theme, ":2: style error is 'rde': give colours and words"),
        ("ctx = 0", lambda values: values.read("ctx", read_ctx), ":1: ctx is '0'"),
        ("threads = 0", lambda values: values.read("threads", read_threads), ":1: threads is '0'"),
    ],
)
def test_a_value_the_file_may_not_have_is_named_with_its_line_and_what_is_allowed(
    text: str, read: Callable[[FlagValues], object], problem: str, in_file: InFile
) -> None:
    config = in_file(text)
    with pytest.raises(ConfigError) as caught:
        read(given(config=config))
    assert str(caught.value).startswith(f"{config.path}{problem}")


def test_a_value_that_a_variable_may_not_have_is_named_with_the_variable() -> None:
    with pytest.raises(SettingError, match=r"^TS_TOP_P: top_p is 2.0: give a number, 0 to 1$"):
        read_chat_options(given(TS_TOP_P="2"))


def test_a_file_that_is_not_sound_gives_no_values(in_file: InFile) -> None:
    with pytest.raises(ConfigError, match="unknown setting `x`"):
        given(config=in_file("x = 1\nseed = 2"))


def test_bytes_of_a_variable_that_are_no_text_become_replacement_characters() -> None:  # T45
    assert given(TS_SYSTEM="a\udcffb")["system"] == "a\ufffdb"
