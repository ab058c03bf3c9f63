"""The real runner, fed as the engine feeds it and checked at every step: for tests of the runner itself."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turbospark_chat.engine.kv_prefix import KvPrefix
from turbospark_chat.engine.session_pool import SessionPool
from turbospark_chat.models.runner import Runner

AnyRunner = Runner[KvPrefix, Any]
MakeModel = Callable[[], Any]


def run(model: Any, *, slots: int | None = None) -> AnyRunner:
    return Runner(model, KvPrefix, pool=None if slots is None else SessionPool(slots))


def feed(runner: AnyRunner, ids: Sequence[int], position: int = 0) -> NDArray[np.float32]:
    logits = runner.produce_chunk(ids, position, need_logits=True)
    assert logits is not None
    return logits


def continued(runner: AnyRunner, prompt_ids: Sequence[int]) -> NDArray[np.float32]:
    """Bring a prompt in as the engine does, from what the runner holds of it."""
    kept = runner.try_reuse_prefix(prompt_ids)
    check_agreement(runner, kept)
    logits = feed(runner, prompt_ids[kept:], kept)
    check_agreement(runner, len(prompt_ids))
    assert runner.record.ids == tuple(prompt_ids)
    return logits


def reply(runner: AnyRunner, prompt_ids: Sequence[int], n_new: int = 3) -> list[int]:
    """Serve a prompt greedily; every id of the reply is fed."""
    logits = continued(runner, prompt_ids)
    ids: list[int] = []
    for position in range(len(prompt_ids), len(prompt_ids) + n_new):
        ids.append(int(np.argmax(logits)))
        logits = runner.produce(ids[-1], position)
        check_agreement(runner, position + 1)
    return ids


def check_agreement(runner: AnyRunner, length: int) -> None:
    assert (len(runner.record), len(runner.state)) == (length, length)
