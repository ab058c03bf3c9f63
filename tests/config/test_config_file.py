"""What the config file may say, and that whatever else it says is named by its line."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turbospark_chat.config.config_file import ConfigFile, read_config_file, read_user_config
from turbospark_chat.config.flags import SETTINGS
from turbospark_chat.errors import ConfigError
from turbospark_chat.settings import CONFIG_VARIABLE


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def read(path: Path, content: str | bytes) -> ConfigFile:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_config_file(path)


def values(config: ConfigFile) -> dict[str, object]:
    assert config.problems == ()
    return {name: entry.value for name, entry in config.settings.items()}


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("temperature = 0.2", "temperature", "0.2"),
        ("temperature = 1", "temperature", "1"),
        ('temperature = "0.2"', "temperature", "0.2"),
        ("top-k = -1", "top_k", "-1"),
        ("top_k = -1", "top_k", "-1"),
        ("'top-k' = 0x10", "top_k", "16"),
        ("reuse = false", "reuse", "false"),
        ('reuse = "off"', "reuse", "off"),
        ('seed = "none"', "seed", "none"),
        ('stop = "a"', "stop", ("a",)),
        ('stop = ["a", "b\\n"]', "stop", ('"a"', r'"b\n"')),
        ("stop = []", "stop", ()),
        ('system = """two\nlines"""', "system", "two\nlines"),
        ("logit_bias = {2 = -100, 'cat' = 1.5}", "logit_bias", "'2':-100,'cat':1.5"),
        ('logit_bias = {"don\'t" = -1}', "logit_bias", '"don\'t":-1'),
        ("logit_bias = {}", "logit_bias", "none"),
        ('logit_bias = "2:-100"', "logit_bias", "2:-100"),
    ],
)
def test_a_value_is_what_a_user_would_type(path: Path, line: str, name: str, value: object) -> None:
    assert values(read(path, line)) == {name: value}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("\n\ntemprature = 1", ":3: unknown setting `temprature`: did you mean `temperature`?"),
        ("qqq = 1", ":1: unknown setting `qqq`: `ts config` lists those there are"),
        ("[chat]\nseed = 1", ":1: unknown table `[chat]`: there is only `[styles]`"),
        ("json = true", ":1: `json` belongs to one run; give `--json` on the command line"),
        ("\ntemperature = [1]", ":2: temperature is [1]: give a single value"),
        ("# a\u2028b\nqqq = 1", ":2: unknown setting `qqq`"),
        ('"two\\nlines" = 1', ": unknown setting `two lines`"),
        ("seed = 1979-05-27", ':1: seed is "1979-05-27": give a single value'),
        ("\nmodel = 5", ':2: model is 5: give a text, as in "..."'),
        ("system = true", ':1: system is true: give a text, as in "..."'),
        ("template = ['a']", ':1: template is ["a"]: give a text, as in "..."'),
        ("stop = 5", ":1: stop is 5: give a text, or several"),
        ("stop = [1]", ":1: stop is [1]: give a text, or several"),
        ('stop = "a"\ntop-p = 1\ntop_p = 1', ":3: `top_p` is `top-p` again; leave one out"),
        ("logit_bias = {2 = 'x'}", ":1: logit_bias is"),
        ("styles = 'dark'", ":1: `styles` is a table: begin it with `[styles]`"),
        ("[styles]\nbar = 1", ":2: style bar is 1: give a text"),
        ("[styles]\nseed = 1", ":2: `seed` is a setting, not a style; write it above `[styles]`"),
        ("seed = 1\nx =\n", ": not TOML: Invalid value (at line 2, column 4)"),
        ("seed = 1\nseed = 2\n", ": not TOML: Cannot overwrite a value (at line 2"),
        (b"seed = 1\nsystem = '\xff'", ":2: not UTF-8 text; save it as UTF-8"),
        ("x = " + "[" * 5000, ": not TOML: "),
        ("seed = " + "9" * 5000, ": not TOML: "),
    ],
)
def test_what_may_not_be_there_is_one_line_that_names_the_file_and_the_line(
    path: Path, content: str | bytes, problem: str
) -> None:
    config = read(path, content)
    (found,) = config.problems
    assert found.startswith(f"{path}{problem}")
    assert "\n" not in found
    with pytest.raises(ConfigError) as caught:
        config.check()
    assert str(caught.value) == found and caught.value.exit_code == 2


def test_every_problem_is_found_at_once(path: Path) -> None:
    assert len(read(path, "a = 1\nb = 2\n[styles]\nbar = 3").problems) == 3


def test_styles_may_be_written_with_or_without_quotes(path: Path) -> None:
    config = read(path, '[styles]\n"bar.good" = "blue"\nbar.busy = "red"\nerror = "bold"')
    assert {name: entry.value for name, entry in config.styles.items()} == {
        "bar.good": "blue", "bar.busy": "red", "error": "bold",
    }  # fmt: skip
    assert [entry.place for entry in config.styles.values()] == [f"{path}:{line}" for line in (2, 3, 4)]


def test_a_value_knows_its_line_and_only_the_file_where_two_lines_look_like_it(path: Path) -> None:
    config = read(path, 'system = """\nseed = 1\n"""\nseed = 2\ntop_k = 3')
    assert config.settings["top_k"].place == f"{path}:5"
    assert config.settings["seed"].place == str(path)


def test_a_byte_order_mark_and_windows_line_ends_are_nothing(path: Path) -> None:
    assert values(read(path, b"\xef\xbb\xbfseed = 1\r\ntop_k = 2\r\n")) == {"seed": "1", "top_k": "2"}


def test_a_file_that_is_not_there_says_nothing_unless_it_must_be(path: Path) -> None:
    assert read_config_file(path) == ConfigFile(path)
    assert read_config_file(path / "below" / "a file").problems == ()
    assert read_config_file(path, must_exist=True).problems == (f"{path}: No such file or directory",)


def test_a_folder_is_one_line(tmp_path: Path) -> None:
    assert read_config_file(tmp_path).problems == (f"{tmp_path}: cannot be read: Is a directory",)


@pytest.fixture
def unreadable(path: Path) -> Path:
    path.write_text("seed = 1")
    path.chmod(0)
    return path


def test_a_file_that_may_not_be_read_is_one_line(unreadable: Path, ordinary_user: None) -> None:
    assert read_config_file(unreadable).problems == (f"{unreadable}: cannot be read: Permission denied",)


def test_a_path_that_cannot_be_is_one_line() -> None:
    (problem,) = read_config_file(Path("a\0b")).problems
    assert "cannot be read" in problem


def test_the_users_file_is_in_the_config_folder_unless_a_variable_names_another(
    isolated_home: Path, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = isolated_home / "config" / "turbospark_chat" / "config.toml"
    assert read_user_config() == ConfigFile(usual)
    usual.parent.mkdir(parents=True)
    usual.write_text("seed = 1")
    assert values(read_user_config()) == {"seed": "1"}
    monkeypatch.setenv(CONFIG_VARIABLE, str(path))
    assert read_user_config().problems == (f"{path}: No such file or directory",)
    path.write_text("seed = 2")
    assert values(read_user_config()) == {"seed": "2"}


ODD_LINES = st.one_of(
    st.text(max_size=30),
    st.builds("{} = {}".format, st.sampled_from([*SETTINGS, "styles"]), st.text(max_size=12)),
    st.sampled_from(["[styles]", "a.b.c = 1", "[[styles]]", "styles.bar = {}", "stop.x = 1", "seed = inf"]),
)


@given(
    content=st.one_of(
        st.binary(max_size=60),
        st.lists(ODD_LINES).map(lambda rows: "\n".join(rows).encode("utf-8", "replace")),
    )
)
def test_whatever_a_file_holds_it_is_read_or_its_problems_are_single_lines(
    content: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / "odd.toml"
    path.write_bytes(content)
    config = read_config_file(path)
    assert all(problem.startswith(str(path)) and "\n" not in problem for problem in config.problems)
    for entry in (*config.settings.values(), *config.styles.values()):
        assert isinstance(entry.value, str | tuple)
