"""The commands of `ts`, as typer has them. Each returns what is to be done, and imports what it needs only then."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from turbospark_chat import __version__
from turbospark_chat.command_line.completion import (
    complete_conversation,
    complete_form,
    complete_model,
    complete_state,
)
from turbospark_chat.command_line.flag_parameters import (
    ChatByDefault,
    DebugArg,
    IdArg,
    JsonArg,
    ModelArg,
    NameArg,
    OptionalValues,
    ThreadsArg,
    takes_flags,
)
from turbospark_chat.config.config_file import read_user_config
from turbospark_chat.config.flag_values import FlagValues
from turbospark_chat.errors import UsageError
from turbospark_chat.threads import read_threads, set_blas_threads

Action = Callable[[], int]
Typed = dict[str, Any]  # what the command line says, by the names of the flags

# The lines behind `\b` are shown as they stand.
_EXAMPLES = """\b
Examples:
  ts -m path/to/model.gguf             chat with your own model
  ts chat --temperature 0.2            less random replies; `/set temperature 0.2` in the chat
  ts chat -f notes.txt                 attach a file; `/attach notes.txt` in the chat
  ts chat --resume                     go on with the last conversation
  ts complete "Sum up:" < notes.txt    pipe a file through
  ts complete --json "Name a colour."  get JSON
In the chat `/help` lists the commands, `/retry` answers again, Ctrl-C stops a reply.
"""

app = typer.Typer(
    cls=ChatByDefault,
    epilog=_EXAMPLES,
    help="Chat with a local language model in the terminal. `ts` alone is `ts chat`.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"ts {__version__}")
        raise typer.Exit


@app.callback()
def _top_level(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command(cls=OptionalValues)
@takes_flags("chat")
def chat(typed: Typed) -> Action:
    """Chat with a model; lines piped in are turns of one conversation."""

    def action() -> int:
        flags = _settle("chat", typed)
        from turbospark_chat.command_line.launch import run_chat

        return run_chat(flags)

    return action


@app.command()
@takes_flags("complete")
def complete(
    typed: Typed,
    prompt: Annotated[
        str, typer.Argument(metavar="[PROMPT]", help="The message; piped input is added to it.")
    ] = "",
) -> Action:
    """Answer one prompt and exit."""

    def action() -> int:
        flags = _settle("complete", typed)
        from turbospark_chat.command_line.launch import run_complete

        return run_complete(flags, prompt)

    return action


def _settle(command: str, typed: Typed) -> FlagValues:
    """Return the values that hold, and let BLAS know its threads before anything imports numpy."""
    flags = FlagValues(command, typed, read_user_config())
    if flags["stream"] and not flags["json"]:
        raise UsageError("`--stream` is about the objects of `--json`; give both or neither")
    set_blas_threads(flags.read("threads", read_threads))
    return flags


@app.command()
def pull(name: NameArg = "smollm2", debug: DebugArg = False) -> Action:
    """Fetch a model of the catalogue."""

    def action() -> int:
        from turbospark_chat.command_line.model_commands import run_pull

        return run_pull(name)

    return action


@app.command()
def models(debug: DebugArg = False) -> Action:
    """List the catalogue, and which models are installed."""

    def action() -> int:
        from turbospark_chat.command_line.model_commands import run_models

        return run_models()

    return action


@app.command()
def show(model: ModelArg, debug: DebugArg = False) -> Action:
    """Describe a model file."""

    def action() -> int:
        from turbospark_chat.command_line.model_commands import run_show

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
    is_chat: Annotated[
        bool,
        typer.Option("--chat", help="Measure a conversation instead: what each turn computes and takes."),
    ] = False,
    debug: DebugArg = False,
) -> Action:
    """Measure how fast a model runs here; takes minutes."""

    def action() -> int:
        set_blas_threads(read_threads(threads))
        from turbospark_chat.command_line.model_commands import run_bench, run_chat_bench

        if is_chat:
            if against is not None:
                raise UsageError("`--against` compares no conversations: leave it or `--chat` out")
            return run_chat_bench(model, threads, rounds=rounds, is_json=is_json, peer=peer)
        return run_bench(model, threads, rounds=rounds, is_json=is_json, against=against, peer=peer)

    return action


@app.command()
def verify(
    model: Annotated[
        str,
        typer.Option(
            "-m",
            "--model",
            metavar="MODEL",
            help="A catalogue name or the path of a GGUF file.",
            autocompletion=complete_model,
        ),
    ] = "smollm2",
    threads: ThreadsArg = None,
    is_json: JsonArg = False,
    debug: DebugArg = False,
) -> Action:
    """Prove that reuse changes nothing: chat with a model and compute every state anew."""

    def action() -> int:
        n_threads = read_threads(threads)
        set_blas_threads(n_threads)
        from turbospark_chat.command_line.verify_command import run_verify

        return run_verify(model, n_threads, is_json=is_json)

    return action


@app.command()
def config(
    is_path_only: Annotated[
        bool, typer.Option("--path", help="Print only the path of the config file.")
    ] = False,
    debug: DebugArg = False,
) -> Action:
    """Show every setting and where its value is from."""

    def action() -> int:
        from turbospark_chat.command_line.configuration import run_config

        return run_config(is_path_only=is_path_only)

    return action


@app.command()
def history(
    is_json: JsonArg = False,
    delete: Annotated[
        str | None,
        typer.Option(
            "--delete", metavar="ID", help="Delete a conversation.", autocompletion=complete_conversation
        ),
    ] = None,
    debug: DebugArg = False,
) -> Action:
    """List the stored conversations, those used last first."""

    def action() -> int:
        from turbospark_chat.command_line.archive_commands import run_history

        return run_history(is_json=is_json, delete=delete)

    return action


@app.command()
def search(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Words to look for.")],
    is_json: JsonArg = False,
    debug: DebugArg = False,
) -> Action:
    """Find what was said in the stored conversations."""

    def action() -> int:
        from turbospark_chat.command_line.archive_commands import run_search

        return run_search(text, is_json=is_json)

    return action


@app.command()
def export(
    reference: IdArg,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Where to; stdout, if not given.")
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--form",
            metavar="md|json|html",
            help="The form; by the ending of FILE, or Markdown, if not given.",
            autocompletion=complete_form,
        ),
    ] = None,
    is_forced: Annotated[bool, typer.Option("--force", help="Replace FILE if there is one.")] = False,
    debug: DebugArg = False,
) -> Action:
    """Write a stored conversation as Markdown, JSON or HTML."""

    def action() -> int:
        from turbospark_chat.command_line.archive_commands import run_export

        return run_export(reference, file, form=form, is_forced=is_forced)

    return action


states_app = typer.Typer(invoke_without_command=True, rich_markup_mode=None)
app.add_typer(states_app, name="states")


@states_app.callback()
def states(is_json: JsonArg = False, debug: DebugArg = False) -> Action:
    """List the computed states on disk, those used last first, or delete some."""

    def action() -> int:
        from turbospark_chat.command_line.state_commands import run_states

        return run_states(is_json=is_json)

    return action


@states_app.command("delete")
def delete_states(
    references: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME|ID]...",
            help="States that `ts states` lists.",
            show_default=False,
            autocompletion=complete_state,
        ),
    ] = None,
    is_all: Annotated[bool, typer.Option("--all", help="Delete all there are.")] = False,
    debug: DebugArg = False,
) -> Action:
    """Delete computed states; what is missed of them is computed again."""

    def action() -> int:
        from turbospark_chat.command_line.state_commands import run_delete_states

        return run_delete_states(references or (), is_all=is_all)

    return action
