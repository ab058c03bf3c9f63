"""The chat at a terminal: inputs become turns on the model's thread, their events become screen text.

Knows the session and the screen; the model only as a thread that takes jobs. A turn that fails gives its message
back to the input, and the chat goes on.
"""

import asyncio
import contextlib
import time
import traceback
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TextIO

from prompt_toolkit.output import Output
from rich.console import RenderableType
from rich.text import Text

from turbospark_chat.chat.chat_session import ChatSession
from turbospark_chat.chat.turn_result import ReplyText, TurnEvent, TurnEventSink, TurnResult
from turbospark_chat.chat.window import OverflowPolicy, WindowOverflowError
from turbospark_chat.engine.completion import RawDecodeResult, StopReason
from turbospark_chat.engine.model_thread import Job, ModelThread
from turbospark_chat.engine.pressure import PressureProbe
from turbospark_chat.engine.raw_completion import CancelFlag
from turbospark_chat.errors import TurboSparkError, UsageError
from turbospark_chat.settings import Locations
from turbospark_chat.terminal.ansi import Painter
from turbospark_chat.terminal.bar_painter import BarPainter
from turbospark_chat.terminal.commands import Command, parse_command
from turbospark_chat.terminal.frame_pacer import FRAME_SECONDS, FramePacer
from turbospark_chat.terminal.harmless import harmless
from turbospark_chat.terminal.input_history import JsonLinesHistory
from turbospark_chat.terminal.question import Question, parse_answer
from turbospark_chat.terminal.reply_stream import ReplyStream
from turbospark_chat.terminal.screen import Screen
from turbospark_chat.terminal.status_bar import StatusSnapshot
from turbospark_chat.terminal.totals import Totals
from turbospark_chat.terminal.turn_view import TurnView
from turbospark_chat.terminal.vitals import VitalsMonitor

Generate = Callable[[CancelFlag, TurnEventSink], TurnResult]


@dataclass(frozen=True, slots=True)
class _Running:
    """The turn under way. `message` returns to the input if nothing comes of it."""

    job: Job[TurnEvent, TurnResult]
    view: TurnView
    message: str
    generate: Generate


