"""A tokenizer under which reasoning tags that are control tokens belong to a reply's text, as `<think>` does anyway."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from turbospark_chat.chat.chat_model import ChatTokenizer
from turbospark_chat.chat.reasoning import ReasoningTags


def show_tags(tokenizer: ChatTokenizer, tags: ReasoningTags | None) -> ChatTokenizer:
    """Return a tokenizer with which text shows where these tags were generated."""
    ids = [tokenizer.control_ids.get(tag) for tag in (tags.opening, tags.closing)] if tags else []
    if all(token_id is None or tokenizer.token_bytes(token_id) for token_id in ids):
        return tokenizer
    spellings = {token_id: spelling for spelling, token_id in tokenizer.control_ids.items()}
    return _VisibleTags(tokenizer, {i: spellings[i].encode() for i in ids if i is not None})


@dataclass(frozen=True, slots=True)
class _VisibleTags:
    """Another tokenizer, but for the bytes of some control tokens."""

    tokenizer: ChatTokenizer
    bytes_of_tags: Mapping[int, bytes]

    @property
    def n_tokens(self) -> int:
        return self.tokenizer.n_tokens

    @property
    def strips_leading_space(self) -> bool:
        return self.tokenizer.strips_leading_space

    @property
    def control_ids(self) -> Mapping[str, int]:
        return self.tokenizer.control_ids

    def token_bytes(self, token_id: int) -> bytes:
        return self.bytes_of_tags.get(token_id) or self.tokenizer.token_bytes(token_id)

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        return self.tokenizer.encode(text, parse_special=parse_special)

    def encode_continuation(self, text: str) -> list[int]:
        return self.tokenizer.encode_continuation(text)

    def with_bos(self, ids: Sequence[int]) -> list[int]:
        return self.tokenizer.with_bos(ids)

    def decode(self, ids: Sequence[int], *, show_control: bool = False) -> str:
        if show_control:
            return self.tokenizer.decode(ids, show_control=True)
        text = b"".join(map(self.token_bytes, ids))
        return text.removeprefix(b" " if self.strips_leading_space else b"").decode("utf-8", "replace")
