"""What a token is given by the cache of the numpy pass, and where it stands; the rest is in `test_layer_cache`."""

import numpy as np
import pytest

from tests.cache_harness import HEAD_DIM, N_KV_HEADS, FedFloats, ScarceNumpy, contents
from turbospark_chat.models import layer_rows
from turbospark_chat.models.kv_cache import KvCache
from turbospark_chat.models.layers import Array


def test_a_token_is_given_the_rows_its_window_holds_and_no_others() -> None:
    fed = FedFloats([4, None, 1])
    fed.feed(10)
    new = np.ones(
        (2, N_KV_HEADS, HEAD_DIM), np.float32
    )  # at 10 and 11; the first sees back to 7, or itself alone
    for layer, first in enumerate([7, 0, 10]):
        seen = fed.cache.write(layer, new, -new, 10)
        for part, rows, own in zip(fed.parts, seen, (1, -1), strict=True):
            assert rows.shape == (N_KV_HEADS, 12 - first, HEAD_DIM)
            assert np.array_equal(rows[:, :-2], contents(part, layer, fed.ids, first))
            assert np.all(rows[:, -2:] == own)


def test_a_second_turn_with_room_for_it_allocates_and_copies_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # T60
    counted = ScarceNumpy()
    monkeypatch.setattr(layer_rows, "np", counted)
    cache = KvCache(windows=[None], n_kv_heads=N_KV_HEADS, head_dim=HEAD_DIM)

    def feed(n_tokens: int) -> tuple[Array, Array]:
        new = np.ones((n_tokens, N_KV_HEADS, HEAD_DIM), np.float32)
        seen = cache.write(0, new, new, len(cache))
        cache.commit(len(cache) + n_tokens)
        return seen

    before = feed(100)
    assert counted.n_allocated == 2
    cache.truncate(60)
    after = feed(150)
    assert counted.n_allocated == 2
    assert all(old.base is new.base for old, new in zip(before, after, strict=True))
