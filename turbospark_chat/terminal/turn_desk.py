"""The turn under way and what waits behind it: jobs on the model's thread in, finished text out.

Knows neither keys nor commands. A turn that fails gives its message back to the input, and the chat goes on.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from rich.console import RenderableType

from turbospark_chat.chat.chat_session import ChatSession
from turbospark_chat.chat.turn_result import ReplyText, TurnEvent, TurnEventSink, TurnResult
from turbospark_chat.chat.window import OverflowPolicy, WindowOverflowError
from turbospark_chat.engine.completion import StopReason
from turbospark_chat.engine.model_thread import Job, ModelThread
from turbospark_chat.engine.raw_completion import CancelFlag
from turbospark_chat.errors import TurboSparkError
from turbospark_chat.terminal.commands.context import Outcome
from turbospark_chat.terminal.display import Display
from turbospark_chat.terminal.frame_pacer import FRAME_SECONDS
from turbospark_chat.terminal.progress_line import QUIET_SECONDS
from turbospark_chat.terminal.question import Question
from turbospark_chat.terminal.reply_stream import ReplyStream
from turbospark_chat.terminal.rows import one_row
from turbospark_chat.terminal.screen import Screen
from turbospark_chat.terminal.screen_writer import ScreenWriter
from turbospark_chat.terminal.status_bar import Activity, prefill_text
from turbospark_chat.terminal.totals import Totals
from turbospark_chat.terminal.turn_view import TurnView
from turbospark_chat.terminal.waiting_line import WaitingLine

# Of a block that is still written; a taller one goes up in parts. No more than a third of the screen either: where that
# gets half as wide or high, the terminal itself sends the rows which no longer fit into the scrollback.
MOST_LIVE_ROWS: Final = 16


@dataclass(frozen=True, slots=True)
class _Running:
    """The work under way. `message` returns to the input if nothing comes of it."""

    job: Job[TurnEvent, Any]
    view: TurnView
    message: str
    work: Callable[[CancelFlag, TurnEventSink], Outcome | None]
    changes_conversation: bool
    then: Callable[[], None]


class TurnDesk:
    """Runs one thing after another. `ask` puts a question to the user; `wake` is called by the model's thread.

    `before_work` is called before work is given to the model's thread, `when_idle` once none is left, and
    `when_given_back` once a message nothing came of is in the input again.
    """

    def __init__(
        self,
        session: ChatSession,
        thread: ModelThread,
        screen: Screen,
        writer: ScreenWriter,
        display: Display,
        *,
        wake: Callable[[], None],
        ask: Callable[[Question], None],
        before_work: Callable[[], None],
        when_idle: Callable[[], None],
        when_given_back: Callable[[], None],
        reply_stream: ReplyStream | None,
        has_bar: bool,
    ) -> None:
        self._session, self._thread, self._screen, self._writer = session, thread, screen, writer
        self._display, self._wake, self._ask, self._reply_stream = display, wake, ask, reply_stream
        self._before_work, self._when_idle, self._when_given_back = before_work, when_idle, when_given_back
        self._has_bar = has_bar
        self._running: _Running | None = None
        self._waiting: deque[WaitingLine] = deque()
        self._last_view: TurnView | None = None
        self._live_rows = MOST_LIVE_ROWS
        self.totals = Totals()
        self.context_used = 0
        self.last: TurnResult | None = None  # the turn that the bar describes

    @property
    def has_ended(self) -> bool:
        """Whether the work under way has ended and is only to be shown; any thread may ask."""
        running = self._running
        return running is not None and running.job.is_finished

    @property
    def is_busy(self) -> bool:
        """Whether something runs."""
        return self._running is not None

    @property
    def is_changing(self) -> bool:
        """Whether the conversation is being changed by something else than a turn."""
        return self._running is not None and self._running.changes_conversation

    @property
    def activity(self) -> Activity | None:
        """What the running turn does, or that something else is done."""
        if self._running is None:
            return None
        activity = self._running.view.activity
        return replace(activity, n_queued=len(self._waiting), is_turn=not self.is_changing)

    def live(self, width: int, height: int) -> str:
        """Return the rows still being written, and the messages that wait."""
        if self._running is None:
            return ""
        waiting = [
            self._display.painter.style(one_row(f"queued: {message.shown}", width), "notice")
            for message in self._waiting
        ][: height // 2]
        most = min(self._screen.size.rows // 3, MOST_LIVE_ROWS)
        self._live_rows = max(min(height - len(waiting), most), 1)
        row = self._running.view.live_text(width=width, height=self._live_rows)
        if not row and not self._has_bar:
            row = self._progress_row(self._running.view.activity, width)
        return "\n".join([*([row] if row else []), *waiting])

    def _progress_row(self, activity: Activity, width: int) -> str:
        """Return a row for a prefill that takes long, where no bar says how far it is."""
        if activity.n_tokens or activity.prefill_seconds < QUIET_SECONDS:
            return ""
        return self._display.painter.style(one_row(prefill_text(activity), width), "notice")

    def send(self, message: str, *, shown: str) -> None:
        """Answer a message, or keep it until what runs has ended. It is `shown` with labels for long texts."""
        if self._running is not None:
            self.put_off(message, shown=shown, take=lambda: self.send(message, shown=shown))
            return
        self._writer.show_message(shown)
        session = self._session
        self.start(lambda cancel, sink: session.send(message, cancel=cancel, on_event=sink), message=message)

    def put_off(self, text: str, *, shown: str, take: Callable[[], None], is_command: bool = False) -> None:
        """Keep what was typed until what runs has ended, and have it taken then."""
        self._waiting.append(WaitingLine(text, shown, take, is_command))
        self._screen.invalidate()

    def start(
        self,
        work: Callable[[CancelFlag, TurnEventSink], Outcome | None],
        *,
        message: str = "",
        changes_conversation: bool = False,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        """Have the model's thread do something, and if that goes well `then` go on here."""
        self._before_work()
        job = self._thread.submit(work, wake=self._wake)
        self._last_view = self._display.make_view()
        self._running = _Running(job, self._last_view, message, work, changes_conversation, then)
        self._screen.invalidate()

    def cancel(self) -> None:
        """Ask what runs to end."""
        if self._running is not None:
            self._running.job.cancel()

    @property
    def has_waiting(self) -> bool:
        """Whether a message waits until what runs has ended."""
        return bool(self._waiting)

    def take_back(self) -> None:
        """Put what waits last back into the input, which is empty."""
        line = self._waiting.pop()
        if line.is_command:
            self._screen.input_text = line.text
        else:
            self._screen.put_before(line.text)

    def show_thinking(self) -> None:
        """Write what the last reply thought, and go on doing so while it thinks."""
        view = self._last_view
        rows = "" if view is None else view.open_thinking(width=self._writer.width)
        if rows:
            self._writer.write(rows)
        elif not self.is_busy:
            self._writer.say("the last reply was not thought over", "notice")

    def finish_now(self) -> None:
        """End the row being written, for a chat that is left; nothing waits any more."""
        self._waiting.clear()
        if self._running is not None:
            self._running.job.cancel()
            if rows := self._running.view.finish(width=self._writer.width):
                self._writer.write(rows)

    def conversation_changed(self) -> None:
        """Note that turns came or went other than by a turn; a template that refuses what is there now is shown."""
        self.context_used = 0
        try:
            self.context_used = self._session.costs.count_tokens()
        except TurboSparkError as error:
            self._writer.show_error(error)
        self.last = None  # what it says of the context is no longer so
        self._screen.invalidate()

    async def carry(self) -> None:
        """Take what has happened since the last call to the screen.

        Raises:
            OSError: whoever reads the replies has gone.
            Exception: something could not be drawn. It is left out; the turn is as it would be otherwise.
        """
        running = self._running
        if running is None:
            return
        is_finished = running.job.is_finished  # asked before draining: nothing comes after it
        draws = [partial(self._take, event, running.view) for event in running.job.drain()]
        if is_finished:
            draws.append(partial(running.view.finish, width=self._writer.width))
        try:
            self._draw(draws)
        finally:  # whatever cannot be drawn, the turn ends
            if is_finished:
                await self._end_stream()
                self._running = None
                self._end(running)

    def _draw(self, draws: Iterable[Callable[[], str]]) -> None:
        """Write what each returns. One that fails is left out, and its error raised once the others are written."""
        rows: list[str] = []
        fault: Exception | None = None
        for draw in draws:
            try:
                rows.append(draw())
            except OSError:  # a stream of ours
                raise
            except Exception as error:
                fault = fault or error
        if any(rows):
            self._writer.write("".join(rows))
        self._screen.invalidate()
        if fault is not None:
            raise fault

    def _take(self, event: TurnEvent, view: TurnView) -> str:
        """Return what goes above the input; the answer goes, as it is, to the other stream where there is one."""
        if self._reply_stream is not None and isinstance(event, ReplyText) and not event.is_reasoning:
            if event.text:
                if self._reply_stream.is_pipe:
                    self._screen.stand_aside()
                self._reply_stream.write(event.text)
            event = replace(event, text="")
        return view.take(event, width=self._writer.width, height=self._live_rows)

    async def _end_stream(self) -> None:
        if self._reply_stream is not None and self._reply_stream.end():
            await asyncio.sleep(FRAME_SECONDS)  # its reader may write to this terminal
            self._screen.come_back()

    def _end(self, running: _Running) -> None:
        is_asking = False
        try:
            outcome = running.job.result()
        except WindowOverflowError as error:
            is_asking = self._overflow(error, running)
        except Exception as error:  # whatever it was, the chat and the message survive it
            self._writer.show_error(error)
            if running.changes_conversation:  # perhaps in part
                self.conversation_changed()
            self.give_back(running.message)
        else:
            if isinstance(outcome, TurnResult):
                self._finish_turn(outcome, running.message)
            else:
                self._finish_work(outcome, running)
        if not is_asking:
            self.go_on()

    def go_on(self) -> None:
        """Take what waits, up to what runs again."""
        while self._running is None and self._waiting:
            self._waiting.popleft().take()
        if self._running is None:
            self._when_idle()

    def _finish_work(self, outcome: RenderableType | None, running: _Running) -> None:
        if outcome is not None:
            self._writer.show(outcome)
        if running.changes_conversation:
            self.conversation_changed()
        try:
            running.then()
        except Exception as error:  # what was done is done all the same
            self._writer.show_error(error)

    def _finish_turn(self, result: TurnResult, message: str) -> None:
        self.totals.add(result)
        self.last = result
        self.context_used = result.raw.kv_position
        say = self._writer.say
        if result.turn is None:
            is_cancelled = result.raw.reason is StopReason.CANCELLED
            say("stopped before the reply began" if is_cancelled else "no reply: max_tokens is 0", "notice")
            self.give_back(message)
        elif result.raw.reason is StopReason.CANCELLED:
            say("[stopped; `/continue` goes on]", "notice")
            self.give_back("")
        elif result.raw.reason is StopReason.MAX_TOKENS:
            say(f"[reached the limit of {result.raw.new_tokens} tokens; `/continue` goes on]", "notice")
        elif not result.turn.reply.content:
            say("[empty reply]", "notice")

    def give_back(self, message: str) -> None:
        """Put a message nothing came of, and those that wait behind it, before what is typed now.

        Commands among them are given up: in one input with messages they would be text for the model.
        """
        messages = [waiting.text for waiting in self._waiting if not waiting.is_command]
        commands = [waiting.shown.strip() for waiting in self._waiting if waiting.is_command]
        texts = [text for text in (message, *messages) if text]
        self._waiting.clear()
        if commands:
            self._writer.say(f"not done any more: {', '.join(commands)}", "notice")
        if texts:
            self._screen.put_before("\n".join(texts))
            self._when_given_back()

    def _overflow(self, error: WindowOverflowError, running: _Running) -> bool:
        """Ask whether to leave turns out, where the user wants to be asked; return whether it was."""
        self._writer.show_error(error)
        if error.n_droppable == 0 or self._session.options.on_overflow is not OverflowPolicy.ASK:
            self.give_back(running.message)
            return False

        def drop_and_start_again() -> None:
            self._session.leave_out(error.n_droppable)
            self.start(running.work, message=running.message)

        oldest = "exchange" if error.n_droppable == 1 else f"{error.n_droppable} exchanges"
        self._ask(
            Question(
                prompt=f"leave out the oldest {oldest}? y/n ",
                if_yes=drop_and_start_again,
                if_no=lambda: self.give_back(running.message),
            )
        )
        return True
