"""A chat: a conversation with a model, turn by turn. Knows who answers and who keeps; no prompt and no run.

All methods that generate belong on the thread that owns the producer. A turn that raises, or is cancelled before
it said anything, leaves the conversation as it was; what was prefilled for it stays in the cache and serves the next.
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from turbospark_chat.chat.bias_text import spell_out_biases
from turbospark_chat.chat.chat_model import ChatModel
from turbospark_chat.chat.conversation import Conversation, Turn
from turbospark_chat.chat.message import Message
from turbospark_chat.chat.options import ChatOptions, find_option
from turbospark_chat.chat.prompt_encoder import ids_saying, is_saying
from turbospark_chat.chat.replier import Replier
from turbospark_chat.chat.session_costs import SessionCosts
from turbospark_chat.chat.turn_result import EndedTurn, NotKept, StoredApart, TurnEventSink, TurnResult
from turbospark_chat.engine.alternatives import TokenChoice
from turbospark_chat.engine.raw_completion import CancelFlag
from turbospark_chat.errors import ModelWarning, UsageError


class TurnJournal(Protocol):
    """Where a conversation is kept while it goes."""

    def keep(self, conversation: Conversation, *, ended: EndedTurn | None) -> Sequence[StoredApart]:
        """Store the conversation as it is now; `ended` is the turn that was just added, if it was that.

        Returns the branches that another program has gone on with, so that they are stored under other names.

        Raises:
            StoreError: it could not be stored.
        """

    def begin_anew(self) -> None:
        """Keep what follows as another conversation."""


class ChatSession:
    """A conversation with a model.

    A changed conversation goes to the `journal`. Where that raises a StoreError, a turn reports it as a NotKept
    event; any other change raises it, once the change is made. That a branch is stored apart from another program's
    is an event of the turn, or else a ModelWarning.
    """

    def __init__(
        self,
        model: ChatModel,
        *,
        system: str | None = None,
        options: ChatOptions | None = None,
        journal: TurnJournal | None = None,
    ) -> None:
        self._model, self._replier = model, Replier(model)
        self.conversation = Conversation(system=system)
        self.options = options or ChatOptions()
        self.journal = journal
        self.costs = SessionCosts(self._replier, lambda: (self.conversation, self.options))
        self.first_system, self._first_options = system, self.options  # for `start_over`

    @property
    def context_length(self) -> int:
        """The most positions a turn may use."""
        return self._model.context_length

    @property
    def arithmetic(self) -> str:
        """What computes, for people."""
        return self._model.arithmetic

    @property
    def model(self) -> ChatModel:
        """The model that answers."""
        return self._model

    def set_model(self, model: ChatModel) -> None:
        """Go on with another model, or this one with another template; the conversation stays, said in its ids."""
        self._model = model
        self.restore(self.conversation)

    def set_option(self, name: str, text: str) -> None:
        """Change an option, from the next turn on, to what a user typed; biases may be given by text.

        Raises:
            SettingError: no such option, or not a value of it.
        """
        self.options = self.with_option(self.options, name, text)

    def with_option(self, options: ChatOptions, name: str, text: str) -> ChatOptions:
        """Return options with one changed to what a user typed; biases may be given by text.

        Raises:
            SettingError: no such option, or not a value of it.
        """
        row = find_option(name)
        if row.name == "logit_bias":
            text = spell_out_biases(text, self._model.tokenizer.encode_continuation)
        return row.change(options, text)

    def set_system(self, text: str | None) -> None:
        """Change the system prompt, from the next turn on.

        Raises:
            StoreError: it could not be stored.
        """
        self.conversation.system = text
        self._changed()

    def send(self, content: str, *, cancel: CancelFlag, on_event: TurnEventSink) -> TurnResult:
        """Answer a new user message and append the turn.

        Raises:
            DoesNotFitError, TemplateError, SettingError, NoFiniteLogitsError: why there is no reply.
        """
        return self._take_turn(Message("user", content), self.options, cancel, on_event)

    def retry(
        self,
        *,
        content: str | None = None,
        options: ChatOptions | None = None,
        cancel: CancelFlag,
        on_event: TurnEventSink,
    ) -> TurnResult:
        """Answer the last user message again, with `options` this once; the old reply goes once there is a new one.

        Raises:
            UsageError: there is no turn yet.
        """
        user = self._last_turn().user if content is None else Message("user", content)
        return self._take_turn(user, options or self.options, cancel, on_event, replaces_last=True)

    def continue_reply(self, *, cancel: CancelFlag, on_event: TurnEventSink) -> TurnResult:
        """Go on with a last reply that was cut short.

        Raises:
            UsageError: there is no turn yet, or its reply ended by itself.
        """
        begun = self._last_turn()
        if begun.reply.complete:
            raise UsageError("nothing to continue: the last reply ended by itself")
        return self._take_turn(begun.user, self.options, cancel, on_event, replaces_last=True, begun=begun)

    def complete(self, text: str, *, cancel: CancelFlag, on_event: TurnEventSink) -> TurnResult:
        """Continue raw text: no template, no conversation, and spellings of control tokens are those tokens.

        Raises:
            EmptyPromptError, DoesNotFitError, SettingError, NoFiniteLogitsError: why there is no reply.
        """
        return self._replier.complete(text, self.options, cancel=cancel, on_event=on_event)

    def answer_now(self) -> None:
        """Have the reply under way end its thinking and answer, from any thread; otherwise nothing happens."""
        self._replier.answer_now()

    def explain(self, n_tokens: int, *, n_alternatives: int, cancel: CancelFlag) -> tuple[TokenChoice, ...]:
        """Return the last tokens of the last reply, each with what else was likely; fewer where it is cancelled.

        Cache and conversation stay as they were.

        Raises:
            UsageError: there is no reply yet.
            DoesNotFitError, TemplateError, NoFiniteLogitsError: why the model cannot say.
        """
        self._last_turn()
        system, turns = self.conversation.system, self.conversation.turns
        return self._replier.explain(
            system, turns, self.options, n_tokens, n_alternatives=n_alternatives, cancel=cancel
        )

    def undo(self, n_turns: int = 1) -> tuple[Turn, ...]:
        """Take back the newest turns; those left out of the prompt come back where there is room again.

        Raises:
            UsageError: there are not so many.
            StoreError: the change could not be stored.
        """
        before = self.conversation.turns
        removed = self.conversation.undo(n_turns)
        self._changed(before)
        return removed

    def rewind(self, n_turns: int) -> tuple[Turn, ...]:
        """Keep only the oldest turns and return the others.

        Raises:
            UsageError: there are not so many.
            StoreError: the change could not be stored.
        """
        before = self.conversation.turns
        removed = self.conversation.rewind(n_turns)
        self._changed(before)
        return removed

    def forget(self, n_turns: int = 1) -> tuple[Turn, ...]:
        """Take out the oldest turns; for the prompt those it had left out already make no difference.

        Raises:
            UsageError: there are not so many.
            StoreError: the change could not be stored.
        """
        before = self.conversation.turns
        removed = self.conversation.forget(n_turns)
        self._changed(before)
        return removed

    def leave_out(self, n_turns: int) -> None:
        """Keep the oldest `n_turns` of those in the prompt out of it from now on; the conversation keeps them."""
        self._replier.first_turn = min(self._replier.first_turn + n_turns, len(self.conversation.turns))

    def clear(self) -> None:
        """Begin a new conversation under the same system prompt; a clock in the template moves on."""
        if self.journal is not None:
            self.journal.begin_anew()
        self.conversation.clear()
        self._model.template.new_session()
        self._replier.begin(self._model)

    def start_over(self) -> None:
        """Begin a new conversation with the system prompt and options the session began with."""
        self.conversation.system, self.options = self.first_system, self._first_options
        self.clear()

    def branch_off(self, name: str) -> None:
        """Begin a branch with the present turns, and go there.

        Raises:
            UsageError: there is one of that name.
            StoreError: the change could not be stored.
        """
        self.conversation.branch_off(name)
        self._replier.live.expect_return()
        self._changed(self.conversation.turns)

    def switch(self, name: str) -> None:
        """Go to another branch.

        Raises:
            UsageError: there is none of that name.
            StoreError: the change could not be stored.
        """
        before = self.conversation.turns
        self.conversation.switch(name)
        self._replier.live.expect_return()
        self._changed(before)

    def restore(self, conversation: Conversation) -> None:
        """Take over a conversation; turns whose ids say something else under this tokenizer get others."""
        again: dict[int, Turn] = {}  # branches share turns
        branches = {
            name: [again.setdefault(id(turn), self._said_again(turn)) for turn in turns]
            for name, turns in conversation.branches.items()
        }
        self.conversation = Conversation(
            system=conversation.system, branch=conversation.branch,
            branches=branches, systems=conversation.systems,
        )  # fmt: skip
        self._replier.begin(self._model)

    def read_ahead(self, draft: str, *, cancel: CancelFlag) -> int:
        """Compute what is certain of the next prompt, if its message begins with `draft`, while the model is idle.

        Returns how many positions were computed so since the last turn. The conversation stays as it is.

        Raises:
            DoesNotFitError, TemplateError: the next turn will say so.
        """
        conversation = self.conversation
        return self._replier.read_ahead(
            conversation.system, conversation.turns, draft, self.options, cancel=cancel
        )

    def save_state(
        self, path: Path, *, most_bytes: int | None = None, cancel: CancelFlag | None = None
    ) -> None:
        """Write what the model has computed to a file, for `take_up_state`.

        Raises:
            StateFileError: it could not be written, takes more than `most_bytes`, or was cancelled.
        """
        self._replier.save_state(path, most_bytes=most_bytes, cancel=cancel)

    def take_up_state(self, path: Path, *, cancel: CancelFlag | None = None) -> int:
        """Go on from what was computed when a file was written; return how many positions that is.

        Raises:
            StateFileError: it is damaged, of another model or template, or was cancelled; nothing has changed.
        """
        return self._replier.take_up_state(path, cancel=cancel)

    def count_text(self, text: str) -> int:
        """Return how many tokens a text takes, from any thread."""
        return len(self._model.tokenizer.encode(text))

    def _last_turn(self) -> Turn:
        if not self.conversation.turns:
            raise UsageError("there is no reply yet")
        return self.conversation.turns[-1]

    def _said_again(self, turn: Turn) -> Turn:
        tokenizer = self._model.tokenizer
        if is_saying(turn.generated, turn.generated_ids, tokenizer, n_known=tokenizer.n_tokens):
            return turn
        return replace(turn, generated_ids=ids_saying(turn.generated, (), tokenizer))

    def _changed(self, before: Sequence[Turn] | None = None) -> None:
        """Note a change; with the turns there were `before` it, no more of them return to the prompt than must."""
        turns = self.conversation.turns
        self._replier.first_turn = 0 if before is None else self._replier.first_turn_of(turns, before)
        if self.journal is not None:
            for apart in self.journal.keep(self.conversation, ended=None):
                warnings.warn(str(apart), ModelWarning, stacklevel=3)

    def _take_turn(
        self,
        user: Message,
        options: ChatOptions,  # of the whole turn: another thread may change the next one's meanwhile
        cancel: CancelFlag,
        on_event: TurnEventSink,
        *,
        replaces_last: bool = False,
        begun: Turn | None = None,
    ) -> TurnResult:
        """Have `user` answered, or `begun` continued, and keep the turn unless nothing came."""
        conversation = self.conversation
        turns = conversation.turns[: len(conversation.turns) - replaces_last]
        result = self._replier.reply(
            conversation.system, turns, user, options, begun=begun, cancel=cancel, on_event=on_event
        )
        if result.turn is None:
            return result
        (conversation.replace_last if replaces_last else conversation.append)(result.turn)
        if self.journal is not None:
            ended = EndedTurn(result.turn, result.raw, options)
            try:
                for apart in self.journal.keep(conversation, ended=ended):
                    on_event(apart)
            except Exception as error:  # whatever it was, the turn was taken
                on_event(NotKept(str(error) or type(error).__name__))
        return result
