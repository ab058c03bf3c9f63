"""From flags to something running: the chat at a screen or in a pipe, and completions.

With `cli` and `assembly` the composition root. stdout gets what was asked for, stderr everything else.
"""

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TextIO

from turbospark_chat.assembly import choose_arithmetic, open_chat_model
from turbospark_chat.chat.attachment import Attachment, join_attachments, read_attachment
from turbospark_chat.chat.bias_text import is_text_bias
from turbospark_chat.chat.chat_model import ChatModel
from turbospark_chat.chat.chat_session import ChatSession
from turbospark_chat.chat.options import ChatOptions
from turbospark_chat.chat.template import read_template
from turbospark_chat.chat.turn_result import TurnEventSink, TurnResult
from turbospark_chat.chat.warm_states import WarmStates
from turbospark_chat.chat.window import OverflowPolicy
from turbospark_chat.command_line.configuration import (
    read_chat_options,
    read_ctx,
    read_interface_options,
    read_n,
    read_slots,
    read_state_budget,
    read_theme,
    read_window_slack,
)
from turbospark_chat.command_line.model_files import ModelShelf, find_model
from turbospark_chat.command_line.prefix_cache import PrefixCache
from turbospark_chat.config.flag_values import FlagValues
from turbospark_chat.engine.model_thread import ModelThread
from turbospark_chat.engine.raw_completion import CancelFlag
from turbospark_chat.errors import ModelWarning, StoreError, UsageError
from turbospark_chat.models.catalog import ResolvedModel
from turbospark_chat.models.loader import Arithmetic
from turbospark_chat.settings import Locations
from turbospark_chat.terminal.interface_options import Editing, InterfaceOptions, Thinking
from turbospark_chat.terminal.progress_line import CompileLine
from turbospark_chat.terminal.script import Generate, ScriptRunner
from turbospark_chat.terminal.script_output import JsonOutput, ScriptOutput, Streams, TextOutput
from turbospark_chat.terminal.turn_record import TurnOrigin
from turbospark_chat.terminal.type_ahead import type_ahead
from turbospark_chat.threads import read_threads

if TYPE_CHECKING:
    from turbospark_chat.chat.archive import ConversationArchive, Loaded


def run_chat(flags: FlagValues) -> int:
    """Chat: on a screen where there is a keyboard and a terminal, otherwise line by line."""
    options, interface = read_chat_options(flags), read_interface_options(flags)
    attachments = [read_attachment(path) for path in flags["file"]]
    stream = None if flags["json"] or not sys.stdin.isatty() else _screen_stream()
    if stream is None:
        options = _without_asking(flags, options, "needs a terminal to ask at")
    with closing(_open_archive(_warm_states(flags))) as archive:
        loaded = None if flags["resume"] is None else archive.read(flags["resume"])
        return _chat(flags, options, interface, attachments, stream, archive, loaded)


def _warm_states(flags: FlagValues) -> WarmStates:
    return WarmStates(Locations.of_user().states, megabytes=flags.read("state_budget", read_state_budget))


def _open_archive(states: WarmStates) -> "ConversationArchive":
    """Return the archive; what it needs is imported here, since a completion stores nothing and starts sooner."""
    from turbospark_chat.chat.archive import ConversationArchive
    from turbospark_chat.chat.store import Store

    return ConversationArchive(lambda: Store.open(Locations.of_user().conversations), states=states)


def _chat(
    flags: FlagValues,
    options: ChatOptions,
    interface: InterfaceOptions,
    attachments: Sequence[Attachment],
    stream: TextIO | None,
    archive: "ConversationArchive",
    loaded: "Loaded | None",
) -> int:
    resolved = find_model(flags)
    with type_ahead() if stream is not None else nullcontext():  # until the screen itself reads keys
        session = _open_session(resolved, flags, options)
        archive.name_model(resolved.name, session.arithmetic)
        if interface.save:
            with _warning("this chat is not stored"):
                archive.keep(session)
        if loaded is not None:
            archive.open(session, loaded)
            if flags["system"] is not None:
                with _warning("the system prompt is not stored"):
                    session.set_system(flags["system"])
        shelf = ModelShelf(resolved, load=partial(_load_another, flags), on_change=archive.name_model)
        thread = ModelThread()
        try:
            if stream is None:
                return _run_lines(session, thread, archive, shelf, flags, interface, attachments)
            return _run_repl(session, thread, archive, shelf, flags, interface, attachments, stream)
        finally:
            with _warning("the last turns are not stored"):
                archive.catch_up(session.conversation)
            if thread.has_ended:  # otherwise it still changes what would be stored
                archive.leave(session)


