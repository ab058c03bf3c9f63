"""Turn token ids into text as they arrive. The only place where ids become text, streamed or not.

Knows bytes and UTF-8; which bytes an id stands for is the piece source's knowledge.
"""

import codecs
from typing import Protocol

from turbospark_chat.errors import TokenIdError


class PieceSource(Protocol):
    """What a tokenizer tells about its vocabulary."""

    @property
    def strips_leading_space(self) -> bool:
        """Whether its encoder puts a space before text, as SentencePiece does, so that decoding drops it."""

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes `token_id` stands for; empty for control tokens and ids it does not know."""


class Detokenizer:
    """The text of one reply, token by token; make a new one for each reply.

    Text once returned never changes, and the total is the bytes of all ids decoded at once with
    `errors="replace"`: one U+FFFD for each maximal part that cannot be UTF-8, emitted as soon as that is
    certain. Only the bytes of a character that may still be completed are held, at most three. Where the
    source strips leading spaces, the first character of the reply is dropped if it is a space, once.
    """

    def __init__(self, pieces: PieceSource, *, vocab_size: int) -> None:
        """Decode ids below `vocab_size`, the length of the logits, which may exceed what `pieces` knows."""
        self._pieces = pieces
        self._vocab_size = vocab_size
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._may_strip = pieces.strips_leading_space

    @property
    def has_partial_character(self) -> bool:
        """Whether bytes of an unfinished character are held."""
        return self._decoder.getstate()[0] != b""

    def push(self, token_id: int) -> str:
        """Add one token and return the characters it completes.

        Raises:
            TokenIdError: the id is negative or not below the vocabulary size; the state is unchanged.
        """
        if not 0 <= token_id < self._vocab_size:
            raise TokenIdError(token_id, self._vocab_size)
        text = self._decoder.decode(self._pieces.token_bytes(token_id))
        if text and self._may_strip:
            self._may_strip = False
            text = text.removeprefix(" ")
        return text

    def finish(self) -> str:
        """Return one U+FFFD for an unfinished character, else ""."""
        return self._decoder.decode(b"", final=True)