class Repl:
    """One chat, from the first prompt to leaving."""

    def __init__(
        self,
        session: ChatSession,
        thread: ModelThread,
        *,
        model_name: str,
        locations: Locations,
        output: Output,
        is_colored: bool,
        probe: PressureProbe | None,
        reply_stream: TextIO | None = None,
        is_debug: bool = False,
    ) -> None:
        self._session, self._thread = session, thread
        self._model_name = " ".join(harmless(model_name).split())
        self._painter = Painter(color=is_colored)
        self._bar = BarPainter(self._painter, clock=time.monotonic)
        self._reply_stream = None if reply_stream is None else ReplyStream(reply_stream)
        self._is_debug = is_debug
        self._vitals = VitalsMonitor(probe, on_change=lambda: self._screen.invalidate())
        self._totals = Totals()
        self._context_used = 0
        self._last: RawDecodeResult | None = None  # the turn that the bar describes
        self._running: _Running | None = None
        self._queued: deque[str] = deque()
        self._question: Question | None = None
        self._has_hinted = False  # how to leave, since the last input
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()
        self._is_waking = False
        self._notices: deque[Text] = deque()
        self._screen = Screen(
            self,
            live_text=lambda: self._running.view.live if self._running else "",
            prompt=lambda: self._question.prompt if self._question else "> ",
            status=self._draw_status,
            history=JsonLinesHistory(locations.history_file, on_problem=self.warn),
            output=output,
            on_error=self._show_error,
        )

    def run(self) -> int:
        """Chat until the user leaves; return the exit code."""
        greeting = f"{self._model_name}, context {self._session.context_length} tokens; /help lists commands"
        self._notices.appendleft(Text(greeting, "notice"))
        self._vitals.start()
        try:
            return asyncio.run(self._screen.run(self._begin))
        finally:
            self._vitals.close()
            if self._running is not None:
                self._running.job.cancel()
            self._thread.close()

    def warn(self, line: str) -> None:
        """Show one line about something that went wrong beside the chat; any thread may call it."""
        self._notices.append(Text(harmless(f"warning: {line}"), "bar.warn"))
        self._wake()

    # What keys ask for

    def submit(self, text: str, *, is_pasted: bool) -> None:
        """Take a whole input: an answer, a command or a message. What fails stays in the input."""
        self._has_hinted = False
        if self._question is not None:
            is_yes = parse_answer(text)
            if is_yes is None:
                self._screen.input_text = text
            else:
                self._answer(self._question, is_yes=is_yes)
            return
        try:
            parsed = None if is_pasted else parse_command(text)
            if parsed is None:
                self._send(text.strip("\n"))
            else:
                self._say(f"> {text.strip()}", "message")
                self._run_command(*parsed)
        except Exception as error:  # whatever it was, the chat and the input survive it
            self._show_error(error)
            self._screen.input_text = text

    def interrupt(self) -> None:
        """Stop the reply, or clear the input, or say how to leave."""
        if self._question is not None:
            self._answer(self._question, is_yes=False)
        elif self._running is not None:
            self._running.job.cancel()
        elif self._screen.input_text:
            self._screen.input_text = ""
        elif not self._has_hinted:
            self._has_hinted = True
            self._say("Ctrl-D or /exit leaves", "notice")

    def leave(self) -> None:
        """End the chat."""
        if self._running is not None:
            self._running.job.cancel()
            if row := self._running.view.finish():
                self._screen.write_above(row)
        self._screen.close(0)

    # What commands ask for

    @property
    def session(self) -> ChatSession:
        """The conversation and its options."""
        return self._session

    def show(self, content: RenderableType) -> None:
        """Print above the input."""
        self._screen.write_above(self._painter.render(content, width=self._screen.size.columns) + "\n")

    def statistics(self) -> RenderableType:
        """Return what the turns so far cost."""
        return self._totals.table()

    def retry(self) -> None:
        """Start answering the last message again."""
        self._start("", lambda cancel, sink: self._session.retry(cancel=cancel, on_event=sink))

    def continue_reply(self) -> None:
        """Start going on with the last reply."""
        self._start("", lambda cancel, sink: self._session.continue_reply(cancel=cancel, on_event=sink))

    def conversation_changed(self) -> None:
        """Note that turns were taken away."""
        self._context_used = self._session.count_tokens()
        self._last = None  # what it says of the context is no longer so
        self._screen.invalidate()

    def _run_command(self, command: Command, argument: str) -> None:
        if command.needs_idle and self._running is not None:
            raise UsageError(f"`/{command.name}` has to wait until the reply has ended; Ctrl-C stops it")
        command.run(self, argument)

    def _say(self, text: str, style: str) -> None:
        self.show(Text(harmless(text), style))

    # Turns

    def _send(self, message: str) -> None:
        if self._running is not None:
            self._queued.append(message)
            self._screen.invalidate()
            return
        self._say("> " + message.replace("\n", "\n  "), "message")
        self._start(message, lambda cancel, sink: self._session.send(message, cancel=cancel, on_event=sink))

    def _start(self, message: str, generate: Generate) -> None:
        job = self._thread.submit(generate, wake=self._wake)
        self._running = _Running(job, TurnView(self._painter, clock=time.monotonic), message, generate)
        self._screen.invalidate()

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._watcher = loop.create_task(self._watch())
        self._woken.set()

    def _wake(self) -> None:
        """Have the screen's thread look for events; the model's thread calls this.

        Once is enough until it has looked: its loop would go round for every token, and keep a core from the model.
        """
        if self._loop is not None and not self._is_waking:
            self._is_waking = True
            with contextlib.suppress(RuntimeError):  # the screen has gone, and its loop with it
                self._loop.call_soon_threadsafe(self._woken.set)

    async def _watch(self) -> None:
        """Carry events to the screen for as long as it runs, a frame at a time."""
        pacer = FramePacer(time.thread_time)
        try:
            while True:
                if not self._woken.is_set():
                    await self._woken.wait()
                    pacer.wake()
                self._woken.clear()
                self._is_waking = False  # before looking: what happens from here on wakes it again
                while self._notices:
                    self.show(self._notices.popleft())
                if self._running is not None:
                    await self._carry(self._running)
                await asyncio.sleep(pacer.rest())
        except Exception as error:  # such as a reader of the replies who has gone
            self._screen.fail(error)

    async def _carry(self, running: _Running) -> None:
        is_finished = running.job.is_finished  # asked before draining: nothing comes after it
        finished = "".join(self._take(event, running.view) for event in running.job.drain())
        if is_finished:
            finished += running.view.finish()
        if finished:
            self._screen.write_above(finished)
        self._screen.invalidate()
        if is_finished:
            if self._reply_stream is not None and self._reply_stream.end():
                await asyncio.sleep(FRAME_SECONDS)  # its reader may write to this terminal
                self._screen.come_back()
            self._running = None
            self._end(running)

    def _take(self, event: TurnEvent, view: TurnView) -> str:
        """Return what goes above the input; the answer goes, as it is, to the other stream where there is one."""
        if self._reply_stream is not None and isinstance(event, ReplyText) and not event.is_reasoning:
            if event.text:
                if self._reply_stream.is_pipe:
                    self._screen.stand_aside()
                self._reply_stream.write(event.text)
            event = replace(event, text="")
        return view.take(event, width=self._screen.size.columns)

    def _end(self, running: _Running) -> None:
        try:
            result = running.job.result()
        except WindowOverflowError as error:
            self._overflow(error, running)
        except Exception as error:  # whatever it was, the chat and the message survive it
            self._show_error(error)
            self._give_back(running.message)
        else:
            self._finish_turn(result, running.message)
        if self._queued and self._question is None:
            self._send(self._queued.popleft())

    def _finish_turn(self, result: TurnResult, message: str) -> None:
        self._totals.add(result.raw)
        self._last = result.raw
        self._context_used = result.raw.kv_position
        if result.turn is None:
            is_cancelled = result.raw.reason is StopReason.CANCELLED
            self._say(
                "stopped before the reply began" if is_cancelled else "no reply: max_tokens is 0", "notice"
            )
            self._give_back(message)
        elif result.raw.reason is StopReason.CANCELLED:
            self._say("[stopped; `/continue` goes on]", "notice")
            self._give_back("")
        elif result.raw.reason is StopReason.MAX_TOKENS:
            self._say(f"[reached the limit of {result.raw.new_tokens} tokens; `/continue` goes on]", "notice")
        elif not result.turn.reply.content:
            self._say("[empty reply]", "notice")

    def _give_back(self, message: str) -> None:
        """Put a message nothing came of, and those queued behind it, before what is typed now."""
        texts = [text for text in (message, *self._queued) if text]
        self._queued.clear()
        if texts:
            typed = self._screen.input_text
            self._screen.input_text = "\n".join([*texts, typed] if typed else texts)

    def _overflow(self, error: WindowOverflowError, running: _Running) -> None:
        self._show_error(error)
        if error.n_droppable == 0 or self._session.options.on_overflow is not OverflowPolicy.ASK:
            self._give_back(running.message)
            return

        def drop_and_start_again() -> None:
            self._session.leave_out(error.n_droppable)
            self._start(running.message, running.generate)

        oldest = "exchange" if error.n_droppable == 1 else f"{error.n_droppable} exchanges"
        self._question = Question(
            prompt=f"leave out the oldest {oldest}? y/n ",
            if_yes=drop_and_start_again,
            if_no=lambda: self._give_back(running.message),
            typed=self._screen.input_text,
        )
        self._screen.input_text = ""

    def _answer(self, question: Question, *, is_yes: bool) -> None:
        self._question = None
        self._screen.input_text = question.typed
        (question.if_yes if is_yes else question.if_no)()

    def _show_error(self, error: BaseException) -> None:
        if self._is_debug:
            self._say("".join(traceback.format_exception(error)).rstrip(), "error")
        expected = isinstance(error, TurboSparkError)
        text = str(error) if expected else f"{type(error).__name__}: {error}; run with `--debug` for where"
        self._say(f"error: {text}", "error")

    def _draw_status(self, width: int) -> str:
        activity, used = None, self._context_used
        if self._running is not None:
            activity = replace(self._running.view.activity, n_queued=len(self._queued))
            used = activity.prefill_done + activity.n_tokens or used
        length = self._session.context_length
        status = StatusSnapshot(self._model_name, length, used, self._vitals.latest, self._last, activity)
        return self._bar.draw(status, width)
