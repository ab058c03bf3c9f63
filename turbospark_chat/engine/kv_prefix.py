"""The record of the token ids behind a KV cache: the only description of the cache that anyone consults."""

from collections.abc import Sequence


class MediaId(int):
    """A placeholder id whose cache entry depends on more than the id: an image behind it, named by a digest.

    Every position of every picture carries the same id, so equality compares the whole digest too. Without
    a digest nothing is known about the content, and the id equals nothing, itself included.
    """

    digest: bytes | None

    def __new__(cls, token_id: int, digest: bytes | None) -> "MediaId":
        """Name the content behind placeholder `token_id`."""
        self = super().__new__(cls, token_id)
        self.digest = digest
        return self

    def __eq__(self, other: object) -> bool:
        """Equal ids with equal, known content."""
        return (
            isinstance(other, MediaId)
            and int(self) == int(other)
            and self.digest is not None
            and self.digest == other.digest
        )

    def __ne__(self, other: object) -> bool:
        """The opposite of equal: `int` would compare the bare ids."""
        return not self == other

    def __hash__(self) -> int:
        """Hash by id and content."""
        return hash((int(self), self.digest))


def _is_undescribed(token: int) -> bool:
    return isinstance(token, MediaId) and token.digest is None


def common_length(left: Sequence[int], right: Sequence[int]) -> int:
    """Return how many leading ids two sequences share."""
    n_both = min(len(left), len(right))
    return next((position for position in range(n_both) if left[position] != right[position]), n_both)


class KvPrefix:
    """The ids the present state was built from, in order.

    Invariant: `ids[0:len]` are exactly the ids that the cache's positions `0..len-1` were computed from, or the
    record is tainted and claims nothing. A producer records after the cache has the positions and cuts before it
    overwrites any, so the invariant holds after an exception or a cancel as well.
    """

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._tainted = False

    def __len__(self) -> int:
        """How many positions are described."""
        return len(self._ids)

    @property
    def ids(self) -> tuple[int, ...]:
        """A snapshot of the recorded ids."""
        return tuple(self._ids)

    @property
    def is_tainted(self) -> bool:
        """Whether the state consumed something its ids do not describe."""
        return self._tainted

    def record(self, tokens: Sequence[int], pos0: int) -> None:
        """Note that the state now holds `tokens` at positions `pos0` and up.

        `pos0` at the end appends; before the end it is a rewind, so what follows it is cut first; past the end it
        is a gap: the state holds positions nobody can name, so every id is dropped and the record is tainted.
        A negative `pos0` names no position either.
        """
        if not 0 <= pos0 <= len(self._ids):
            self._ids.clear()
            self._tainted = True
            return
        del self._ids[pos0:]
        self._ids.extend(tokens)
        if any(_is_undescribed(token) for token in tokens):
            self._tainted = True

    def rewind_to(self, position: int) -> None:
        """Cut to `position`; nothing happens when the record is shorter."""
        del self._ids[max(position, 0) :]

    def clear(self) -> None:
        """Empty the record and lift the taint. Call it together with what clears the cache."""
        self._ids.clear()
        self._tainted = False

    def taint(self) -> None:
        """Claim nothing until `clear()`: the state no longer follows from the ids alone."""
        self._tainted = True

    def common_prefix(self, prompt_ids: Sequence[int]) -> int:
        """Return how many leading positions can serve `prompt_ids`: the longest common prefix.

        At most `len(prompt_ids) - 1`, because decoding starts from logits, which a cache does not keep, so one id
        must be left to feed. 0 when tainted, when either is empty, or when the prompt holds undescribed content.
        """
        if self._tainted or any(_is_undescribed(token) for token in prompt_ids):
            return 0
        return min(common_length(self._ids, prompt_ids), max(len(prompt_ids) - 1, 0))
