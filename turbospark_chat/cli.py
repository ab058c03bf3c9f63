"""The command line `ts`: parse, build, call one thing, map errors to exit codes.

A command returns what is to be done; `run` does it, outside typer, so that errors are shown in one place. Every
command imports what it needs then: `ts --help` loads neither numpy nor the engine nor prompt_toolkit.
"""

import inspect
import io
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from turbospark_chat import __version__
from turbospark_chat.errors import ModelWarning, TurboSparkError
from turbospark_chat.flags import FLAGS, Flag
from turbospark_chat.threads import read_threads, set_blas_threads

EXIT_FAILED, EXIT_USAGE, EXIT_CANCELLED = 1, 2, 130
_ClickUsageError: Any = typer.BadParameter.__mro__[
    1
]  # every complaint about the command line derives from it

Action = Callable[[], int]

app = typer.Typer(
    help="Chat with a local language model in the terminal. `ts` alone is `ts chat`.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run `ts` with the process's arguments and exit."""
    _prepare_streams()
    exit_code = _flush(run(sys.argv[1:]))
    # Nothing is left to stop, and Python's own ending takes an interrupt badly.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(exit_code)


def _flush(exit_code: int) -> int:
    """Write what stdout still holds and return the exit code; what cannot be written is let go.

    Python would try once more at its end, and exit with 120.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if exit_code == 0 and not isinstance(error, BrokenPipeError):
            return _fail(error.strerror or str(error), EXIT_FAILED, is_debug=False)
    return exit_code


def _prepare_streams() -> None:
    """Replace streams the shell closed (`<&-`, `>&-`) by the null device; write `?` for what an encoding lacks."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def run(arguments: list[str]) -> int:
    """Run `ts` and return its exit code. Whatever goes wrong is one line on stderr."""
    warnings.simplefilter("always", ModelWarning)
    warnings.showwarning = _show_warning
    is_debug = "--debug" in arguments
    try:
        action = typer.main.get_command(app).main(
            _with_default_command(arguments), prog_name="ts", standalone_mode=False
        )
        return action() if callable(action) else int(action or 0)
    except TurboSparkError as error:
        return _fail(str(error), error.exit_code, is_debug)
    except _ClickUsageError as error:
        command = error.ctx.command_path if error.ctx else "ts"
        return _fail(f"{error.format_message().rstrip('.')}; see `{command} --help`", EXIT_USAGE, is_debug)
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_CANCELLED
    except BrokenPipeError:  # whoever read us has gone: no failure of ours
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}", EXIT_FAILED, is_debug)
    except MemoryError:
        return _fail("out of memory; close other programs or set a smaller `--ctx`", 4, is_debug)
    except Exception as error:
        return _fail(f"{type(error).__name__}: {error}; run with `--debug` for where", EXIT_FAILED, is_debug)


def _with_default_command(arguments: list[str]) -> list[str]:
    """`ts` and `ts -m MODEL` are `ts chat`."""
    is_chat = not arguments or (arguments[0].startswith("-") and arguments[0] not in _TOP_LEVEL_OPTIONS)
    return ["chat", *arguments] if is_chat else arguments


_TOP_LEVEL_OPTIONS = ("-h", "--help", "--version", "--install-completion", "--show-completion")


def _fail(problem: str, exit_code: int, is_debug: bool) -> int:
    if is_debug:
        traceback.print_exc()
    from turbospark_chat.terminal.harmless import harmless

    line = harmless(" ".join(problem.split()))  # names from files and templates are in it
    print("error: " + (line if len(line) <= 500 else line[:499] + "…"), file=sys.stderr)
    return exit_code


def _show_warning(message: Warning | str, category: type[Warning], *rest: object, **named: object) -> None:
    from turbospark_chat.terminal.harmless import harmless

    print(harmless(f"warning: {message}"), file=sys.stderr)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"ts {__version__}")
        raise typer.Exit


