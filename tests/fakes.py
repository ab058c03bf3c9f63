"""Doubles shared by the tests: small, exact, and with no model file behind them."""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turbospark_chat.engine.kv_prefix import KvPrefix
from turbospark_chat.models.checkpoints import Checkpoints
from turbospark_chat.models.runner import Runner


class PieceTable:
    """A tokenizer over a table of id -> bytes. It encodes by the longest piece that fits."""

    def __init__(self, pieces: Mapping[int, bytes], *, strips_leading_space: bool = False) -> None:
        self._pieces = dict(pieces)
        self.strips_leading_space = strips_leading_space
        # Control tokens have no bytes, so no text becomes one.
        spelled = [(piece, token_id) for token_id, piece in pieces.items() if piece]
        self._longest_first = sorted(spelled, key=lambda entry: (-len(entry[0]), entry[1]))

    @classmethod
    def of_bytes(cls) -> "PieceTable":
        """Every byte value is the id of itself."""
        return cls({value: bytes([value]) for value in range(256)})

    @property
    def n_tokens(self) -> int:
        """Ids from here on are unknown."""
        return max(self._pieces, default=-1) + 1

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes of an id; empty where it is unknown."""
        return self._pieces.get(token_id, b"")

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`; ValueError where no piece fits."""
        rest = text.encode()
        ids = []
        while rest:
            for piece, token_id in self._longest_first:
                if rest.startswith(piece):
                    ids.append(token_id)
                    rest = rest[len(piece) :]
                    break
            else:
                raise ValueError(f"no piece fits {rest[:8]!r}")
        return ids


Boundary = Callable[[str], None]


class HashState:
    """The cache of HashModel: an entry (position, id) for each position. A window keeps it in a ring.

    A ring of W slots can go back only while the W - 1 entries before the new end are still there; after a write
    that was never committed they may be gone even where nothing else changed.
    """

    def __init__(self, window: int | None) -> None:
        self._window = window
        self._slots: dict[int, tuple[int, int]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def n_bytes(self) -> int:
        return len(self._slots)

    @property
    def entries(self) -> list[tuple[int, int]]:
        """The entries that the next token sees, oldest first."""
        first = 0 if self._window is None else max(0, self._length - self._window)
        return [self._slots[self._slot(position)] for position in range(first, self._length)]

    def write(self, position: int, token: int) -> None:
        self._slots[self._slot(position)] = (position, token)

    def commit(self, length: int) -> None:
        self._length = length

    @property
    def slack(self) -> int:
        return sys.maxsize if self._window is None else 1

    def reach(self, length: int) -> int:
        if length > self._length:
            return self._length
        first = 0 if self._window is None else max(0, length - self._window + 1)
        needed = range(first, length)
        is_whole = all(self._slots.get(self._slot(at), (-1, 0))[0] == at for at in needed)
        return length if is_whole else 0

    def truncate(self, length: int) -> int:
        self._length = self.reach(length)
        return self._length

    def mark(self) -> None:
        pass

    def fork(self, length: int) -> "HashState":
        other = HashState(self._window)
        other._slots, other._length = dict(self._slots), self.reach(length)
        return other

    def export(self) -> Mapping[str, NDArray[Any]]:
        kept = [entry for entry in self._slots.values() if entry[0] < self._length]
        return {"entries": np.array(sorted(kept), np.int64).reshape(-1, 2)}

    def restore(self, length: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        self._slots = {self._slot(at): (at, token) for at, token in arrays["entries"].tolist()}
        self._length = length

    def as_floats(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        yield "entries", np.array(self.entries, np.float32)

    def _slot(self, position: int) -> int:
        return position if self._window is None else position % self._window


class HashModel:
    """The cases' HashLM: the next id is a hash of every (position, id), so a lost, doubled or misplaced entry shows.

    `says` are the ids it may choose, all if not given. `evaluated` counts the tokens fed. `on_boundary` is called
    with the name of each point of a forward pass, and may raise.
    """

    def __init__(
        self, *, window: int | None = None, vocab_size: int = 97, says: Sequence[int] | None = None
    ) -> None:
        self._window = window
        self.vocab_size = vocab_size
        self.n_guesses = 0
        self._says = range(vocab_size) if says is None else says
        self.evaluated = 0
        self.on_boundary: Boundary = lambda name: None

    def make_state(self) -> HashState:
        return HashState(self._window)

    def forward(
        self, tokens: Sequence[int], state: HashState, *, need_logits: bool
    ) -> NDArray[np.float32] | None:
        self.on_boundary("before a chunk")
        start = len(state)
        for position, token in enumerate(tokens, start=start):
            state.write(position, token)
            self.evaluated += 1
        self.on_boundary("after its write")
        state.commit(start + len(tokens))
        self.on_boundary("after its commit")
        return self.logits(state) if need_logits else None

    def forward_each(self, tokens: Sequence[int], state: HashState) -> NDArray[np.float32]:
        self.on_boundary("before a chunk")
        rows = []
        for token in tokens:
            state.write(len(state), token)
            state.commit(len(state) + 1)
            rows.append(self.logits(state))
            self.evaluated += 1
            self.on_boundary("after its write")
        self.on_boundary("after its commit")
        return np.array(rows)

    def logits(self, state: HashState) -> NDArray[np.float32]:
        logits = np.zeros(self.vocab_size, np.float32)
        seen = sum((p + 1) * (token + 7) for p, token in state.entries)
        logits[self._says[seen % len(self._says)]] = 1.0
        return logits


class RecurrentState:
    """The cases' RecLM state: a number that summarises everything before it, and so goes back to checkpoints only.

    With `every` it takes one by itself each so many tokens; `marks` False takes none when it is told to.
    """

    slack = 0

    def __init__(self, *, every: int | None = None, marks: bool = False) -> None:
        self.value = 1
        self._length = 0
        self._every, self._marks = every, marks
        self.checkpoints: Checkpoints[int] = Checkpoints()

    def __len__(self) -> int:
        return self._length

    @property
    def n_bytes(self) -> int:
        return 8 * (1 + len(self.checkpoints))

    def feed(self, token: int) -> None:
        self.value = (31 * self.value + token + 1) % 10007
        self._length += 1
        if self._every and self._length % self._every == 0:
            self.checkpoints.add(self._length, self.value)

    def reach(self, length: int) -> int:
        if length >= self._length:
            return self._length
        newest = self.checkpoints.newest(length)
        return 0 if newest is None else newest[0]

    def truncate(self, length: int) -> int:
        if length < self._length:
            self._length, self.value = self.checkpoints.newest(length) or (0, 1)
            self.checkpoints.cut(self._length)
        return self._length

    def mark(self) -> None:
        if self._marks and self._length:
            self.checkpoints.add(self._length, self.value)

    def fork(self, length: int) -> "RecurrentState":
        other = RecurrentState(every=self._every, marks=self._marks)
        other.value, other._length = self.value, self._length
        other.checkpoints = self.checkpoints.until(self._length)
        other.truncate(length)
        return other

    def export(self) -> Mapping[str, NDArray[Any]]:
        return {"value": np.array([self.value], np.int64)}

    def restore(self, length: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.value, self._length = int(arrays["value"][0]), length
        self.checkpoints = Checkpoints()

    def as_floats(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        yield "value", np.array([self.value], np.float32)


class RecurrentModel:
    """The cases' RecLM. `evaluated` and `on_boundary` are as HashModel's, `every` and `marks` as its state's."""

    def __init__(self, *, every: int | None = None, marks: bool = False, vocab_size: int = 97) -> None:
        self._every, self._marks = every, marks
        self.vocab_size = vocab_size
        self.evaluated = 0
        self.on_boundary: Boundary = lambda name: None

    def make_state(self) -> RecurrentState:
        return RecurrentState(every=self._every, marks=self._marks)

    def forward(
        self, tokens: Sequence[int], state: RecurrentState, *, need_logits: bool
    ) -> NDArray[np.float32] | None:
        self.on_boundary("before a chunk")
        for token in tokens:
            state.feed(token)
            self.evaluated += 1
        self.on_boundary("after its commit")
        if not need_logits:
            return None
        logits = np.zeros(self.vocab_size, np.float32)
        logits[state.value % self.vocab_size] = 1.0
        return logits


def hash_runner(
    *, window: int | None = None, vocab_size: int = 97
) -> tuple[Runner[KvPrefix, HashState], HashModel]:
    """Return the real runner over a HashModel, and the model."""
    model = HashModel(window=window, vocab_size=vocab_size)
    return Runner(model, KvPrefix), model


class ChatBytes(PieceTable):
    """A chat tokenizer over the 256 bytes, with control tokens from id 256 on, and after them longer pieces.

    `visible` control tokens are part of a reply's text, as `<think>` is.
    """

    def __init__(
        self,
        controls: Sequence[str] = ("<|im_start|>", "<|im_end|>"),
        *,
        bos: str | None = None,
        visible: Sequence[str] = (),
        pieces: Sequence[str] = (),
    ) -> None:
        self.control_ids = {spelling: 256 + index for index, spelling in enumerate(controls)}
        self.piece_ids = {piece: 256 + len(controls) + index for index, piece in enumerate(pieces)}
        super().__init__(
            {value: bytes([value]) for value in range(256)}
            | dict.fromkeys(self.control_ids.values(), b"")
            | {token_id: piece.encode() for piece, token_id in self.piece_ids.items()}
        )
        self._bos = [self.control_ids[bos]] if bos else []
        self._visible = {self.control_ids[spelling]: spelling.encode() for spelling in visible}
        self._spellings = {token_id: spelling.encode() for spelling, token_id in self.control_ids.items()}
        pattern = "|".join(map(re.escape, sorted(self.control_ids, key=len, reverse=True)))
        self._controls = re.compile(f"({pattern or '(?!)'})")

    def token_bytes(self, token_id: int) -> bytes:
        return self._visible.get(token_id) or super().token_bytes(token_id)

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        if parse_special:
            parts = self._controls.split(text)
            return [
                i
                for part in parts
                for i in ([self.control_ids[part]] if part in self.control_ids else self.encode(part))
            ]
        return super().encode(text) if self.piece_ids else list(text.encode())

    def encode_continuation(self, text: str) -> list[int]:
        return self.encode(text)

    def with_bos(self, ids: Sequence[int]) -> list[int]:
        return list(ids) if list(ids[: len(self._bos)]) == self._bos else [*self._bos, *ids]

    def decode(self, ids: Sequence[int], *, show_control: bool = False) -> str:
        spellings = self._spellings if show_control else {}
        data = b"".join(spellings.get(token_id) or self.token_bytes(token_id) for token_id in ids)
        return data.decode("utf-8", "replace")
