"""The status bar as a value: a snapshot in, the drawn text out."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from turbospark_chat.chat.receipt import Cause, Miss
from turbospark_chat.chat.turn_result import TurnResult
from turbospark_chat.engine.completion import RawDecodeResult, StopReason
from turbospark_chat.engine.pressure import MemoryPressure
from turbospark_chat.terminal.ansi import Painter
from turbospark_chat.terminal.status_bar import (
    Activity,
    StatusSnapshot,
    draw_status,
    rate_text,
    size_text,
)
from turbospark_chat.terminal.vitals import Vitals

RAW = RawDecodeResult(
    prompt_tokens=120, new_tokens=24, token_ids=(), prefill_seconds=0.25, decode_seconds=1.0,
    reason=StopReason.END_OF_TURN, kv_position=144, kv_backed_token_ids=(), reused_prefix_tokens=95,
    session_slot_evicted=False, peak_memory_pressure=MemoryPressure.NORMAL,
)  # fmt: skip
FIRST = StatusSnapshot("smollm2", 8192, 0, Vitals(MemoryPressure.NORMAL, 612_000_000))
LAST = TurnResult(None, RAW, 0, 0)
IDLE = replace(FIRST, context_used=144, last=LAST)
PREFILL = replace(IDLE, context_used=223, activity=Activity(223, 735, 95, prefill_seconds=0.5))
DECODE = replace(
    IDLE, context_used=750, activity=Activity(735, 735, 95, 2.5, n_tokens=16, decode_seconds=1.25)
)


def drawn(status, width, *, color=False):
    return Painter(color=color).render(draw_status(status, width), width=max(width, 1))


@pytest.mark.parametrize(
    ("status", "width", "expected"),
    [
        (FIRST, 200, "smollm2 · ctx 0/8192, 8192 left · mem normal 612 MB\n"
                     "Enter sends · Ctrl-J begins a new line · /help lists commands"),
        (FIRST, 40, "smollm2 · ctx 0/8192, 8192 left\nEnter sends · Ctrl-J begins a new line"),
        (IDLE, 80, "smollm2 · ctx 144/8192, 8048 left · mem normal 612 MB\n"
                   "reused 95/120 · prefill 100 tok/s · decode 24 tok/s · 24 out · end_of_turn"),
        (IDLE, 40, "smollm2 · ctx 144/8192, 8048 left\nreused 95/120 · prefill 100 tok/s"),
        (IDLE, 10, "smollm2\nreused 95…"),
        (replace(IDLE, draft_tokens=12, branch="b", vi_mode="normal"), 80,
         "smollm2 · ctx 144/8192, 8048 left · draft 12 · mem normal 612 MB · branch b\n"
         "reused 95/120 · prefill 100 tok/s · decode 24 tok/s · 24 out · end_of_turn"),
        (PREFILL, 80, "smollm2 · ctx 223/8192, 7969 left · mem normal 612 MB\n"
                      "prefill 223/735 256 tok/s, 2.0 s left · reused 95 · Ctrl-C stops"),
        (DECODE, 80, "smollm2 · ctx 750/8192, 7442 left · mem normal 612 MB\n"
                     "reused 95/735 · decode 12 tok/s · 16 out · Ctrl-C stops"),
        (DECODE, 10, "smollm2\nreused 95…"),
    ],
)  # fmt: skip
def test_the_bar_holds_what_fits_the_width(status, width, expected):
    assert drawn(status, width) == expected


@pytest.mark.parametrize(
    ("activity", "expected"),
    [
        (Activity(), "prefill"),
        (Activity(n_queued=2), "prefill · 2 queued"),
        (Activity(95, 735, 95, 0.5), "prefill 95/735 · reused 95 · Ctrl-C stops"),
        (Activity(735, 735, 0, 2.0, n_tokens=1), "reused 0/735 · decode – · 1 out · Ctrl-C stops"),
        (Activity(735, 735, 0, 2.0, 3, 1.0, 1), "reused 0/735 · decode 2.0 tok/s · 3 out · 1 queued · Ctrl-C stops"),
        (Activity(is_turn=False), "working · Ctrl-C stops"),
        (Activity(is_turn=False, n_queued=1), "working · 1 queued · Ctrl-C stops"),
    ],
    ids=["not begun", "queued", "all reused so far", "first token", "queued while decoding", "no turn", "queued then"],
)  # fmt: skip
def test_what_is_under_way_shows_no_rate_before_there_is_one(activity, expected):
    standing, turn = drawn(replace(FIRST, activity=activity), 200).split("\n")
    assert (standing, turn) == ("smollm2 · ctx 0/8192, 8192 left · mem normal 612 MB", expected)


def test_where_no_time_was_measured_a_dash_stands_for_the_rate():  # H14
    nothing = replace(RAW, new_tokens=0, prefill_seconds=0.0, decode_seconds=0.0, kv_position=120)
    last = replace(LAST, raw=nothing)
    assert " · prefill – · decode – · 0 out · " in drawn(replace(IDLE, last=last), 200)


def test_pressure_is_named_now_and_at_its_worst():
    raw = replace(RAW, reason=StopReason.MAX_TOKENS, peak_memory_pressure=MemoryPressure.CRITICAL)
    last = replace(LAST, raw=raw)
    status = replace(IDLE, last=last, vitals=Vitals(MemoryPressure.WARN, 12_340_000_000))
    standing, turn = drawn(status, 200).split("\n")
    assert standing.endswith(" · mem warn 12.3 GB")
    assert turn.endswith(" · max_tokens · peak critical")


@pytest.mark.parametrize(("used", "is_warned"), [(7372, False), (7373, True)])
def test_a_context_nine_tenths_full_is_marked(used, is_warned):
    fields = drawn(replace(FIRST, context_used=used), 200, color=True).split(" · ")
    assert ("\x1b[2;33mctx" in fields[1]) == is_warned


@pytest.mark.parametrize(("draft", "is_warned"), [(8048, False), (8049, True)])
def test_a_draft_that_does_not_fit_what_is_left_is_marked(draft, is_warned):
    fields = drawn(replace(IDLE, draft_tokens=draft), 200, color=True).split(" · ")
    assert ("\x1b[2;33mdraft" in fields[2]) == is_warned


@given(
    st.builds(
        StatusSnapshot,
        st.text("model 中文👨‍👩‍👧", max_size=20), st.integers(1, 10**6), st.integers(0, 10**6),
        st.builds(Vitals, st.sampled_from(MemoryPressure), st.integers(0, 10**12)),
        st.sampled_from([None, LAST]),
        st.sampled_from([None, Activity(), PREFILL.activity, replace(DECODE.activity, n_queued=123)]),
    ),
    st.integers(0, 200),
)  # fmt: skip
def test_always_two_rows_and_never_wider_than_the_screen(status, width):
    rows = drawn(status, width).split("\n")
    assert len(rows) == 2
    assert max(map(cell_len, rows)) <= max(width, 1)


@pytest.mark.parametrize(
    ("rate", "text"),
    [(None, "–"), (9.94, "9.9 tok/s"), (10.0, "10 tok/s"), (1234.5, "1234 tok/s")],
)
def test_rates_are_rounded_for_people(rate, text):
    assert rate_text(rate) == text


@pytest.mark.parametrize(("n_bytes", "text"), [(0, "0 MB"), (98_400_000, "98 MB"), (1_000_000_000, "1.0 GB")])
def test_sizes_are_rounded_for_people(n_bytes, text):
    assert size_text(n_bytes) == text


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "reused 95/120 · prefill"),
        ({"n_ahead": 60}, "reused 95/120 (60 ahead) · prefill"),
        (
            {"miss": Miss(Cause.TEMPLATE, 95, 95, "<think>", "Yes")},
            "reused 95/120 · template at 95 · prefill",
        ),
        (
            {"miss": Miss(Cause.SLOT_EVICTED, 95, 110, None, "x")},
            "reused 95/120 · slot evicted at 95 · prefill",
        ),
    ],
)
def test_the_last_turn_says_what_was_read_ahead_and_why_it_reused_no_more(change, expected):  # T49, T57
    assert drawn(replace(IDLE, last=replace(LAST, **change)), 200).split("\n")[1].startswith(expected)


def test_what_was_read_ahead_of_the_draft_is_shown_while_there_is_any():
    assert "draft 400 · ahead 384 · mem" in drawn(replace(IDLE, draft_tokens=400, n_ahead=384), 200)
    assert "ahead" not in drawn(IDLE, 200)
