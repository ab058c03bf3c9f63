"""The stored conversations as a chat in progress uses them: its own among them, and files written by `/export`.

The store is opened when it is first needed. Nothing here generates.
"""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from turbospark_chat.chat.attachment import without_attachments
from turbospark_chat.chat.chat_session import ChatSession
from turbospark_chat.chat.conversation import Conversation, Turn
from turbospark_chat.chat.journal import Journal
from turbospark_chat.chat.store import Store
from turbospark_chat.chat.stored_conversation import ConversationSummary, SearchHit, StoredConversation
from turbospark_chat.chat.text_match import in_one_line
from turbospark_chat.chat.transcript import Transcript
from turbospark_chat.chat.transcript_file import read_transcript
from turbospark_chat.chat.turn_result import EndedTurn, StoredApart
from turbospark_chat.chat.warm_states import WarmStates
from turbospark_chat.engine.raw_completion import CancelFlag
from turbospark_chat.errors import ModelWarning, StateFileError, StoreError, UsageError

MOST_LISTED = 200
MOST_HITS = 20


@dataclass(frozen=True, slots=True)
class Loaded:
    """A conversation to go on with, `stored` or from a file."""

    title: str
    conversation: Conversation
    stored: StoredConversation | None


class _EveryConversation:
    """Keeps each conversation of a session by a journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.has_grown = False  # by a turn, since the conversation was begun or gone on with

    def keep(self, conversation: Conversation, *, ended: EndedTurn | None) -> Sequence[StoredApart]:
        """Store the conversation as it is now."""
        self.has_grown |= ended is not None
        return self._journal.keep(conversation, ended=ended)

    def begin_anew(self) -> None:
        """Store what follows as another conversation."""
        self.has_grown = False
        self._journal.begin_anew()


class _ThisConversation:
    """Keeps one conversation by a journal, and none that the session begins after it."""

    def __init__(self, session: ChatSession, journal: Journal) -> None:
        self._session, self._journal = session, journal

    def keep(self, conversation: Conversation, *, ended: EndedTurn | None) -> Sequence[StoredApart]:
        """Store the conversation as it is now."""
        return self._journal.keep(conversation, ended=ended)

    def begin_anew(self) -> None:
        """Store nothing from now on."""
        self._journal.begin_anew()
        self._session.journal = None


class ConversationArchive:
    """What is stored. `open_store` may raise StoreError; so may everything that needs the store.

    Without `keep` only what `save` is asked for is stored: that conversation and its further turns, no other.

    With `states` what the model has computed for a conversation is stored too, where all are kept, and taken up where
    one is gone on with. That it cannot be is a ModelWarning: it is computed again then.
    """

    def __init__(self, open_store: Callable[[], Store], *, states: WarmStates | None = None) -> None:
        self._open_store, self._states = open_store, states
        self._model_name = self._arithmetic = ""
        self._store: Store | None = None
        self._journal: Journal | None = None
        self._every: _EveryConversation | None = None  # where all are kept

    @property
    def conversation_id(self) -> int | None:
        """The id under which the present conversation is stored, if it is."""
        return None if self._journal is None else self._journal.conversation_id

    def keep(self, session: ChatSession) -> None:
        """Store the session's conversation turn by turn from now on."""
        session.journal = self._every = _EveryConversation(self._own_journal())

    def name_model(self, model_name: str, arithmetic: str) -> None:
        """Note which model answers from now on, and what computes it."""
        self._model_name, self._arithmetic = model_name, arithmetic
        if self._journal is not None:
            self._journal.model_name, self._journal.arithmetic = model_name, arithmetic

    def list(self) -> Sequence[ConversationSummary]:
        """Return what is stored, the latest used first."""
        return self._opened().list(MOST_LISTED)

    def search(self, text: str) -> Sequence[SearchHit]:
        """Return where a text occurs, the latest first."""
        return self._opened().search(text, MOST_HITS)

    def read(self, reference: str) -> Loaded:
        """Return a stored conversation, by id, `ID@TURN`, name or `last`; or one from a `.md` or `.json` file.

        Raises:
            StoreError, TranscriptError, UsageError: there is none, or it cannot be read.
        """
        if Path(reference).suffix.lower() in (".md", ".json"):
            transcript = read_transcript(reference)
            turns = [Turn(turn.user, turn.reply, turn.reply.content, ()) for turn in transcript.turns]
            conversation = Conversation(system=transcript.system, turns=turns)
            return Loaded(transcript.title, conversation, None)
        stored = self._opened().load(reference)
        return Loaded(stored.name or stored.title, stored.conversation, stored)

    def open(self, session: ChatSession, loaded: Loaded, *, cancel: CancelFlag | None = None) -> None:
        """Have the session leave its conversation for what was read; turns that follow are stored with that.

        What was computed for that is taken up, if it is stored. What `leave` says of the thread holds here too;
        `cancel` ends the storing and the taking up.
        """
        self.leave(session, cancel=cancel)
        if session.journal is not None:
            session.journal.begin_anew()
            if self._every is not None and loaded.stored is not None:
                self._own_journal().continue_stored(loaded.stored)
        session.restore(loaded.conversation)
        path = self._state_path(loaded)
        if self._states is not None and path is not None and session.options.completion.reuse:
            try:
                self._states.read(path, partial(session.take_up_state, cancel=cancel))
            except StateFileError as error:
                _warn(f"the conversation is computed anew: {error}")

    def has_state(self, loaded: Loaded) -> bool:
        """Whether what was computed for a conversation may be there to be taken up."""
        path = self._state_path(loaded)
        return path is not None and os.path.exists(path)

    def leave(self, session: ChatSession, *, cancel: CancelFlag | None = None) -> None:
        """Store what was computed for the conversation, if it was kept and has grown.

        To be called before the session begins another one, and at the end of the chat. It may take seconds, and
        belongs on the model's thread while that runs; `cancel` ends it, and then nothing is stored.
        """
        model_states, number = session.model.states, self.conversation_id
        if self._states is None or model_states is None or not model_states.held_ids or number is None:
            return
        if self._every is None or not self._every.has_grown or not session.options.completion.reuse:
            return
        try:
            is_there = self._opened().has(number)
        except StoreError:
            return
        if not is_there:  # deleted by another program
            return
        try:
            path = self._states.of_conversation(number)
            if made_room := self._states.write(path, partial(session.save_state, cancel=cancel)):
                _warn(str(made_room))
        except StateFileError as error:
            _warn(f"what was computed for conversation {number} is not kept: {error}")

    def save(self, session: ChatSession, name: str | None) -> int:
        """Store the conversation, also where turns are not stored as they end; return its id.

        Raises:
            UsageError: there is nothing to store yet, or the name cannot be given; nothing is stored then.
        """
        journal = self._own_journal()
        if name is not None:
            self._opened().check_name(name, of=journal.conversation_id)
        _warn_of(journal.keep(session.conversation, ended=None))
        if journal.conversation_id is None:
            raise UsageError("there is nothing to save yet: say something first")
        if session.journal is None:
            session.journal = _ThisConversation(session, journal)
        if name is not None:
            self._opened().name(journal.conversation_id, name)
        return journal.conversation_id

    def transcript(self, session: ChatSession) -> Transcript:
        """Return the conversation for a reader elsewhere, with its turns' settings and timings where it is stored.

        Where the store fails it is what the session knows itself.
        """
        conversation = session.conversation
        try:
            stored = None if self.conversation_id is None else self._opened().load(str(self.conversation_id))
        except StoreError:
            stored = None
        if stored is None:
            first = conversation.turns[0].user.content if conversation.turns else ""
            title, created, details = in_one_line(without_attachments(first), limit=80), datetime.now(), []
        else:
            title, created = stored.name or stored.title, datetime.fromtimestamp(stored.created)
            details = _details(conversation, stored)
        return Transcript.of(
            conversation, title=title, model=self._model_name, created=created.astimezone(), details=details
        )

    def catch_up(self, conversation: Conversation) -> None:
        """Try once more to store what could not be stored of the conversation.

        Raises:
            StoreError: it still cannot be.
        """
        if self._journal is not None and self._journal.is_behind:
            _warn_of(self._journal.keep(conversation, ended=None))

    def close(self) -> None:
        """Close the store, if it was opened."""
        if self._store is not None:
            self._store.close()
            self._store = None

    def _state_path(self, loaded: Loaded) -> Path | None:
        if self._states is None or loaded.stored is None:
            return None
        return self._states.of_conversation(loaded.stored.id)

    def _opened(self) -> Store:
        if self._store is None:
            self._store = self._open_store()
        return self._store

    def _own_journal(self) -> Journal:
        if self._journal is None:
            self._journal = Journal(self._opened(), model_name=self._model_name, arithmetic=self._arithmetic)
        return self._journal


def _warn_of(apart: Sequence[StoredApart]) -> None:
    for one in apart:
        _warn(str(one))


def _warn(problem: str) -> None:
    warnings.warn(problem, ModelWarning, stacklevel=3)


def _details(conversation: Conversation, stored: StoredConversation) -> list[Mapping[str, object]]:
    """Return what is stored of each turn; nothing for one that is not stored as it is."""
    details: list[Mapping[str, object]] = []
    for turn, kept, known in zip(conversation.turns, stored.conversation.turns, stored.details, strict=False):
        is_stored = (turn.user, turn.reply) == (kept.user, kept.reply)
        details.append(known.known() if is_stored else {})
    return details
