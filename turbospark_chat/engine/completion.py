"""The values of a run: what is asked for and what came of it. Knows nothing of how it runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from turbospark_chat.engine.pacing import PowerProfile
from turbospark_chat.engine.pressure import MemoryPressure
from turbospark_chat.engine.reuse_miss import ReuseMiss
from turbospark_chat.engine.sampling_config import SamplingConfig
from turbospark_chat.errors import SettingError

_LEAST_RATE = 0.01  # tok/s, one in 100 seconds: no thread can wait out the interval of any rate above 0
_MOST_RATE = 1e6  # tokens a second; no model comes near it, and its deadlines stay exact
_MOST_SPECULATION = 15  # behind a token: together they fill the sixteen lanes of a kernel's vectors


class StopReason(StrEnum):
    """Why a reply ended."""

    END_OF_TURN = "end_of_turn"
    TOOL_CALLS = "tool_calls"
    EOS = "eos"
    STOP_STRING = "stop_string"
    MAX_TOKENS = "max_tokens"
    CANCELLED = "cancelled"

    @property
    def is_cut_short(self) -> bool:
        """Whether the model had more to say."""
        return self in (StopReason.MAX_TOKENS, StopReason.CANCELLED)


class PrefillMode(StrEnum):
    """How a prompt is fed: one token a call, or in chunks."""

    TOKENS = "tokens"
    CHUNKS = "chunks"


_WHOLE_CHUNKS = 1536  # positions up to which a chunk has its full size
_HALVED_AFTER = 4096  # further positions at which attention has doubled what a chunk takes
_CHUNK_STEP = 16  # chunks are cut to multiples of it, which suits vectors


@dataclass(frozen=True, slots=True)
class CompletionConfig:
    """How to run a prompt. `max_new_tokens` None means as many as the context holds."""

    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    max_new_tokens: int | None = None
    stop_ids: Mapping[int, StopReason] = field(default_factory=lambda: MappingProxyType({}))
    stop_strings: tuple[str, ...] = ()
    prefill_mode: PrefillMode = PrefillMode.CHUNKS
    chunk_size: int = 64  # tokens between two looks at the cancel flag, fewer far into the context
    reuse: bool = True
    power_profile: PowerProfile = PowerProfile.PERFORMANCE
    max_tokens_per_sec: float | None = None
    speculation: int | None = None  # ids guessed and fed behind a sampled one, at most; None: as many as pay

    def __post_init__(self) -> None:
        """Check the numbers and texts.

        Raises:
            SettingError: a value no run can use; the message names the setting, the value and what it takes.
        """
        if self.max_new_tokens is not None and self.max_new_tokens < 0:
            raise SettingError(
                f"max_tokens is {self.max_new_tokens}: give a whole number, 0 or more, or none"
            )
        if self.chunk_size < 1:
            raise SettingError(f"chunk_size is {self.chunk_size}: give a whole number above 0")
        if "" in self.stop_strings:
            raise SettingError("stop is '': an empty text would end every reply at once; give another")
        if self.max_tokens_per_sec is not None and not _LEAST_RATE <= self.max_tokens_per_sec <= _MOST_RATE:
            raise SettingError(
                f"max_tokens_per_sec is {self.max_tokens_per_sec}: give {_LEAST_RATE} to {_MOST_RATE:.0f}, or none"
            )
        if self.speculation is not None and not 0 <= self.speculation <= _MOST_SPECULATION:
            raise SettingError(f"speculate is {self.speculation}: give 0 to {_MOST_SPECULATION}")

    def chunk_at(self, position: int) -> int:
        """Return how many tokens to feed at once from `position` on.

        Each attends to all before it, so that a chunk takes three times as long at 8,000 positions as at the start,
        and with it a cancel. It follows from the position, not from a clock, so that the same prompt computed from
        the same position is always cut alike: the cut shows in the last digits of the logits.
        """
        if position <= _WHOLE_CHUNKS:
            return self.chunk_size
        shorter = self.chunk_size * _HALVED_AFTER // (_HALVED_AFTER + position - _WHOLE_CHUNKS)
        return min(self.chunk_size, max(shorter // _CHUNK_STEP, 1) * _CHUNK_STEP)


@dataclass(frozen=True, slots=True)
class RawDecodeResult:
    """What a run did. `len(kv_backed_token_ids) == kv_position`, which is what the cache holds.

    `token_ids` are the reply's, without a stop token; the last one is not in the cache when the run ended on its
    budget, a stop string or a cancel. Seconds are wall-clock.
    """

    prompt_tokens: int
    new_tokens: int
    token_ids: tuple[int, ...]
    prefill_seconds: float
    decode_seconds: float
    reason: StopReason
    kv_position: int
    kv_backed_token_ids: tuple[int, ...]
    reused_prefix_tokens: int
    session_slot_evicted: bool
    peak_memory_pressure: MemoryPressure
    miss: ReuseMiss | None = None  # what kept the cache from serving more, if anything did
    proposed_tokens: int = 0  # guessed and fed in advance
    accepted_tokens: int = 0  # those of them that came

    @property
    def prefilled_tokens(self) -> int:
        """Prompt tokens computed in this run; fewer than the prompt's when it was cancelled."""
        return min(self.kv_position, self.prompt_tokens) - self.reused_prefix_tokens

    @property
    def prefill_rate(self) -> float | None:
        """Prompt tokens computed per second; None where no time was measured."""
        return rate(self.prefilled_tokens, self.prefill_seconds)

    @property
    def decode_rate(self) -> float | None:
        """Decode steps per second. The first token needs no step of its own: its logits come with the prompt."""
        return rate(self.kv_position - self.prompt_tokens, self.decode_seconds)


def rate(count: int, seconds: float) -> float | None:
    """Return `count` per second; None where nothing was done or no time was measured."""
    return count / seconds if count > 0 and seconds > 0 else None