@contextmanager
def _warning(problem: str) -> Iterator[None]:
    """Go on where the store fails, and say so."""
    try:
        yield
    except StoreError as error:
        warnings.warn(f"{problem}: {error}", ModelWarning, stacklevel=1)


def run_complete(flags: FlagValues, prompt: str) -> int:
    """Answer one prompt, read from the command line, files and stdin."""
    is_raw = flags["raw"]
    for name in ("system", "template"):
        if is_raw and flags.is_typed(name):
            raise UsageError(f"`--raw` uses no template, so `--{name}` has no place in it; leave one out")
    options = _without_asking(flags, read_chat_options(flags), "is for the chat")
    interface = read_interface_options(flags)
    n_answers = flags.read("n", read_n)
    if flags["prefix_cache"] is not None and not options.completion.reuse:
        raise UsageError(
            "`--prefix-cache` reuses what was computed, which `--no-reuse` forbids; leave one out"
        )
    prefix = PrefixCache(_warm_states(flags), flags["prefix_cache"])
    attachments = [read_attachment(path) for path in flags["file"]]
    piped = _read_stdin(is_raw=is_raw)
    text = join_attachments(attachments, "\n".join(part for part in (prompt, piped) if part))
    if not text.strip():
        raise UsageError("nothing to answer: give a PROMPT, or pipe one in")
    resolved = find_model(flags)
    session = _open_session(resolved, flags, options, is_raw=is_raw)
    prefix.take_up(session)
    streams = Streams(sys.stdout, sys.stderr, is_quiet=flags["quiet"])
    if sys.stderr.isatty():
        for given in (*attachments, Attachment("stdin", piped)):
            if given.text:
                streams.note(f"{given.name}: {session.count_text(given.text)} tokens\n")
    output = _output(flags, interface, streams, separator="\n")
    answers = prefix.watch(_answers(session, text, n_answers, is_raw=is_raw))
    thread = ModelThread()
    try:
        return ScriptRunner(thread, output).run(answers, TurnOrigin(resolved.name, session.arithmetic))
    finally:
        thread.close()
        if thread.has_ended:
            prefix.keep(session)
        if sys.stderr.isatty():
            streams.note(prefix.summary(session))


def _answers(session: ChatSession, text: str, n_answers: int, *, is_raw: bool) -> Iterator[Generate]:
    """Yield the work for so many answers to one prompt. A seed that is given goes up by one with each."""
    options = session.options
    for number in range(n_answers):
        session.options = _with_next_seed(options, number)
        if is_raw:
            yield partial(_complete, session, text)
        elif session.conversation.turns:
            yield partial(_retry, session)
        else:
            yield partial(_send, session, text)


def _with_next_seed(options: ChatOptions, number: int) -> ChatOptions:
    sampling = options.completion.sampling
    if sampling.seed is None:
        return options
    sampling = replace(sampling, seed=sampling.seed + number)
    return replace(options, completion=replace(options.completion, sampling=sampling))


def _send(session: ChatSession, text: str, cancel: CancelFlag, on_event: TurnEventSink) -> TurnResult:
    return session.send(text, cancel=cancel, on_event=on_event)


def _retry(session: ChatSession, cancel: CancelFlag, on_event: TurnEventSink) -> TurnResult:
    return session.retry(cancel=cancel, on_event=on_event)


def _complete(session: ChatSession, text: str, cancel: CancelFlag, on_event: TurnEventSink) -> TurnResult:
    return session.complete(text, cancel=cancel, on_event=on_event)


def _without_asking(flags: FlagValues, options: ChatOptions, problem: str) -> ChatOptions:
    """Return options for where nobody can be asked: a user who set `ask` for the chat gets a refusal instead."""
    if options.on_overflow is not OverflowPolicy.ASK:
        return options
    if flags.is_typed("on_overflow"):
        raise UsageError(f"`--on-overflow ask` {problem}; give drop or error")
    return replace(options, on_overflow=OverflowPolicy.ERROR)


def _open_session(
    resolved: ResolvedModel, flags: FlagValues, options: ChatOptions, *, is_raw: bool = False
) -> ChatSession:
    session = ChatSession(_load(flags, resolved, is_raw=is_raw), system=flags["system"], options=options)
    bias = flags["logit_bias"]
    if bias and is_text_bias(bias):
        flags.read("logit_bias", partial(session.set_option, "logit_bias"))
    return session


def _load(flags: FlagValues, resolved: ResolvedModel, *, is_raw: bool = False) -> ChatModel:
    return open_chat_model(
        resolved.path,
        context_length=flags.read("ctx", read_ctx),
        template=None if is_raw or flags["template"] is None else read_template(flags["template"]),
        is_raw=is_raw,
        arithmetic=_choose_arithmetic(flags),
        n_slots=_n_slots(flags),
        window_slack=flags.read("window_slack", read_window_slack),
    )