@app.callback()
def _top_level(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def _takes_flags(command: Callable[..., Action]) -> Callable[..., Action]:
    """Give a command the shared flags as parameters; it receives them as one dictionary, its first argument."""

    def with_flags(**values: Any) -> Action:
        flags = {flag.name: values.pop(flag.name) for flag in FLAGS}
        return command(flags, **values)

    own = list(inspect.signature(command).parameters.values())[1:]
    shared = [_parameter(flag) for flag in FLAGS]
    with_flags.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    with_flags.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *shared]}
    with_flags.__name__, with_flags.__doc__ = command.__name__, command.__doc__
    return with_flags


def _parameter(flag: Flag) -> inspect.Parameter:
    names = [flag.spelling] + ([flag.short] if flag.short else [])
    option = typer.Option(*names, metavar=flag.metavar, help=flag.help, show_default=False)
    kind: Any = bool if flag.metavar is None else list[str] if flag.is_repeatable else str | None
    default: Any = False if flag.metavar is None else [] if flag.is_repeatable else None
    return inspect.Parameter(
        flag.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )


@app.command()
@_takes_flags
def chat(flags: dict[str, Any]) -> Action:
    """Chat with a model; lines piped in are turns of one conversation."""

    def action() -> int:
        set_blas_threads(read_threads(flags["threads"]))
        from turbospark_chat.launch import run_chat

        return run_chat(flags)

    return action


@app.command()
@_takes_flags
def complete(
    flags: dict[str, Any],
    prompt: Annotated[
        str, typer.Argument(metavar="[PROMPT]", help="The message; piped input is added to it.")
    ] = "",
    raw: Annotated[
        bool, typer.Option("--raw", help="Feed the text as it is, without the chat template.")
    ] = False,
) -> Action:
    """Answer one prompt and exit."""

    def action() -> int:
        set_blas_threads(read_threads(flags["threads"]))
        from turbospark_chat.launch import run_complete

        return run_complete(flags, prompt, is_raw=raw)

    return action


NameArg = Annotated[str, typer.Argument(metavar="NAME", help="A name that `ts models` lists.")]
ModelArg = Annotated[
    str, typer.Argument(metavar="MODEL", help="A catalogue name or the path of a GGUF file.")
]
DebugArg = Annotated[bool, typer.Option("--debug", help="Show a traceback where something goes wrong.")]


ThreadsArg = Annotated[
    str | None,
    typer.Option("--threads", metavar="N", help="Threads to compute with; one for each core, if not given."),
]


@app.command()
def pull(name: NameArg = "smollm2", debug: DebugArg = False) -> Action:
    """Fetch a model of the catalogue."""

    def action() -> int:
        from turbospark_chat.launch import run_pull

        return run_pull(name)

    return action


@app.command()
def models(debug: DebugArg = False) -> Action:
    """List the catalogue, and which models are installed."""

    def action() -> int:
        from turbospark_chat.launch import run_models

        return run_models()

    return action


@app.command()
def show(model: ModelArg, debug: DebugArg = False) -> Action:
    """Describe a model file."""

    def action() -> int:
        from turbospark_chat.launch import run_show

        return run_show(model)

    return action


@app.command()
def bench(
    model: ModelArg = "smollm2",
    threads: ThreadsArg = None,
    rounds: Annotated[
        int, typer.Option("--rounds", metavar="N", min=1, help="How often each figure is taken.")
    ] = 5,
    is_json: Annotated[bool, typer.Option("--json", help="Print the report as a JSON object.")] = False,
    against: Annotated[
        Path | None, typer.Option("--against", metavar="FILE", help="Compare with an earlier report.")
    ] = None,
    peer: Annotated[
        str | None,
        typer.Option("--peer", metavar="NAME", help="Measure another program by turns: llama.cpp."),
    ] = None,
    debug: DebugArg = False,
) -> Action:
    """Measure how fast a model runs here; takes minutes."""

    def action() -> int:
        set_blas_threads(read_threads(threads))
        from turbospark_chat.launch import run_bench

        return run_bench(model, threads, rounds=rounds, is_json=is_json, against=against, peer=peer)

    return action
