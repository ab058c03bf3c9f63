"""What the README says of commands, options and files is what the program has."""

import re
from pathlib import Path

import pytest
import typer

from turbospark_chat.chat.turn_result import TurnResult
from turbospark_chat.command_line.subcommands import app
from turbospark_chat.config.flags import BOTH, CHAT, COMPLETE, FLAGS
from turbospark_chat.engine.completion import RawDecodeResult, StopReason
from turbospark_chat.engine.pressure import MemoryPressure
from turbospark_chat.terminal.commands.table import COMMANDS
from turbospark_chat.terminal.keys import KEY_HELP
from turbospark_chat.terminal.turn_record import TurnOrigin, turn_record

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def table_after(heading: str, *, header: str) -> dict[str, str]:
    """Return the rows of the first table under a heading whose first column has the given header."""
    section = README.split(f"\n{heading}\n", 1)[1]
    lines = section.split(f"| {header} |", 1)[1].splitlines()[2:]
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines[: lines.index("")]]
    return {row[0].strip().replace("\\|", "|"): row[1].strip() for row in rows}


def test_the_slash_commands_are_the_table_of_commands() -> None:
    expected = {f"`{command.usage}`": command.help for command in COMMANDS.values()}
    assert table_after("## In the chat", header="command") == expected


@pytest.mark.parametrize(
    ("heading", "commands"),
    [
        ("`ts chat` and `ts complete` take:", BOTH),
        ("`ts chat` alone:", CHAT),
        ("`ts complete` alone:", COMPLETE),
    ],
)
def test_the_options_are_the_flags(heading: str, commands: tuple[str, ...]) -> None:
    expected = {}
    for flag in FLAGS:
        if flag.commands == commands:
            *others, last = flag.spellings
            usage = [*others, f"{last} {flag.metavar}" if flag.metavar else last]
            expected[", ".join(f"`{spelling}`" for spelling in usage)] = flag.help
    assert table_after(heading, header="option") == expected


def test_the_commands_are_those_of_the_command_line() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    expected = {f"`ts {name}`": command.get_short_help_str(limit=200) for name, command in commands.items()}
    assert table_after("## On the command line", header="command") == expected


@pytest.mark.parametrize("name", re.findall(r"\b[a-z_]+\.py\b|tests/test_\w+\.py", README))
def test_every_file_named_exists(name: str) -> None:
    assert list(ROOT.glob(name)) or list((ROOT / "turbospark_chat").glob(name))


@pytest.mark.parametrize("layer", ["command_line", "config", "engine", "models", "chat", "terminal"])
def test_every_module_the_tree_names_exists(layer: str) -> None:
    (line,) = re.findall(rf"^  {layer}/ .*?: (.*)$", README, re.MULTILINE)
    names = [name.strip() for name in line.split(",")]
    folder = ROOT / "turbospark_chat" / layer
    modules = {path.stem for path in folder.glob("*.py")} | {
        path.parent.name for path in folder.glob("*/*.py")
    }
    loose = {
        "KvPrefix": "kv_prefix",
        "LogitProducer": "producer",
        "run_raw_completion": "raw_completion",
        "stops": "stop_matcher",
    }
    assert {loose.get(name, name) for name in names} <= modules


def test_the_examples_of_help_are_commands_and_flags_there_are() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    lines = [line.split("  ")[1] for line in app.info.epilog.split("\n") if line.startswith("  ts ")]
    assert len(lines) >= 6
    for line in lines:
        words = line.removeprefix("ts ").split(" ")
        command = words[0] if not words[0].startswith("-") else "chat"
        spellings = {name for parameter in commands[command].params for name in parameter.opts}
        assert {word for word in words if word.startswith("-")} <= spellings


def test_the_figures_explained_are_those_in_the_picture() -> None:
    picture = (ROOT / "examples" / "chat.svg").read_text()
    ((reused, total, of, still, computed),) = re.findall(
        r"`reused (\d+)/(\d+)` means: of (\d+) prompt tokens, (\d+) were still in the cache and (\d+) were",
        README,
    )
    assert f"reused {reused}/{total}" in picture.replace("\N{NO-BREAK SPACE}", " ").replace("&#160;", " ")
    assert (of, still, int(computed)) == (total, reused, int(total) - int(reused))


def test_the_keys_are_those_that_the_chat_shows() -> None:
    assert table_after("## In the chat", header="key") == dict(KEY_HELP)


def test_the_json_keys_named_are_written() -> None:
    raw = RawDecodeResult(1, 0, (), 0.0, 0.0, StopReason.EOS, 1, (1,), 0, False, MemoryPressure.NORMAL)
    record = turn_record(TurnResult(None, raw, 0, 0), TurnOrigin("model", "arithmetic"))
    sentence = README.split("a `turn` with ", 1)[1].split(" and more", 1)[0]
    for key in re.findall(r"`(\w+)`", sentence):
        assert key in record
