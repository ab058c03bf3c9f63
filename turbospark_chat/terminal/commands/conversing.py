"""Commands that change the conversation, or have the model go on with it."""

import re
import shlex
from collections.abc import Callable, Iterable

from turbospark_chat.chat.chat_session import ChatSession
from turbospark_chat.chat.context_use import KEEP, Keep
from turbospark_chat.chat.counted import counted
from turbospark_chat.chat.options import ChatOptions, find_option
from turbospark_chat.chat.text_match import in_one_line
from turbospark_chat.engine.raw_completion import CancelFlag
from turbospark_chat.errors import UsageError
from turbospark_chat.terminal.commands.answer import say, show_rows
from turbospark_chat.terminal.commands.command import command
from turbospark_chat.terminal.commands.context import CommandContext
from turbospark_chat.terminal.commands.costs import change, cost_text, read_count, say_cost
from turbospark_chat.terminal.commands.settings import option_completions

_BRANCH_NAME = re.compile(r"[\w.-]{1,40}")  # anything else could not be told from what stands around it


@command(needs_idle=True)
def clear(context: CommandContext, argument: str) -> None:
    """Begin a new conversation; the system prompt and the settings stay."""
    n_turns = len(context.session.conversation.turns)
    say_cost(context, f"clearing {counted(n_turns, 'turn')}", ())
    _leave(context, context.session.clear)


@command(needs_idle=True)
def new(context: CommandContext, argument: str) -> None:
    """Begin a new conversation with the system prompt and settings the chat started with."""
    session = context.session
    n_turns = len(session.conversation.turns)
    say_cost(context, f"leaving {counted(n_turns, 'turn')}", (), system=session.first_system)
    _leave(context, session.start_over)


def _leave(context: CommandContext, begin: Callable[[], None]) -> None:
    """Have what was computed for the conversation stored, which may take seconds, and another one begun."""

    def leave(cancel: CancelFlag) -> None:
        context.archive.leave(context.session, cancel=cancel)
        begin()

    context.start_change(leave)


@command("[TEXT]", needs_idle=True)
def system(context: CommandContext, argument: str) -> None:
    """Show the system prompt, or set another from the next message on; `none` is no prompt."""
    session = context.session
    if not argument:
        say(context, session.conversation.system or "no system prompt")
        return
    text = None if argument.lower() == "none" else argument
    say_cost(context, "changing the system prompt", session.conversation.turns, system=text)
    change(context, lambda: session.set_system(text))


def _retry_completions(context: CommandContext, typed: str) -> Iterable[str]:
    """Offer options and their values, for the last option that is typed."""
    before, dashes, last = typed.rpartition("--")
    if not dashes:
        return
    for offer in option_completions(context, last):
        name, blank, value = offer.partition(" ")
        yield f"{before}--{name.replace('_', '-')}{blank}{value}"


@command("[--OPTION VALUE]...", needs_idle=True, completes=_retry_completions)
def retry(context: CommandContext, argument: str) -> None:
    """Answer the last message again, if you like with other options for this once."""
    session = context.session
    options = _read_options(session, argument)
    if not session.conversation.turns:
        raise UsageError("there is no message to answer again yet")
    cost = session.costs.recomputed_by_retry(is_same_message=True)
    say(context, f"answering again: {cost_text(cost, 'at once')}")
    context.start(lambda cancel, sink: session.retry(options=options, cancel=cancel, on_event=sink))


def _read_options(session: ChatSession, argument: str) -> ChatOptions:
    """Return the options changed as `--name value --name value` says."""
    options = session.options
    try:
        words = shlex.split(argument)
    except ValueError as error:
        raise UsageError(f"`/retry {argument}`: {error}; close the quotes") from error
    while words:
        name, equals, value = words.pop(0).partition("=")
        if not name.startswith("--"):
            raise UsageError(f"`/retry` takes `--OPTION VALUE`, not `{name}`; `/set` lists the options")
        if not equals:
            if not words:
                raise UsageError(f"`{name}` needs a value: {find_option(name).values}")
            value = words.pop(0)
        options = session.with_option(options, name, value)
    return options


@command(needs_idle=True)
def continue_(context: CommandContext, argument: str) -> None:
    """Go on with a reply that was stopped or reached its limit."""
    session = context.session
    context.start(lambda cancel, sink: session.continue_reply(cancel=cancel, on_event=sink))


