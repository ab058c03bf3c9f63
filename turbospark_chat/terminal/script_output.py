"""What a script is answered: replies as text, or one JSON object for everything that happens.

Text: replies on stdout, everything else on stderr. JSON: all on stdout, an object a line. Never an escape code.
"""

import codecs
import time
from dataclasses import dataclass
from typing import Any, Protocol, TextIO

from turbospark_chat.chat.turn_result import ReplyText, TurnEvent, TurnResult
from turbospark_chat.engine.completion import StopReason
from turbospark_chat.engine.progress import Prefill
from turbospark_chat.errors import TurboSparkError
from turbospark_chat.terminal.harmless import harmless, json_line
from turbospark_chat.terminal.progress_line import PrefillLine
from turbospark_chat.terminal.turn_record import TurnOrigin, turn_record


@dataclass(frozen=True, slots=True)
class Streams:
    """stdout and stderr. What goes to a terminal is made harmless, what goes to a file or a pipe stays as it is."""

    out: TextIO
    err: TextIO
    is_quiet: bool = False  # nothing on stderr but errors

    def write(self, text: str) -> None:
        """Write to stdout at once."""
        self._write(self.out, text)

    @property
    def takes_every_character(self) -> bool:
        """Whether the encoding of stdout lacks none."""
        return self.out.encoding is None or codecs.lookup(self.out.encoding).name.startswith("utf")

    def note(self, text: str) -> None:
        """Write to stderr at once, unless quiet."""
        if not self.is_quiet:
            self._write(self.err, text)

    def complain(self, text: str) -> None:
        """Write to stderr at once, quiet or not."""
        self._write(self.err, text)

    def _write(self, stream: TextIO, text: str) -> None:
        stream.write(harmless(text) if stream.isatty() else text)
        stream.flush()


class ScriptOutput(Protocol):
    """Takes what happens, in order."""

    @property
    def survives_errors(self) -> bool:
        """Whether a script can tell an error from a reply, so that the conversation may go on after it."""

    def begin_turn(self) -> None:
        """Note that a turn begins."""

    def take(self, event: TurnEvent) -> None:
        """Take an event of the turn."""

    def stop_turn(self) -> None:
        """Note that the turn has ended, however it did."""

    def end_turn(self, result: TurnResult, origin: TurnOrigin) -> None:
        """Take the turn's result."""

    def tell(self, text: str) -> None:
        """Take something worth knowing before a turn, such as what it will cost."""

    def answer(self, command: str, text: str) -> None:
        """Take a command's answer."""

    def fail(self, error: TurboSparkError) -> None:
        """Take an error after which the conversation goes on."""


class TextOutput:
    """Replies as text, each on a line, with `separator` between two.

    Thinking goes to stderr, or nowhere where it `hides_thinking`. `survives_errors` where a person reads along: a
    script could not tell an error from a reply.
    """

    def __init__(
        self,
        streams: Streams,
        *,
        hides_thinking: bool = False,
        separator: str = "",
        survives_errors: bool = False,
    ) -> None:
        self.survives_errors = survives_errors
        self._streams, self._hides_thinking, self._separator = streams, hides_thinking, separator
        self._n_turns = 0
        self._in_reasoning = self._is_mid_line = False
        self._late: list[TurnEvent] = []
        self._line: PrefillLine | None = None

    def begin_turn(self) -> None:
        """Set the reply off from the one before, and start the clock of the prefill line."""
        if self._n_turns:
            self._streams.write(self._separator)
        if not self._streams.is_quiet:
            self._line = PrefillLine(self._streams.err, clock=time.monotonic)

    def take(self, event: TurnEvent) -> None:
        """Write what an event brings."""
        if isinstance(event, Prefill):
            if self._line is not None:
                self._line.show(event)
            return
        self._clear_line()
        if not isinstance(event, ReplyText):
            if self._is_mid_line:
                self._late.append(event)  # a terminal would show it in the reply's last line
            else:
                self._streams.note(f"{event}\n")
        elif event.text and not event.is_reasoning:
            self._end_reasoning()
            self._is_mid_line = True
            self._streams.write(event.text)
        elif event.text and not self._hides_thinking:
            self._in_reasoning = True
            self._streams.note(event.text)

    def stop_turn(self) -> None:
        """Leave no unfinished line on stderr."""
        self._clear_line()
        self._line = None

    def end_turn(self, result: TurnResult, origin: TurnOrigin) -> None:
        """End the reply's line."""
        self._end_reasoning()
        self._streams.write("\n")
        self._n_turns += 1
        for event in self._late:
            self._streams.note(f"{event}\n")
        self._is_mid_line = False
        self._late.clear()
        if result.raw.reason is StopReason.MAX_TOKENS:
            self._streams.note(f"[reached the limit of {result.raw.new_tokens} tokens: max_tokens]\n")
        elif result.raw.reason is StopReason.CANCELLED and self.survives_errors:
            self._streams.note("[stopped; `/continue` goes on]\n")

    def tell(self, text: str) -> None:
        """Write it to stderr."""
        self._streams.note(f"{text}\n")

    def answer(self, command: str, text: str) -> None:
        """Write it to stderr: stdout carries replies."""
        if text:
            self._streams.note(f"{text}\n")

    def fail(self, error: TurboSparkError) -> None:
        """Write it to stderr."""
        self._streams.complain(f"error: {error}\n")

    def _clear_line(self) -> None:
        if self._line is not None:
            self._line.clear()

    def _end_reasoning(self) -> None:
        """Give the thinking on stderr the newline that its text lacks."""
        if self._in_reasoning:
            self._in_reasoning = False
            self._streams.note("\n")


class JsonOutput:
    """An object for every line that was sent: a turn, a command's answer, or an error.

    With `is_streaming` what happens on the way to it is an object too: prefill, notices, every piece of a reply.
    """

    survives_errors = True

    def __init__(self, streams: Streams, *, is_streaming: bool = False) -> None:
        self._streams, self._is_streaming = streams, is_streaming

    def begin_turn(self) -> None:
        """Nothing to note."""

    def take(self, event: TurnEvent) -> None:
        """Write an event, where events are wanted; what is only told goes to stderr otherwise."""
        if isinstance(event, Prefill):
            if self._is_streaming:
                self._write("prefill", done=event.done, total=event.total, reused=event.reused)
        elif not isinstance(event, ReplyText):
            self.tell(str(event))
        elif self._is_streaming and event.text:
            self._write("token", text=event.text, is_reasoning=event.is_reasoning, n_tokens=event.n_tokens)

    def stop_turn(self) -> None:
        """Nothing to note."""

    def end_turn(self, result: TurnResult, origin: TurnOrigin) -> None:
        """Write the turn."""
        self._write("turn", **turn_record(result, origin))

    def tell(self, text: str) -> None:
        """Write a notice, where events are wanted, or else to stderr."""
        if self._is_streaming:
            self._write("notice", text=text)
        else:
            self._streams.note(f"{text}\n")

    def answer(self, command: str, text: str) -> None:
        """Write a command's answer."""
        self._write("command", command=command, answer=text)

    def fail(self, error: TurboSparkError) -> None:
        """Write an error."""
        self._write("error", message=str(error), exit_code=error.exit_code)

    def _write(self, event: str, **values: Any) -> None:
        line = json_line({"event": event, **values}, is_ascii=not self._streams.takes_every_character)
        self._streams.write(line + "\n")
