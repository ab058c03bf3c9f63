"""What Tab completes: commands at the start of the input, and then the argument of the one that is there.

Knows commands by what `CompletableCommand` says, so that any table of them will do.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from typing import Generic, Protocol, TypeVar

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter, ThreadedCompleter
from prompt_toolkit.document import Document

Context_contra = TypeVar("Context_contra", contravariant=True)
Context = TypeVar("Context")


class CompletableCommand(Protocol[Context_contra]):
    """A row of the table of commands, as far as completing it goes."""

    @property
    def arguments(self) -> str:
        """How its argument is written in help; empty where it takes none."""

    @property
    def help(self) -> str:
        """What it does, in one sentence."""

    @property
    def completes(self) -> Callable[[Context_contra, str], Iterable[str]]:
        """Offers whole arguments for what is typed of one."""


class CommandCompleter(Completer, Generic[Context]):
    """Completes `/name` and its argument.

    The argument of a command whose `completes` is the function given as `paths` is a path. Paths are listed on another
    thread, since a folder may be on a network that does not answer.
    """

    def __init__(
        self,
        commands: Mapping[str, CompletableCommand[Context]],
        context: Callable[[], Context],
        *,
        paths: Callable[[Context, str], Iterable[str]],
    ) -> None:
        self._commands, self._context, self._paths = commands, context, paths
        self._path_completer = ThreadedCompleter(PathCompleter(expanduser=True))

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Return the completions of what stands before the cursor; none for a message."""
        text = document.text_before_cursor
        if text.startswith("/") and " " not in text:
            yield from self._names(text[1:])
        elif (found := self._find(text)) is not None:
            command, typed = found
            for argument in command.completes(self._context(), typed):
                if argument.startswith(typed):
                    yield Completion(argument, start_position=-len(typed))

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        """Yield the same, and the paths of files."""
        found = self._find(document.text_before_cursor)
        if found is not None and found[0].completes is self._paths:
            path = Document(found[1])
            async for completion in self._path_completer.get_completions_async(path, complete_event):
                yield completion
        else:
            for completion in self.get_completions(document, complete_event):
                yield completion

    def _find(self, text: str) -> tuple[CompletableCommand[Context], str] | None:
        """Return the command that `text` names and what is typed of its argument."""
        name, blank, typed = text.partition(" ")
        command = self._commands.get(name[1:]) if text.startswith("/") and blank else None
        return None if command is None else (command, typed.lstrip(" "))

    def _names(self, typed: str) -> Iterable[Completion]:
        for name, command in sorted(self._commands.items()):
            if name.startswith(typed):
                blank = " " if command.arguments else ""  # so that the next Tab completes the argument
                yield Completion(
                    name + blank,
                    start_position=-len(typed),
                    display=f"/{name} {command.arguments}".rstrip(),
                    display_meta=command.help,
                )