def _load_another(flags: FlagValues, resolved: ResolvedModel) -> ChatModel:
    """Load a model that takes over: its own template and context, since those asked for were meant for the first."""
    return open_chat_model(
        resolved.path, context_length=None, arithmetic=_choose_arithmetic(flags),
        n_slots=_n_slots(flags), window_slack=flags.read("window_slack", read_window_slack),
    )  # fmt: skip


def _n_slots(flags: FlagValues) -> int:
    """Return how many conversations' states to keep beside the live one; a completion has no other conversation."""
    return flags.read("slots", read_slots) if "slots" in flags else 0


def _choose_arithmetic(flags: FlagValues) -> Arithmetic:
    n_threads = flags.read("threads", read_threads)
    if flags["quiet"]:
        return choose_arithmetic(n_threads)
    return choose_arithmetic(n_threads, on_compile=CompileLine(sys.stderr).show)


def _read_stdin(*, is_raw: bool) -> str:
    """Return what is piped in; a message loses its last newline, raw text does not."""
    if sys.stdin is None or sys.stdin.isatty():
        return ""
    piped = sys.stdin.buffer.read().decode("utf-8-sig", "replace")
    return piped if is_raw else piped.rstrip("\r\n")


def _screen_stream() -> TextIO | None:
    """Return the stream a screen can be painted on, if there is one: stdout, or stderr where stdout is a pipe."""
    if os.environ.get("TERM", "dumb") == "dumb":
        return None
    return next((stream for stream in (sys.stdout, sys.stderr) if stream.isatty()), None)


def _run_repl(
    session: ChatSession,
    thread: ModelThread,
    archive: "ConversationArchive",
    shelf: ModelShelf,
    flags: FlagValues,
    interface: InterfaceOptions,
    attachments: Sequence[Attachment],
    stream: TextIO,
) -> int:
    from turbospark_chat.engine.system_probe import make_probe
    from turbospark_chat.terminal.ansi import Painter
    from turbospark_chat.terminal.display import Display
    from turbospark_chat.terminal.frame_output import open_output
    from turbospark_chat.terminal.repl import Repl

    # The model's thread needs Python between two kernel runs, and would otherwise wait 5 ms for the screen's.
    sys.setswitchinterval(0.0005)
    theme = read_theme(flags)
    painter = Painter(color=not os.environ.get("NO_COLOR"), styles=theme.styles)
    repl = Repl(
        session,
        thread,
        archive=archive,
        models=shelf,
        locations=Locations.of_user(),
        output=open_output(stream),
        display=Display(
            painter, code_theme=theme.code_theme, is_markdown=interface.markdown, thinking=interface.think
        ),
        probe=make_probe(),
        reply_stream=None if stream is sys.stdout else sys.stdout,
        is_vi=interface.editing is Editing.VI,
        has_bar=interface.toolbar,
        keeps_inputs=interface.save,  # they are the user's half of the conversation
        reads_ahead=interface.eager,
        is_debug=flags["debug"],
    )
    show_warning = warnings.showwarning
    warnings.showwarning = lambda message, *rest, **named: repl.warn(str(message))
    try:
        return repl.run(attachments=attachments, greets=not flags["quiet"])
    finally:
        warnings.showwarning = show_warning  # the screen has gone


def _run_lines(
    session: ChatSession,
    thread: ModelThread,
    archive: "ConversationArchive",
    shelf: ModelShelf,
    flags: FlagValues,
    interface: InterfaceOptions,
    attachments: Sequence[Attachment],
) -> int:
    from turbospark_chat.terminal.script_chat import ScriptChat
    from turbospark_chat.terminal.script_input import read_lines

    streams = Streams(sys.stdout, sys.stderr, is_quiet=flags["quiet"])
    output = _output(flags, interface, streams, survives_errors=sys.stdin.isatty())
    prompt = "> " if sys.stdin.isatty() and not flags["quiet"] else ""
    chat = ScriptChat(
        session, ScriptRunner(thread, output), output,
        archive=archive, models=shelf, is_json=flags["json"], attachments=attachments,
    )  # fmt: skip
    try:
        return chat.run(read_lines(sys.stdin.buffer, prompt=prompt, prompt_stream=sys.stderr))
    finally:
        thread.close()


def _output(
    flags: FlagValues,
    interface: InterfaceOptions,
    streams: Streams,
    *,
    separator: str = "",
    survives_errors: bool = False,
) -> ScriptOutput:
    if flags["json"]:
        return JsonOutput(streams, is_streaming=flags["stream"])
    return TextOutput(
        streams,
        hides_thinking=interface.think is Thinking.HIDE,
        separator=separator,
        survives_errors=survives_errors,
    )
