"""Parameters of commands as typer has them: flags, values that may be left out, and what a shell completes.

With `cli` and `subcommands` the only place that knows typer.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Final, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup

from turbospark_chat.command_line.completion import complete_conversation, complete_model, completer_of
from turbospark_chat.config.flags import FLAGS, Flag, flags_of

R = TypeVar("R")

NameArg = Annotated[str, typer.Argument(metavar="NAME", help="A name that `ts models` lists.")]
ModelArg = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A catalogue name or the path of a GGUF file.",
        autocompletion=complete_model,
    ),
]
IdArg = Annotated[
    str,
    typer.Argument(
        metavar="ID", help="A number that `ts history` lists, or last.", autocompletion=complete_conversation
    ),
]
JsonArg = Annotated[bool, typer.Option("--json", help="Print JSON objects, one a line.")]
DebugArg = Annotated[bool, typer.Option("--debug", help="Show a traceback where something goes wrong.")]
ThreadsArg = Annotated[
    str | None,
    typer.Option("--threads", metavar="N", help="Threads to compute with; one for each core, if not given."),
]

_TOP_LEVEL_OPTIONS: Final = ("-h", "--help", "--version", "--install-completion", "--show-completion")
_VALUED: Final = {spelling: flag for flag in FLAGS if flag.metavar for spelling in flag.spellings}


class ChatByDefault(TyperGroup):
    """`ts` and `ts -m MODEL` are `ts chat`, also to a shell that completes them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the command in where none is named; a shell that has none yet is to be offered them."""
        is_chat = not ctx.resilient_parsing if not args else _is_option(args[0])
        parsed: list[str] = super().parse_args(ctx, ["chat", *args] if is_chat else args)
        return parsed

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Offer the flags of the chat beside those of the program."""
        of_chat = self.commands["chat"].shell_complete(ctx, incomplete)
        offered = super().shell_complete(ctx, incomplete)
        return [*offered, *(item for item in of_chat if item.value not in ("-h", "--help"))]


def _is_option(argument: str) -> bool:
    return argument.startswith("-") and argument.partition("=")[0] not in _TOP_LEVEL_OPTIONS


class OptionalValues(TyperCommand):
    """A command some of whose flags are worth something without a value, which typer does not have."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give such a flag its value where none follows."""
        parsed: list[str] = super().parse_args(ctx, list(with_implied_values(args)))
        return parsed


def with_implied_values(arguments: Sequence[str]) -> Iterator[str]:
    """Yield the arguments and, after a flag whose value is missing, the value it is worth then."""
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        position += 1
        yield argument
        if argument == "--":
            yield from arguments[position:]
            return
        if (flag := _VALUED.get(argument)) is None:
            continue
        following = arguments[position : position + 1]
        if flag.implied is not None and (not following or following[0].startswith("-")):
            yield flag.implied
        else:  # a value, whatever it looks like
            yield from following
            position += 1


def takes_flags(name: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Give a command its flags as parameters; it receives what was typed as one dictionary, its first argument."""

    def decorate(command: Callable[..., R]) -> Callable[..., R]:
        def with_flags(**values: Any) -> R:
            typed = {flag.name: values.pop(flag.name) for flag in flags_of(name)}
            return command(typed, **values)

        own = list(inspect.signature(command).parameters.values())[1:]
        parameters = [*own, *map(_parameter, flags_of(name))]
        with_flags.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_flags.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        with_flags.__name__, with_flags.__doc__ = command.__name__, command.__doc__
        return with_flags

    return decorate


def _parameter(flag: Flag) -> inspect.Parameter:
    *names, last = flag.spellings
    names = [*names[:-1], f"{names[-1]}/{last}"] if flag.is_pair else [*names, last]
    option = typer.Option(
        *names, metavar=flag.metavar, help=flag.help, show_default=False, autocompletion=completer_of(flag)
    )
    kind: Any = list[str] if flag.is_repeatable else str | None if flag.metavar else bool | None
    default: Any = [] if flag.is_repeatable else None
    return inspect.Parameter(
        flag.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )
