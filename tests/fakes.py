"""Doubles shared by the tests: small, exact, and with no model file behind them."""

from collections.abc import Mapping


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
