"""Keeps a chat's conversation in the store while it goes. Knows when to write, not how."""

import time
from collections.abc import Callable

from turbospark_chat.chat.conversation import Conversation
from turbospark_chat.chat.conversation_writer import ConversationWriter, Kept, UnkeptTurn
from turbospark_chat.chat.store import Store
from turbospark_chat.chat.stored_conversation import StoredConversation, TurnDetails
from turbospark_chat.chat.turn_result import EndedTurn, StoredApart


class Journal:
    """Stores each turn as it ends. `model_name` and `arithmetic` may be set when another model takes over.

    A turn is stored once, under the turn before it, and never changed; retrying, undoing or forgetting only moves the
    ends of a branch. A failed `keep` changes nothing, and the next one stores what is missing.
    """

    def __init__(
        self,
        store: Store,
        *,
        model_name: str,
        arithmetic: str = "",
        clock: Callable[[], float] = time.time,  # seconds since the epoch
    ) -> None:
        self.model_name = model_name
        self.arithmetic = arithmetic
        self._store = store
        self._clock = clock
        self._kept = Kept()
        self._unkept: list[UnkeptTurn] = []  # while keeping fails

    @property
    def conversation_id(self) -> int | None:
        """The id of the stored conversation, None before its first turn."""
        return self._kept.conversation_id

    @property
    def is_behind(self) -> bool:
        """Whether a turn has ended that could not be stored yet."""
        return bool(self._unkept)

    def begin_anew(self) -> None:
        """Store the turns that follow as a conversation of their own; what failed to be kept until now is left."""
        self._kept = Kept()
        self._unkept.clear()

    def continue_stored(self, stored: StoredConversation) -> None:
        """Go on with a conversation that was loaded, whose turns are stored already."""
        self._kept = Kept.of(stored)
        self._unkept.clear()

    def keep(self, conversation: Conversation, *, ended: EndedTurn | None) -> tuple[StoredApart, ...]:
        """Store what is not stored yet: turns, the ends of the branches, the system prompt and the branch in use.

        `ended` tells how the last turn came about, which has just been said. A conversation without a turn is not
        stored. One that another program has deleted meanwhile is stored again whole, under a new id; and where
        another program has moved a branch of it, this program's goes on under a name of its own, which is returned.

        Raises:
            StoreError: it could not be stored.
        """
        now = self._clock()
        if ended is not None:
            details = TurnDetails.of(
                ended, at=now, system=conversation.system, model=self.model_name, arithmetic=self.arithmetic
            )
            self._unkept.append(UnkeptTurn(conversation.turns, details))
        if self.conversation_id is None and not any(conversation.branches.values()):
            return ()
        kept = self._kept.copy()
        with self._store.database.writing() as connection:
            writer = ConversationWriter(connection, kept, self._unkept, now)
            apart = writer.write(conversation, self.model_name)
        self._kept = kept
        self._unkept.clear()
        return apart
