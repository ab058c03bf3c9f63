"""What a command may use, wherever it was typed: at the keyboard, in a pipe or in NDJSON."""

from collections.abc import Callable, Sequence
from typing import Protocol

from rich.console import RenderableType

from turbospark_chat.chat.archive import ConversationArchive
from turbospark_chat.chat.chat_model import ChatModel
from turbospark_chat.chat.chat_session import ChatSession
from turbospark_chat.chat.turn_result import TurnEventSink, TurnResult
from turbospark_chat.engine.raw_completion import CancelFlag
from turbospark_chat.terminal.interface_options import Editing, Thinking

Outcome = TurnResult | RenderableType
Work = Callable[[CancelFlag, TurnEventSink], Outcome]
Change = Callable[[CancelFlag], None]


class Models(Protocol):
    """The models there are, and how to open one."""

    @property
    def current(self) -> str:
        """The name of the model in use."""

    def names(self) -> Sequence[str]:
        """Return the names of the catalogue."""

    def rows(self) -> Sequence[tuple[str, ...]]:
        """Return the catalogue as rows."""

    def describe(self) -> Sequence[tuple[str, ...]]:
        """Return what the file in use says of itself."""

    def open(self, name: str) -> ChatModel:
        """Load a model; slow."""

    def use(self, name: str, model: ChatModel) -> None:
        """Note that a model which was opened is the one in use from now on."""


class ScreenControls(Protocol):
    """What only a screen has."""

    is_markdown: bool
    thinking: Thinking
    editing: Editing

    def edit(self, text: str, then: Callable[[str], None]) -> None:
        """Open text in the user's editor, and hand on what it became."""

    def copy(self, text: str) -> str:
        """Put text on the clipboard; return by what way."""

    def draw(self) -> str:
        """Return the conversation as it shows here, as an SVG."""


class CommandContext(Protocol):
    """The chat, as its commands see it."""

    @property
    def session(self) -> ChatSession:
        """The conversation and its options."""

    @property
    def archive(self) -> ConversationArchive:
        """The stored conversations."""

    @property
    def models(self) -> Models:
        """The models there are."""

    @property
    def screen(self) -> ScreenControls | None:
        """The screen, where there is one."""

    def show(self, content: RenderableType) -> None:
        """Give a command's answer."""

    def start(self, work: Work, *, message: str = "", changes_conversation: bool = False) -> None:
        """Have the model's thread do something: a turn, or what ends in an answer to show.

        `message` is what goes back to the input if nothing comes of it. Work that is no turn says whether it
        `changes_conversation`.
        """

    def start_change(self, change: Change, *, then: Callable[[], None] = lambda: None) -> None:
        """Have the model's thread change the conversation; `then` is called once it has, where commands are run."""

    def attach(self, name: str, text: str) -> None:
        """Put a text into the next message, by a label where there is a screen."""

    def show_message(self, text: str) -> None:
        """Show a message as it was sent."""

    def show_turns(self) -> None:
        """Show the end of a conversation that is gone on with."""

    def statistics(self) -> RenderableType:
        """Return what the turns so far cost."""

    def conversation_changed(self) -> None:
        """Note that the conversation is another than the last turn left it."""

    def leave(self) -> None:
        """End the chat."""