@command("[TEXT]", needs_idle=True)
def edit(context: CommandContext, argument: str) -> None:
    """Open your last message in $EDITOR and send it again; TEXT takes its place at once."""
    session = context.session
    turns = session.conversation.turns
    if not turns:
        raise UsageError("there is no message to edit yet")

    def send_again(text: str) -> None:
        if not text.strip():
            raise UsageError("the message is empty, so it stays as it was")
        cost = session.costs.recomputed_by_retry(is_same_message=False)
        say(context, f"sending it again: {cost_text(cost, 'with it')}")
        context.show_message(text)
        context.start(
            lambda cancel, sink: session.retry(content=text, cancel=cancel, on_event=sink), message=text
        )

    if argument:
        send_again(argument)
    elif context.screen is None:
        raise UsageError("there is no screen to edit on: give the new text, as in `/edit TEXT`")
    else:
        context.screen.edit(turns[-1].user.content, send_again)


@command("[N]", needs_idle=True)
def undo(context: CommandContext, argument: str) -> None:
    """Take back the last N turns, 1 if not given."""
    n_turns = read_count(argument, "/undo [N]")
    turns = context.session.conversation.turns
    if n_turns <= len(turns):  # otherwise the session says what is wrong
        say_cost(context, f"taking back {counted(n_turns, 'turn')}", turns[:-n_turns])
    change(context, lambda: context.session.undo(n_turns))


@command("N", needs_idle=True)
def rewind(context: CommandContext, argument: str) -> None:
    """Go back to where N turns had been taken; `/history` numbers them."""
    turns = context.session.conversation.turns
    if not argument.isdecimal() or len(argument) > 9 or int(argument) > len(turns):
        raise UsageError(f"`/rewind N` takes 0 to {len(turns)}, the turns to keep, not `{argument[:20]}`")
    n_turns = int(argument)
    if n_turns == len(turns):
        say(context, f"nothing to take back: the conversation has {counted(n_turns, 'turn')}")
        return
    say_cost(context, f"going back to turn {n_turns}", turns[:n_turns])
    change(context, lambda: context.session.rewind(n_turns))
    context.show_turns()


@command("[N]", needs_idle=True)
def forget(context: CommandContext, argument: str) -> None:
    """Take the oldest N turns out of the conversation, to make room."""
    n_turns = read_count(argument, "/forget [N]")
    turns = context.session.conversation.turns
    if not turns:
        raise UsageError("there is no turn to forget yet")
    n_turns = min(n_turns, len(turns))
    say_cost(context, f"forgetting the oldest {counted(n_turns, 'turn')}", turns[n_turns:])
    change(context, lambda: context.session.forget(n_turns))


@command("NAME", needs_idle=True)
def branch(context: CommandContext, argument: str) -> None:
    """Go on under another name, and keep the conversation so far under the present one."""
    if not argument:
        raise UsageError("`/branch NAME` needs a name for the new branch")
    if not _BRANCH_NAME.fullmatch(argument) or argument.isdecimal():
        raise UsageError(
            f"`{argument[:60]}` is no name for a branch: give letters, digits, `.`, `_` and `-`, up to 40 in all"
        )
    before = context.session.conversation.branch
    change(context, lambda: context.session.branch_off(argument))
    say(context, f"now on branch {argument}; `/switch {before}` goes back")


@command()
def branches(context: CommandContext, argument: str) -> None:
    """List the branches of this conversation."""
    conversation = context.session.conversation
    rows = [("", "branch", "turns", "last message")]
    for name, turns in conversation.branches.items():
        last = turns[-1].user.content if turns else ""
        rows.append(
            ("*" if name == conversation.branch else "", name, str(len(turns)), in_one_line(last, limit=50))
        )
    show_rows(context, rows)


def _branch_names(context: CommandContext, typed: str) -> Iterable[str]:
    """Offer the branches."""
    return (name for name in context.session.conversation.branches if name.startswith(typed))


@command("NAME", needs_idle=True, completes=_branch_names)
def switch(context: CommandContext, argument: str) -> None:
    """Go to another branch of this conversation."""
    if not argument:
        raise UsageError("`/switch NAME` needs the name of a branch; `/branches` lists them")
    session = context.session
    if argument == session.conversation.branch:
        say(context, f"on branch {argument} already")
        return
    turns = session.conversation.branches.get(argument)
    if turns is not None:  # otherwise the session says what is wrong
        its_system: str | None | Keep = session.conversation.systems[argument]
        if its_system == session.conversation.system:
            its_system = KEEP
        say_cost(
            context, f"going to branch {argument}, {counted(len(turns), 'turn')}", turns, system=its_system
        )
    change(context, lambda: session.switch(argument))
    context.show_turns()
    say(context, f"on branch {argument} now")
