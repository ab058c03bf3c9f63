"""The program `ts`: parse, do one thing, map errors to exit codes.

A command returns what is to be done; `run` does it, outside typer, so that errors are shown in one place.
`ts --help` loads neither numpy nor the engine nor prompt_toolkit. At its top this imports nothing that takes time:
until `main` runs, an interrupt is Python's own affair.
"""

import io
import os
import signal
import sys
from collections.abc import Callable

EXIT_FAILED, EXIT_USAGE, EXIT_CANCELLED = 1, 2, 130


def main() -> None:
    """Run `ts` with the process's arguments and exit."""
    take_interrupts = _end_at_interrupts()
    _prepare_streams()
    exit_code = _flush(run(sys.argv[1:], program=_program(), on_loaded=take_interrupts))
    # Nothing is left to stop, and Python's own ending takes an interrupt badly.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(exit_code)


def _end_at_interrupts() -> Callable[[], object]:
    """End the program at once at an interrupt; return what has Python raise KeyboardInterrupt again.

    Code that is being imported may show that exception, or lose it.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # whoever started us has it ignored
        return lambda: None
    signal.signal(signal.SIGINT, lambda *_: os._exit(EXIT_CANCELLED))
    return lambda: signal.signal(signal.SIGINT, signal.default_int_handler)


def _program() -> str:
    """Return the name we were called by, of those we are installed under: a shell completes each by its own."""
    name = os.path.basename(sys.argv[0])
    return name if name == "turbospark-chat" else "ts"


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


def run(arguments: list[str], *, program: str = "ts", on_loaded: Callable[[], object] = lambda: None) -> int:
    """Run `ts` and return its exit code. Whatever goes wrong is one line on stderr.

    `on_loaded` is called once the command line can be read.
    """
    import warnings
    from typing import Any

    import typer

    from turbospark_chat.command_line.subcommands import app
    from turbospark_chat.errors import ModelWarning, TurboSparkError

    usage_error: Any = typer.BadParameter.__mro__[1]  # every complaint about the command line derives from it
    warnings.simplefilter("always", ModelWarning)
    warnings.showwarning = _show_warning
    is_debug = "--debug" in arguments
    try:
        on_loaded()
        action = typer.main.get_command(app).main(arguments, prog_name=program, standalone_mode=False)
        return action() if callable(action) else int(action or 0)
    except TurboSparkError as error:
        return _fail(str(error), error.exit_code, is_debug)
    except usage_error as error:
        command = error.ctx.command_path if error.ctx else program
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


def _fail(problem: str, exit_code: int, is_debug: bool) -> int:
    if is_debug:
        import traceback

        traceback.print_exc()
    from turbospark_chat.terminal.harmless import harmless

    line = harmless(" ".join(problem.split()))  # names from files and templates are in it
    print("error: " + (line if len(line) <= 500 else line[:499] + "…"), file=sys.stderr)
    return exit_code


def _show_warning(message: Warning | str, category: type[Warning], *rest: object, **named: object) -> None:
    from turbospark_chat.terminal.harmless import harmless

    print(harmless(f"warning: {message}"), file=sys.stderr)
