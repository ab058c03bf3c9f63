"""Speculation without a second model: what stood behind the latest ids before is fed along with them, as a guess.

Owns what is guessed and when. Knows no sampler: whoever samples goes on as if nothing had been guessed, and an id that
comes as guessed needs no forward pass of its own.
"""

from collections import deque
from collections.abc import Iterable

from turbospark_chat.engine.producer import Logits, ScoresEach

# How many ids must stand alike for what followed them to be proposed; the longest that do are believed.
_NGRAM_LENGTHS = (4, 3, 2)
_LONGEST_PAUSE = 32  # tokens


class NgramIndex:
    """Ids, and what followed the last few of them where they stood before. An id costs the same behind any number.

    >>> NgramIndex([1, 2, 3, 9, 2, 3]).propose(3)
    [9, 2, 3]
    """

    def __init__(self, ids: Iterable[int] = ()) -> None:
        self._ids: list[int] = []
        self._followers: dict[tuple[int, ...], int] = {}  # where what followed an n-gram the last time begins
        for token_id in ids:
            self.append(token_id)

    def append(self, token_id: int) -> None:
        """Add an id at the end."""
        ids = self._ids
        for length in _NGRAM_LENGTHS:
            if length <= len(ids):  # these end where something follows only now: no n-gram finds itself
                self._followers[tuple(ids[-length:])] = len(ids)
        ids.append(int(token_id))  # of an image only the placeholder: a guess need not be more

    def propose(self, n_ids: int) -> list[int]:
        """Return the `n_ids` ids that followed the last time; none where the last ids stand for the first time.

        Where the end is reached it goes on with what it proposes: what repeats goes on repeating.
        """
        ids = self._ids
        for length in _NGRAM_LENGTHS:
            start = self._followers.get(tuple(ids[-length:])) if length <= len(ids) else None
            if start is not None:
                found = ids[start : start + n_ids]
                while len(found) < n_ids:
                    found.append(found[start - len(ids)])
                return found
        return []


class Lookahead:
    """Feeds a reply's ids, and with some of them others that may come next.

    Each id gets the logits that follow it and everything before it, as if fed alone, but for the last digits. Meanwhile
    the producer may hold ids behind those of the reply; `finish` takes them out. After guesses of which less than a
    third came true it does without for a token, then for two, four and so on, until one does.
    """

    def __init__(self, producer: ScoresEach, history: Iterable[int], *, most: int) -> None:
        """Begin behind `history`, which the producer holds, with guesses of at most `most` ids."""
        self._producer, self._most = producer, most
        self._index = NgramIndex(history)
        self._ahead: deque[tuple[int, Logits]] = deque()  # ids fed and not sampled yet; what follows each
        self._n_guessed = 0  # ids of the latest guess, until it is judged
        self._pause = self._n_to_wait = 0  # tokens
        self.n_proposed = 0
        self.n_accepted = 0

    def feed(self, token: int, position: int, *, most: int) -> Logits:
        """Return the logits behind `token`, which comes at `position`: in a forward pass, unless it was guessed.

        Args:
            most: how many ids behind it may be fed at most.
        """
        self._index.append(token)
        if self._ahead and self._ahead[0][0] == token:
            self.n_accepted += 1
            return self._ahead.popleft()[1]
        self._judge()
        guess = self._guess(min(most, self._most, self._producer.slack))
        if not guess:
            return self._producer.produce(token, position)
        logits = self._producer.produce_each([token, *guess], position)  # (T, V)
        self._ahead.extend(zip(guess, logits[1:], strict=True))
        self._n_guessed = len(guess)
        self.n_proposed += len(guess)
        own: Logits = logits[0]
        return own

    def finish(self, length: int) -> int:
        """Have the producer hold only the first `length` positions, and return how many it does hold."""
        self._ahead.clear()
        return self._producer.rewind_to(length)

    def _judge(self) -> None:
        """Decide, where the latest guess has come to its end, how long to wait for the next."""
        if not self._n_guessed:
            return
        n_true = self._n_guessed - len(self._ahead)
        self._pause = 0 if 3 * n_true >= self._n_guessed else min(max(2 * self._pause, 1), _LONGEST_PAUSE)
        self._n_to_wait = self._pause
        self._n_guessed = 0
        self._ahead.clear()

    def _guess(self, n_ids: int) -> list[int]:
        if self._n_to_wait:
            self._n_to_wait -= 1
            return []
        return self._index.propose(n_ids) if n_ids > 0 else []
