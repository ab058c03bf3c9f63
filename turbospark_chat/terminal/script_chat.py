"""A whole chat without a screen: lines in, turns and commands as the keyboard would give them."""

from collections.abc import Callable, Iterable

from rich.console import RenderableType

from turbospark_chat.chat.archive import ConversationArchive
from turbospark_chat.chat.attachment import Attachment, join_attachments
from turbospark_chat.chat.chat_session import ChatSession
from turbospark_chat.chat.turn_result import TurnResult
from turbospark_chat.errors import TurboSparkError
from turbospark_chat.terminal.ansi import Painter
from turbospark_chat.terminal.commands.context import Change, Models, Work
from turbospark_chat.terminal.commands.table import parse_command
from turbospark_chat.terminal.script import EXIT_CANCELLED, ScriptRunner
from turbospark_chat.terminal.script_input import Content, Input, read_input
from turbospark_chat.terminal.script_output import ScriptOutput
from turbospark_chat.terminal.totals import Totals
from turbospark_chat.terminal.turn_record import TurnOrigin

ANSWER_COLUMNS = 100  # tables are for people, but nobody says how wide their window is


class ScriptChat:
    """Takes lines until they end, or until one asks to leave. What commands use it offers, but for a screen."""

    screen = None

    def __init__(
        self,
        session: ChatSession,
        runner: ScriptRunner,
        output: ScriptOutput,
        *,
        archive: ConversationArchive,
        models: Models,
        is_json: bool,
        attachments: Iterable[Attachment] = (),
    ) -> None:
        self.session, self.archive, self.models = session, archive, models
        self._runner, self._output, self._is_json = runner, output, is_json
        self._attachments = list(attachments)  # that go with the next message
        self._totals = Totals()
        self._command = ""  # that is being done, and what it has answered so far
        self._answers: list[str] = []
        self._has_started = False  # a turn
        self._is_leaving = False
        self._exit_code = 0

    def run(self, lines: Iterable[str]) -> int:
        """Take every line; return the exit code: of the first error that was survived, or 130 after a cancel."""
        with self._runner.interrupts():
            for line in lines:
                self._take(line)
                if self._is_leaving:
                    break
        return self._exit_code or (EXIT_CANCELLED if self._runner.was_cancelled else 0)

    def _take(self, line: str) -> None:
        try:
            self._do(read_input(line, is_json=self._is_json))
        except TurboSparkError as error:
            if not self._output.survives_errors:
                raise
            if self._is_json:  # a person has seen it
                self._exit_code = self._exit_code or error.exit_code
            self._output.fail(error)

    def _do(self, said: Input) -> None:
        found = None if isinstance(said, Content) else parse_command(said.text)
        if found is None:
            self._send(said.text)
            return
        command, argument = found
        self._command, self._answers = said.text.strip(), []
        self._has_started = False
        command.run(self, argument)
        if self._answers or not self._has_started:
            self._output.answer(self._command, "\n".join(self._answers))

    def _send(self, text: str) -> None:
        self._answers = []
        message = join_attachments(self._attachments, text)
        self.start(lambda cancel, sink: self.session.send(message, cancel=cancel, on_event=sink))
        self._attachments = []

    def _origin(self, result: TurnResult) -> TurnOrigin:
        number = None if result.turn is None else len(self.session.conversation.turns)
        return TurnOrigin(self.models.current, self.session.arithmetic, self.archive.conversation_id, number)

    # What commands ask for

    def show(self, content: RenderableType) -> None:
        """Keep it for the command's answer."""
        text = Painter(color=False).render(content, width=ANSWER_COLUMNS)
        self._answers.append("\n".join(line.rstrip() for line in text.split("\n")))

    def start(self, work: Work, *, message: str = "", changes_conversation: bool = False) -> None:
        """Do it now and wait for its end; what a command said before, what it costs above all, is told first."""
        for text in self._answers:
            self._output.tell(text)
        self._answers = []
        outcome = self._runner.take_turn(work)
        if isinstance(outcome, TurnResult):
            self._has_started = True  # and the turn is all the answer there is
            self._totals.add(outcome)
            self._output.end_turn(outcome, self._origin(outcome))
        else:
            self.show(outcome)

    def start_change(self, change: Change, *, then: Callable[[], None] = lambda: None) -> None:
        """Do it now, wait for its end, and go on."""
        self._runner.take_turn(lambda cancel, sink: change(cancel))
        then()

    def attach(self, name: str, text: str) -> None:
        """Keep a text for the next message."""
        self._attachments.append(Attachment(name, text))
        self._answers.append(f"{name}: {self.session.count_text(text)} tokens go with the next message")

    def show_message(self, text: str) -> None:
        """Show nothing: the script knows what it said."""

    def show_turns(self) -> None:
        """Show nothing: `/history` does, where it is wanted."""

    def statistics(self) -> RenderableType:
        """Return what the turns so far cost."""
        return self._totals.table()

    def conversation_changed(self) -> None:
        """Note nothing: there is no bar."""

    def leave(self) -> None:
        """Take no further line."""
        self._is_leaving = True
