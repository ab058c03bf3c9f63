"""What commands may use at the keyboard: the session, the turn desk, and the screen."""

import asyncio
import os
from collections.abc import Callable, Coroutine

from rich.console import RenderableType

from turbospark_chat.chat.archive import ConversationArchive
from turbospark_chat.chat.attachment import Attachment
from turbospark_chat.chat.chat_session import ChatSession
from turbospark_chat.terminal import clipboard
from turbospark_chat.terminal.commands.context import Change, Models, Work
from turbospark_chat.terminal.conversation_picture import draw_conversation
from turbospark_chat.terminal.display import Display
from turbospark_chat.terminal.interface_options import Editing, Thinking
from turbospark_chat.terminal.screen import Screen
from turbospark_chat.terminal.screen_writer import ScreenWriter
from turbospark_chat.terminal.turn_desk import TurnDesk


class ReplContext:
    """Offers `CommandContext` and, as `screen`, `ScreenControls`."""

    def __init__(
        self,
        session: ChatSession,
        desk: TurnDesk,
        screen: Screen,
        writer: ScreenWriter,
        display: Display,
        *,
        archive: ConversationArchive,
        models: Models,
        draw_bar: Callable[[int], str],
        leave: Callable[[], None],
        finish_reading: Callable[[], None],
    ) -> None:
        self.session, self.archive, self.models = session, archive, models
        self._desk, self._screen, self._writer, self._display = desk, screen, writer, display
        self._draw_bar = draw_bar
        self.leave, self._finish_reading = leave, finish_reading
        self._tasks: set[asyncio.Task[None]] = set()  # held, or they would be collected before they are done

    @property
    def screen(self) -> "ReplContext":
        """The screen's part of it."""
        return self

    def show(self, content: RenderableType) -> None:
        """Print above the input."""
        self._writer.show(content)

    def start(self, work: Work, *, message: str = "", changes_conversation: bool = False) -> None:
        """Have the model's thread do something."""
        self._desk.start(work, message=message, changes_conversation=changes_conversation)

    def start_change(self, change: Change, *, then: Callable[[], None] = lambda: None) -> None:
        """Have the model's thread change the conversation, `then` go on here."""
        self._desk.start(lambda cancel, sink: change(cancel), changes_conversation=True, then=then)

    def attach(self, name: str, text: str) -> None:
        """Put a text into the input, folded to a label, which says its tokens once they are counted."""
        framed = Attachment(name, text).framed
        label = self._screen.attach(f"[{name}]", f"{framed}\n")

        async def count() -> None:
            n_tokens = await asyncio.get_running_loop().run_in_executor(None, self.session.count_text, framed)
            self._screen.relabel(label, f"[{name}: {n_tokens} tokens]")
            n_left = self.session.context_length - self._desk.context_used
            if n_tokens > n_left:
                self._writer.say(
                    f"{name} has {n_tokens} tokens; the context has room for {n_left}", "bar.warn"
                )

        self._begin(count())

    def show_message(self, text: str) -> None:
        """Print a message as if it had been typed."""
        self._writer.show_message(text)

    def show_turns(self) -> None:
        """Print the last turns of a conversation that is gone on with."""
        self._writer.show_turns(self.session.conversation.turns, self._display)

    def statistics(self) -> RenderableType:
        """Return what the turns so far cost."""
        return self._desk.totals.table()

    def conversation_changed(self) -> None:
        """Note that the conversation is another than the last turn left it."""
        self._desk.conversation_changed()

    # What only a screen has

    @property
    def is_markdown(self) -> bool:
        """Whether replies show as Markdown."""
        return self._display.is_markdown

    @is_markdown.setter
    def is_markdown(self, value: bool) -> None:
        self._display.is_markdown = value

    @property
    def thinking(self) -> Thinking:
        """How thinking shows."""
        return self._display.thinking

    @thinking.setter
    def thinking(self, value: Thinking) -> None:
        self._display.thinking = value

    @property
    def editing(self) -> Editing:
        """Whose keys the input has."""
        return Editing(self._screen.editing)

    @editing.setter
    def editing(self, value: Editing) -> None:
        self._screen.editing = value.value

    def edit(self, text: str, then: Callable[[str], None]) -> None:
        """Open text in the user's editor, and hand on what it became; what waits goes back to the input meanwhile."""
        self._desk.give_back("")

        async def edit() -> None:
            try:
                edited = await self._screen.edit(text)
                self._finish_reading()  # what follows looks at what the model holds
                then(edited)
            except Exception as error:  # an editor that fails leaves everything as it was
                self._writer.show_error(error)
            self._desk.go_on()

        self._begin(edit())

    def copy(self, text: str) -> str:
        """Put text on the clipboard; return by what way."""
        return clipboard.copy(text, os.environ, write=self._screen.write_sequence)

    def draw(self) -> str:
        """Return the conversation as it shows here, as an SVG."""
        width = self._writer.width
        bar = self._draw_bar(width)
        return draw_conversation(self.session.conversation, self._display, width=width, bar=bar)

    def _begin(self, coroutine: Coroutine[None, None, None]) -> None:
        self._tasks.add(task := asyncio.get_event_loop().create_task(coroutine))
        task.add_done_callback(self._tasks.discard)
