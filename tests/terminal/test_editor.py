"""The user's editor, played by small programs."""

import asyncio
import os
import stat
import sys
from pathlib import Path

import pytest

from turbospark_chat.errors import UsageError
from turbospark_chat.terminal.editor import edit_text


@pytest.fixture
def make_editor(tmp_path):
    """Return what makes an editor of some lines of Python about `path`; its notes go to `tmp_path / "notes"`."""

    def make(code, arguments=""):
        program = tmp_path / "an editor.py"
        program.write_text(f"import sys, os, time, pathlib\npath = pathlib.Path(sys.argv[-1])\n{code}")
        return {"EDITOR": f"{sys.executable} '{program}' {arguments}", "NOTES": str(tmp_path / "notes")}

    return make


def edit(text, environment):
    return asyncio.run(edit_text(text, environment))


@pytest.mark.parametrize(
    "text", ["", "one", "one\n", "two\nlines\n\n", "中文 👨\u200d👩\u200d👧", "caf\udce9"]
)
def test_a_text_left_as_it_is_comes_back_so(make_editor, text):
    assert edit(text, make_editor("")) == text


def test_the_newline_an_editor_adds_is_taken_away_and_others_stay(make_editor):
    environment = make_editor("path.write_text(path.read_text() + '\\n')")
    assert edit("one", environment) == "one"
    assert edit("one\n", environment) == "one\n\n"


def test_the_file_is_private_is_markdown_and_is_gone_afterwards_with_its_backups(make_editor, tmp_path):
    code = (
        "pathlib.Path(os.environ['NOTES']).write_text(f'{path} {os.stat(path.parent).st_mode}')\n"
        "pathlib.Path(f'{path}~').touch()"
    )
    edit("one", make_editor(code))
    path, mode = (tmp_path / "notes").read_text().rsplit(" ", 1)
    assert stat.S_IMODE(int(mode)) == 0o700
    assert path.endswith(".md")
    assert not Path(path).parent.exists()


def test_an_editor_may_have_arguments_and_visual_goes_before_editor(make_editor):
    environment = make_editor("path.write_text(' '.join(sys.argv[1:-1]))", arguments="-w --new 'a b'")
    environment["VISUAL"] = environment.pop("EDITOR")
    assert edit("", {**environment, "EDITOR": "false"}) == "-w --new a b"


def test_without_a_setting_the_first_usual_editor_is_run(tmp_path):
    vi = tmp_path / "vi"
    vi.write_text('#!/bin/sh\nprintf by-vi > "$1"\n')
    vi.chmod(0o755)
    assert edit("", {"PATH": str(tmp_path), "EDITOR": " "}) == "by-vi"


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"PATH": ""}, r"there is no editor: set \$VISUAL or \$EDITOR, as in `export EDITOR=nano`"),
        (
            {"EDITOR": "/no/such -w"},
            r"cannot run the editor `/no/such`: No such file or directory; set \$VISUAL",
        ),
        ({"EDITOR": "'unclosed"}, r"\$EDITOR is \"'unclosed\": No closing quotation; set it as in"),
        (
            {"EDITOR": "false", "PATH": os.environ["PATH"]},
            "the editor `false` ended with 1: the text is as it was",
        ),
    ],
)
def test_what_cannot_be_edited_says_what_to_do(environment, message):
    with pytest.raises(UsageError, match=message):
        edit("text", environment)


@pytest.mark.parametrize(
    ("left", "problem"),
    [
        ("", "No such file or directory"),
        ("os.mkfifo(path)", "it is not a regular file"),
        ("path.mkdir()", "Is a directory"),
        ("path.symlink_to('/dev/zero')", "it is not a regular file"),
        ("path.symlink_to(path)", "Too many levels of symbolic links"),
        ("path.touch(); os.truncate(path, 1 << 40)", "it has more than 16 MB"),
    ],
)
def test_what_the_editor_leaves_in_place_of_the_file_is_said_and_not_waited_for(make_editor, left, problem):
    with pytest.raises(
        UsageError, match=f"^cannot read what the editor left: {problem}; the text is as it was$"
    ):
        edit("text", make_editor(f"path.unlink()\n{left}"))


def test_cancelled_it_ends_the_editor_and_takes_the_file_away(make_editor, tmp_path):
    code = "pathlib.Path(os.environ['NOTES']).write_text(f'{path} {os.getpid()}'); time.sleep(60)"

    async def cancel():
        editing = asyncio.ensure_future(edit_text("text", make_editor(code)))
        notes = tmp_path / "notes"
        while not (notes.exists() and notes.read_text()):
            await asyncio.sleep(0.005)
        editing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await editing
        return notes.read_text().rsplit(" ", 1)

    path, pid = asyncio.run(cancel())
    assert not Path(path).parent.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid), 0)
