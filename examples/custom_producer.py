"""A model of your own behind the engine: anything with the few methods of LogitProducer.

This one counts: after the token for N it wants the token for N + 1, until 9. No model file is needed.
Run: python examples/custom_producer.py
"""

import threading
from collections.abc import Sequence

import numpy as np

from turbospark_chat.engine.completion import CompletionConfig, StopReason
from turbospark_chat.engine.kv_prefix import KvPrefix
from turbospark_chat.engine.producer import LogitProducer, Logits
from turbospark_chat.engine.progress import Progress, Token
from turbospark_chat.engine.raw_completion import run_raw_completion
from turbospark_chat.engine.sampling_config import SamplingConfig

END = 10


class Digits:
    """A tokenizer: id 7 is the text "7", id 10 ends a reply."""

    n_tokens = 11
    strips_leading_space = False

    def token_bytes(self, token_id: int) -> bytes:
        return str(token_id).encode() if token_id < END else b""


class Counter:
    """A LogitProducer whose whole state is the record of what it was fed."""

    vocab_size = 11
    session_slot_evicted = False

    def __init__(self) -> None:
        self._record = KvPrefix()

    def reset(self) -> None:
        self._record.clear()

    def try_reuse_prefix(self, prompt_ids: Sequence[int]) -> int:
        self._record.rewind_to(self._record.common_prefix(prompt_ids))
        return len(self._record)

    def produce_chunk(self, tokens: Sequence[int], position: int, *, need_logits: bool) -> Logits | None:
        self._record.record(tokens, position)
        logits = np.zeros(self.vocab_size, np.float32)  # (V,)
        logits[tokens[-1] + 1] = 1.0
        return logits if need_logits else None

    def produce_prefill(self, token: int, position: int) -> None:
        self.produce_chunk([token], position, need_logits=False)

    def produce(self, token: int, position: int) -> Logits:
        logits = self.produce_chunk([token], position, need_logits=True)
        assert logits is not None
        return logits


def show(event: Progress) -> None:
    if isinstance(event, Token):
        print(event.text, end=" ")


def main() -> None:
    producer: LogitProducer = Counter()
    config = CompletionConfig(sampling=SamplingConfig(temperature=0), stop_ids={END: StopReason.EOS})
    for prompt_ids in ([1, 2, 3], [1, 2, 3, 4, 5]):
        print(f"{prompt_ids} -> ", end="")
        result = run_raw_completion(
            producer, Digits(), prompt_ids, config, max_context=64, cancel=threading.Event(), on_progress=show
        )
        print(f"[{result.reason}, reused {result.reused_prefix_tokens}]")


if __name__ == "__main__":
    main()
