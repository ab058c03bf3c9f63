"""What is asked of a run, and the figures that follow from what came of it."""

from dataclasses import replace

import pytest

from turbospark_chat.engine.completion import CompletionConfig, RawDecodeResult, StopReason, rate
from turbospark_chat.engine.pressure import MemoryPressure
from turbospark_chat.errors import SettingError


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        pytest.param({"max_new_tokens": -1}, "max_tokens is -1: give a whole number, 0 or more", id="C11"),
        pytest.param({"max_new_tokens": -2}, "max_tokens is -2", id="C11-no-second-meaning"),
        pytest.param({"chunk_size": 0}, "chunk_size is 0: give a whole number above 0", id="chunk-0"),
        pytest.param({"chunk_size": -5}, "chunk_size is -5", id="chunk-negative"),
        pytest.param({"stop_strings": ("",)}, "stop is ''", id="C4"),
        pytest.param({"stop_strings": ("END", "")}, "stop is ''", id="C4-among-others"),
        pytest.param({"max_tokens_per_sec": 0}, "max_tokens_per_sec is 0: give 0.01 to 1000000", id="pace-0"),
        pytest.param({"speculation": -1}, "speculate is -1: give 0 to 15", id="speculation-negative"),
        pytest.param({"speculation": 16}, "speculate is 16: give 0 to 15", id="speculation-too-many"),
        pytest.param({"max_tokens_per_sec": 1e308}, "max_tokens_per_sec is 1e+308", id="pace-huge"),
        pytest.param({"max_tokens_per_sec": -1}, "max_tokens_per_sec is -1", id="pace-negative"),
        pytest.param({"max_tokens_per_sec": float("nan")}, "max_tokens_per_sec is nan", id="pace-nan"),
        pytest.param({"max_tokens_per_sec": float("inf")}, "max_tokens_per_sec is inf", id="pace-inf"),
    ],
)
def test_settings_no_run_can_use_are_refused_with_their_value(setting, message):
    with pytest.raises(SettingError) as caught:
        CompletionConfig(**setting)
    assert message in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "setting",
    [
        {"max_new_tokens": None},
        {"max_new_tokens": 0},
        {"chunk_size": 1},
        {"max_tokens_per_sec": 0.01},
        {"speculation": 0},
        {"speculation": 15},
        {"speculation": None},
    ],
    ids=str,
)
def test_the_ends_of_a_range_belong_to_it(setting):
    config = CompletionConfig(**setting)
    assert [getattr(config, name) for name in setting] == list(setting.values())


def test_only_a_limit_or_a_cancel_cuts_a_reply_short():
    cut_short = {reason for reason in StopReason if reason.is_cut_short}
    assert cut_short == {StopReason.MAX_TOKENS, StopReason.CANCELLED}


@pytest.mark.parametrize(
    ("count", "seconds", "expected"),
    [(10, 2.0, 5.0), (10, 0.0, None), (0, 2.0, None), (0, 0.0, None), (-3, 2.0, None)],
)
def test_no_rate_comes_from_nothing_done_or_no_time(count, seconds, expected):  # H14
    assert rate(count, seconds) == expected


RESULT = RawDecodeResult(
    prompt_tokens=10,
    new_tokens=5,
    token_ids=(1, 2, 3, 4, 5),
    prefill_seconds=2.0,
    decode_seconds=0.5,
    reason=StopReason.MAX_TOKENS,
    kv_position=14,
    kv_backed_token_ids=tuple(range(14)),
    reused_prefix_tokens=4,
    session_slot_evicted=False,
    peak_memory_pressure=MemoryPressure.NORMAL,
)


@pytest.mark.parametrize(
    ("changes", "prefilled", "prefill_rate", "decode_rate"),
    [
        pytest.param({}, 6, 3.0, 8.0, id="the-last-token-was-not-fed"),
        pytest.param({"kv_position": 15}, 6, 3.0, 10.0, id="every-token-was-fed"),
        pytest.param({"reused_prefix_tokens": 9}, 1, 0.5, 8.0, id="2-same-prompt-again"),
        pytest.param(
            {"kv_position": 7, "decode_seconds": 0.0},
            3,
            1.5,
            None,
            id="cancelled-in-prefill-counts-what-it-fed",
        ),
        pytest.param(
            {"kv_position": 4, "prefill_seconds": 0.0, "decode_seconds": 0.0}, 0, None, None, id="nothing-fed"
        ),
        pytest.param({"kv_position": 10, "new_tokens": 0}, 6, 3.0, None, id="H14-empty-reply"),
    ],
)
def test_rates_follow_from_what_the_cache_holds(changes, prefilled, prefill_rate, decode_rate):
    result = replace(RESULT, **changes)
    assert result.prefilled_tokens == prefilled
    assert result.prefill_rate == prefill_rate
    assert result.decode_rate == decode_rate


@pytest.mark.parametrize(
    ("chunk_size", "position", "expected"),
    [
        (64, 0, 64), (64, 1536, 64), (64, 1537, 48), (64, 2901, 48), (64, 4000, 32), (64, 8000, 16),
        (64, 10**6, 16), (5, 0, 5), (5, 8000, 5), (20, 4000, 16), (512, 0, 512),
    ],
)  # fmt: skip
def test_chunks_shrink_with_the_position(chunk_size: int, position: int, expected: int) -> None:
    assert CompletionConfig(chunk_size=chunk_size).chunk_at(position) == expected
