"""Commands that bring text in and take it out: files, the clipboard, stored conversations."""

import os
from collections.abc import Iterable
from pathlib import Path

from turbospark_chat.chat.attachment import read_attachment
from turbospark_chat.chat.transcript_file import write_text_file, write_transcript
from turbospark_chat.errors import UsageError
from turbospark_chat.terminal import clipboard
from turbospark_chat.terminal.commands.answer import say
from turbospark_chat.terminal.commands.command import command, paths
from turbospark_chat.terminal.commands.context import CommandContext
from turbospark_chat.terminal.commands.costs import say_cost
from turbospark_chat.terminal.commands.needs import last_reply, screen_of


@command("FILE", completes=paths)
def attach(context: CommandContext, argument: str) -> None:
    """Put a text file into the next message."""
    if not argument:
        raise UsageError("`/attach FILE` needs a file")
    attachment = read_attachment(argument)
    context.attach(attachment.name, attachment.text)


@command()
def paste(context: CommandContext, argument: str) -> None:
    """Put the clipboard's text into the next message."""
    text = clipboard.paste(os.environ)
    if not text:
        raise UsageError("the clipboard holds no text")
    context.attach("clipboard", text)


@command()
def copy(context: CommandContext, argument: str) -> None:
    """Put the last reply on the clipboard."""
    reply = last_reply(context)
    way = screen_of(context, "copy").copy(reply.content)
    say(context, f"copied {len(reply.content):,} characters by {way}")


@command("[NAME]", needs_idle=True)
def save(context: CommandContext, argument: str) -> None:
    """Store this conversation, under a name if you like."""
    number = context.archive.save(context.session, argument or None)
    say(context, f"stored as {number}; `ts chat --resume {argument or number}` goes on with it")


def _stored(context: CommandContext, typed: str) -> Iterable[str]:
    """Offer what is stored, the latest first."""
    for summary in context.archive.list():
        for reference in (summary.name, str(summary.id)):
            if reference and reference.startswith(typed):
                yield reference


@command("ID[@TURN|@BRANCH]|NAME|FILE", needs_idle=True, completes=_stored)
def load(context: CommandContext, argument: str) -> None:
    """Go on with a stored conversation, or with one in a file that `/export` wrote."""
    if not argument:
        raise UsageError("`/load` needs what to load: `ts history` lists what is stored")
    session, loaded = context.session, context.archive.read(argument)
    conversation = loaded.conversation
    has_state = context.archive.has_state(loaded)
    if not has_state:
        say_cost(context, f"loading {loaded.title}", conversation.turns, system=conversation.system)

    def show() -> None:
        if has_state:  # only now is it known what that was good for
            say_cost(context, f"loaded {loaded.title}", session.conversation.turns)
        context.show_turns()

    context.start_change(lambda cancel: context.archive.open(session, loaded, cancel=cancel), then=show)


@command("FILE [--force]", completes=paths)
def export(context: CommandContext, argument: str) -> None:
    """Write the conversation to a file: .md, .json, .html, or .svg as it shows here."""
    name = argument.removeprefix("--force ").removesuffix(" --force").strip()
    path, is_forced = Path(name).expanduser(), name != argument
    if path.suffix.lower() not in (".md", ".json", ".html", ".svg"):
        raise UsageError(
            f"`/export {name}`: the file must end in .md, .json, .html or .svg, which says the form"
        )
    if path.suffix.lower() == ".svg":
        write_text_file(path, screen_of(context, "export").draw(), overwrite=is_forced)
    else:
        write_transcript(path, context.archive.transcript(context.session), overwrite=is_forced)
    say(context, f"wrote {path}")
