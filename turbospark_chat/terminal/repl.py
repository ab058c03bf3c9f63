"""The chat at a terminal: what keys ask for becomes turns and commands, what happens becomes screen text.

Puts the screen's parts together; the turns themselves are the desk's. Whatever goes wrong, the chat goes on.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TextIO

from rich.text import Text

from turbospark_chat.chat.archive import ConversationArchive
from turbospark_chat.chat.attachment import Attachment
from turbospark_chat.chat.chat_session import ChatSession
from turbospark_chat.chat.conversation import MAIN
from turbospark_chat.engine.model_thread import ModelThread
from turbospark_chat.engine.pacing import PowerProfile
from turbospark_chat.engine.pressure import MemoryPressure, PressureProbe
from turbospark_chat.errors import TurboSparkError, UsageError
from turbospark_chat.settings import Locations
from turbospark_chat.terminal.ahead_reader import AheadReader
from turbospark_chat.terminal.bar_painter import BarPainter
from turbospark_chat.terminal.commands.command import Command, paths
from turbospark_chat.terminal.commands.context import Models
from turbospark_chat.terminal.commands.costs import say_cost
from turbospark_chat.terminal.commands.table import COMMANDS, parse_command
from turbospark_chat.terminal.completer import CommandCompleter
from turbospark_chat.terminal.display import Display
from turbospark_chat.terminal.draft_buffer import Draft
from turbospark_chat.terminal.draft_counter import DraftCounter
from turbospark_chat.terminal.frame_output import FrameOutput
from turbospark_chat.terminal.frame_pacer import FramePacer
from turbospark_chat.terminal.frame_signal import FrameSignal
from turbospark_chat.terminal.harmless import harmless
from turbospark_chat.terminal.input_history import JsonLinesHistory
from turbospark_chat.terminal.question import Question, parse_answer
from turbospark_chat.terminal.repl_context import ReplContext
from turbospark_chat.terminal.reply_stream import ReplyStream
from turbospark_chat.terminal.screen import Screen
from turbospark_chat.terminal.screen_writer import PROMPT, ScreenWriter
from turbospark_chat.terminal.status_bar import StatusSnapshot
from turbospark_chat.terminal.turn_desk import TurnDesk
from turbospark_chat.terminal.vitals import VitalsMonitor


class Repl:
    """One chat, from the first prompt to leaving."""

    def __init__(
        self,
        session: ChatSession,
        thread: ModelThread,
        *,
        archive: ConversationArchive,
        models: Models,
        locations: Locations,
        output: FrameOutput,
        display: Display,
        probe: PressureProbe | None,
        reply_stream: TextIO | None = None,
        is_vi: bool = False,
        has_bar: bool = True,
        keeps_inputs: bool = True,
        reads_ahead: bool = True,
        is_debug: bool = False,
    ) -> None:
        self._session, self._thread, self._models = session, thread, models
        self._bar = BarPainter(display.painter, clock=time.monotonic)
        self._vitals = VitalsMonitor(probe, on_change=self._vitals_changed)
        self._drafts = DraftCounter(session.count_text, on_change=lambda: self._screen.invalidate())
        self._counted_by = models.current  # the draft's tokens
        self._question: Question | None = None
        self._draft: Draft | None = None  # set aside for the question
        self._has_hinted = False  # how to leave, since the last input
        self._loop: asyncio.AbstractEventLoop | None = None
        self._frames = FrameSignal(FramePacer(time.thread_time))
        self._notices: deque[Text] = deque()
        self._screen = Screen(
            self,
            live_text=lambda width, height: self._desk.live(width, height),
            prompt=lambda: self._question.prompt if self._question else PROMPT,
            status=self._draw_status,
            history=JsonLinesHistory(locations.history_file, on_problem=self.warn, is_kept=keeps_inputs),
            completer=CommandCompleter(COMMANDS, lambda: self._context, paths=paths),
            output=output, is_vi=is_vi, has_bar=has_bar,
            on_error=lambda error: self._writer.show_fault(error),
        )  # fmt: skip
        self._writer = ScreenWriter(self._screen, display.painter, is_debug=is_debug)
        self._desk = TurnDesk(
            session, thread, self._screen, self._writer, display,
            wake=self._wake, ask=self._ask, before_work=lambda: self._ahead.stop(),
            when_idle=lambda: self._ahead.begin(), when_given_back=lambda: self._ahead.decline(),
            reply_stream=None if reply_stream is None else ReplyStream(reply_stream), has_bar=has_bar,
        )  # fmt: skip
        self._ahead = AheadReader(
            session, thread, call_later=self._call_later, wake=self._wake,
            is_allowed=lambda: reads_ahead and self._may_read_ahead(),
        )  # fmt: skip
        self._context = ReplContext(
            session, self._desk, self._screen, self._writer, display,
            archive=archive, models=models, draw_bar=self._draw_status, leave=self.leave,
            finish_reading=lambda: self._ahead.finish(),
        )  # fmt: skip

    def run(self, *, attachments: Sequence[Attachment] = (), greets: bool = True) -> int:
        """Chat until the user leaves; return the exit code. The `attachments` stand in the input to begin with."""
        if greets:
            length = self._session.context_length
            greeting = f"{harmless(self._models.current)}, context {length} tokens; /help lists commands"
            self._notices.appendleft(Text(greeting, "notice"))
        self._attachments = attachments
        self._vitals.start()
        try:
            return asyncio.run(self._screen.run(self._begin))
        finally:
            self._vitals.close()
            self._drafts.close()
            self._ahead.stop()
            self._desk.cancel()
            self._thread.close()

    def warn(self, line: str) -> None:
        """Show one line about something that went wrong beside the chat; any thread may call it."""
        self._notices.append(Text(harmless(f"warning: {line}"), "bar.warn"))
        self._wake()

    # What keys ask for

    @property
    def is_asking(self) -> bool:
        """Whether a question waits for its answer."""
        return self._question is not None

    @property
    def has_waiting(self) -> bool:
        """Whether a message waits until the reply has ended."""
        return self._desk.has_waiting

    def submit(self, text: str, *, shown: str, is_pasted: bool) -> None:
        """Take a whole input: an answer, a command or a message."""
        self.draft_changed()  # the input is empty now, which it does not tell by itself
        self._has_hinted = False
        self._writer.forget_faults()
        if self._question is not None:
            self._take_answer(self._question, text)
        elif self._desk.is_changing:  # what comes is meant for what the conversation will be
            take = partial(self._take, text, shown=shown, is_pasted=is_pasted)
            is_command = not is_pasted and _is_command(text)
            self._desk.put_off(text, shown=shown, take=take, is_command=is_command)
        else:
            self._take(text, shown=shown, is_pasted=is_pasted)
            self._desk.go_on()

    def _take(self, text: str, *, shown: str, is_pasted: bool) -> None:
        try:
            parsed = None if is_pasted else self._parse(text)
            if parsed is None:
                self._desk.send(text.strip("\n"), shown=shown.strip("\n"))
            else:
                self._run_command(*parsed)
        except Exception as error:  # whatever it was, the chat survives it
            self._writer.show_error(error)

    def interrupt(self) -> None:
        """Stop the reply, or clear the input, or say how to leave."""
        if self._question is not None:
            self._answer(self._question, is_yes=False)
        elif self._desk.is_busy:
            self._desk.cancel()
        elif self._screen.input_text:
            self._screen.input_text = ""
        elif not self._has_hinted:
            self._has_hinted = True
            self._writer.say("Ctrl-D or /exit leaves", "notice")

    def leave(self) -> None:
        """End the chat."""
        self._desk.finish_now()
        self._screen.close(0)

    def show_thinking(self) -> None:
        """Show what the model thinks, or thought."""
        self._desk.show_thinking()

    def answer_now(self) -> None:
        """Have the model stop thinking and answer."""
        self._session.answer_now()

    def draft_changed(self) -> None:
        """Let the model read what is typed, once it stays as it is."""
        if self._question is None:
            self._ahead.watch(self._screen.input_text)

    def take_back(self) -> None:
        """Put what waits last back into the input."""
        self._desk.take_back()

    def _parse(self, text: str) -> tuple[Command, str] | None:
        """Return the command that was typed, or None for a message; show what is, or looks like, a command."""
        is_command = True
        try:
            parsed = parse_command(text)
            is_command = parsed is not None
            return parsed
        finally:
            if is_command:
                self._writer.show_message(text.strip())

    def _run_command(self, command: Command, argument: str) -> None:
        if command.needs_idle and self._desk.is_busy:
            raise UsageError(
                f"`/{command.name}` has to wait until what runs has ended; Ctrl-C stops it, Up brings the line back"
            )
        if command.needs_idle:
            self._ahead.finish()
        command.run(self._context, argument)

    # Questions

    def _ask(self, question: Question) -> None:
        self._question = question
        self._draft = self._screen.set_aside()

    def _take_answer(self, question: Question, text: str) -> None:
        is_yes = parse_answer(text)
        if is_yes is None:
            self._screen.input_text = text
        else:
            self._answer(question, is_yes=is_yes)

    def _answer(self, question: Question, *, is_yes: bool) -> None:
        self._question = None
        if self._draft is not None:
            self._screen.bring_back(self._draft)
        (question.if_yes if is_yes else question.if_no)()
        self._desk.go_on()

    # What happens

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._watcher = loop.create_task(self._watch())
        self._show_notices()  # before anything else is drawn
        self._frames.listen(loop)
        for attachment in self._attachments:
            self._context.attach(attachment.name, attachment.text)
        if self._session.conversation.turns:
            self._context.show_turns()
            self._desk.conversation_changed()
            with contextlib.suppress(TurboSparkError):  # that is shown already
                say_cost(self._context, "going on", self._session.conversation.turns)
        self._ahead.begin()

    def _vitals_changed(self) -> None:
        self._screen.invalidate()
        self._wake()  # what may be read ahead depends on it

    def _call_later(self, seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        assert self._loop is not None  # nothing is typed before it runs
        return self._loop.call_later(seconds, call)

    def _may_read_ahead(self) -> bool:
        """Whether the model may read what is not sent yet: it has nothing else to do, and the machine can spare it."""
        vitals, profile = self._vitals.latest, self._session.options.completion.power_profile
        return (
            not self._desk.is_busy
            and self._question is None
            and vitals.memory_pressure is MemoryPressure.NORMAL
            and not vitals.is_on_battery
            and profile is not PowerProfile.EFFICIENCY
        )

    def _wake(self) -> None:
        """Have what happened shown, what has ended at once; any thread may call it."""
        self._frames.wake(at_once=self._desk.has_ended)

    async def _watch(self) -> None:
        """Carry events to the screen for as long as it runs, a frame at a time."""
        try:
            while True:
                await self._frames.wait()
                try:
                    await self._desk.carry()
                    self._ahead.look()
                    if not self._desk.is_busy:  # not in the middle of a reply
                        self._show_notices()
                except OSError:
                    raise
                except Exception as error:
                    self._writer.show_fault(error)
                await self._frames.rest()
        except Exception as error:  # such as a reader of the replies who has gone
            self._screen.fail(error)

    def _show_notices(self) -> None:
        while self._notices:
            self._writer.show(self._notices.popleft())

    def _draft_tokens(self) -> int | None:
        """Return the draft's tokens, as far as they are counted; by the tokenizer of the model in use."""
        draft = self._screen.input_text
        if self._counted_by != self._models.current:
            self._counted_by = self._models.current
            self._drafts.forget()
        return self._drafts.tokens(draft) if draft else None

    def _draw_status(self, width: int) -> str:
        activity, used = self._desk.activity, self._desk.context_used
        if activity is not None:
            used = activity.prefill_done + activity.n_tokens or used
        branch = self._session.conversation.branch
        status = StatusSnapshot(
            " ".join(harmless(self._models.current).split()),
            self._session.context_length,
            used,
            self._vitals.latest,
            self._desk.last,
            activity,
            draft_tokens=self._draft_tokens(),
            n_ahead=0 if activity is not None else self._ahead.n_tokens,
            branch=branch if branch != MAIN else "",
            vi_mode=self._screen.vi_mode,
        )
        return self._bar.draw(status, width)


def _is_command(text: str) -> bool:
    """Whether a line is, or looks like, a command."""
    try:
        return parse_command(text) is not None
    except UsageError:
        return True
