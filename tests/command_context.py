"""What slash commands may use, without a screen or with a fake one: it notes what it was shown, and in which state."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from scripted_chat import make_session, send

from turbospark_chat.chat.archive import ConversationArchive
from turbospark_chat.chat.chat_model import ChatModel
from turbospark_chat.chat.chat_session import ChatSession
from turbospark_chat.chat.store import Store
from turbospark_chat.chat.turn_result import TurnEvent
from turbospark_chat.errors import UnknownModelError
from turbospark_chat.terminal.ansi import Painter
from turbospark_chat.terminal.commands.context import Change, Outcome, Work
from turbospark_chat.terminal.commands.table import parse_command
from turbospark_chat.terminal.interface_options import Editing, Thinking


class FakeModels:
    """A catalogue of `tiny`, which is in use, and `other`, which is as it but for its producer."""

    def __init__(self, other: ChatModel) -> None:
        self._other = other
        self.current = "tiny"

    def names(self) -> Sequence[str]:
        return ("tiny", "other")

    def rows(self) -> Sequence[tuple[str, ...]]:
        return [("tiny", "installed"), ("other", "42 MB")]

    def describe(self) -> Sequence[tuple[str, ...]]:
        return [("architecture", "llama"), ("layers", "2")]

    def open(self, name: str) -> ChatModel:
        if name != "other":
            raise UnknownModelError(name, "not in the catalogue")
        return self._other

    def use(self, name: str, model: ChatModel) -> None:
        self.current = name


class FakeScreen:
    """A screen whose editor answers what it is told to, and whose clipboard is a list."""

    def __init__(self, edited: str = "") -> None:
        self.is_markdown, self.thinking, self.editing = True, Thinking.FOLD, Editing.EMACS
        self.edited = edited
        self.opened: list[str] = []  # what the editor was given
        self.copied: list[str] = []

    def edit(self, text: str, then: Callable[[str], None]) -> None:
        self.opened.append(text)
        then(self.edited)

    def copy(self, text: str) -> str:
        self.copied.append(text)
        return "the terminal"

    def draw(self) -> str:
        return "<svg/>"


@dataclass(frozen=True, slots=True)
class State:
    """All that a command might change of a chat."""

    system: str | None
    branch: str
    branches: dict[str, tuple[Any, ...]]
    options: Any
    model: ChatModel
    first_turn: int
    n_stored: int

    @classmethod
    def of(cls, context: "FakeContext") -> "State":
        session, conversation = context.session, context.session.conversation
        n_stored = len(context.archive.list())
        return cls(
            conversation.system, conversation.branch, dict(conversation.branches), session.options,
            session.model, session._replier.first_turn, n_stored,
        )  # fmt: skip


class FakeContext:
    """A chat as its commands see it. What they start is done at once."""

    def __init__(self, session: ChatSession, archive: ConversationArchive, screen: FakeScreen | None) -> None:
        self.session, self.archive, self.screen = session, archive, screen
        self.models = FakeModels(make_session("from the other").model)
        self.cancel = threading.Event()  # of whatever is started
        self.shown: list[str] = []
        self.states: list[State] = []  # when each of `shown` was
        self.events: list[TurnEvent] = []
        self.outcomes: list[Outcome] = []
        self.started: list[str] = []  # the message each goes back with
        self.attached: list[tuple[str, str]] = []
        self.noted: list[str] = []

    def show(self, content: RenderableType) -> None:
        text = Painter(color=False).render(content, width=200)
        self.shown.append("\n".join(line.rstrip() for line in text.split("\n")))
        self.states.append(State.of(self))

    def start(self, work: Work, *, message: str = "", changes_conversation: bool = False) -> None:
        self.started.append(message)
        outcome = work(self.cancel, self.events.append)
        self.outcomes.append(outcome)
        if not hasattr(outcome, "raw"):
            self.show(outcome)

    def start_change(self, change: Change, *, then: Callable[[], None] = lambda: None) -> None:
        change(self.cancel)
        self.conversation_changed()
        then()

    def attach(self, name: str, text: str) -> None:
        self.attached.append((name, text))

    def show_message(self, text: str) -> None:
        self.noted.append(f"message {text}")

    def show_turns(self) -> None:
        self.noted.append("turns")

    def statistics(self) -> RenderableType:
        return "what it cost"

    def conversation_changed(self) -> None:
        self.noted.append("changed")

    def leave(self) -> None:
        self.noted.append("leave")

    # For tests

    def run(self, line: str) -> str:
        """Run a typed command and return what it showed last."""
        found = parse_command(line)
        assert found is not None
        command, argument = found
        command.run(self, argument)
        return self.shown[-1] if self.shown else ""

    def say(self, *messages: str) -> Any:
        """Have messages answered and return the last one's result."""
        return [send(self.session, message) for message in messages][-1]

    @property
    def state(self) -> State:
        """What there is now."""
        return State.of(self)

    @property
    def turns(self) -> list[tuple[str, str]]:
        """What was said: messages and replies."""
        return [(turn.user.content, turn.reply.content) for turn in self.session.conversation.turns]


def archive_in(folder: Path) -> ConversationArchive:
    """Return an archive of conversations in a folder."""
    archive = ConversationArchive(lambda: Store.open(folder / "conversations.db"))
    archive.name_model("tiny", "scripted")
    return archive


class Chats:
    """Makes chats over one store, and closes it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._open: list[ConversationArchive] = []

    def __call__(
        self,
        *messages: str,
        replies: Sequence[str] | None = None,
        screen: FakeScreen | None = None,
        keeps: bool = True,
        **session: Any,
    ) -> FakeContext:
        """Return a chat in which these messages have been answered."""
        archive = archive_in(self.folder)
        self._open.append(archive)
        said = replies or [f"reply to {message}" for message in messages] + ["more", "and more", "still more"]
        context = FakeContext(make_session(*said, **session), archive, screen)
        if keeps:
            archive.keep(context.session)
        for message in messages:
            context.say(message)
        return context

    def close(self) -> None:
        for archive in self._open:
            archive.close()
