"""What the report of a conversation says: medians, ratios, its JSON and the tables for people."""

import json
from collections.abc import Sequence

from turbospark_chat.bench.chat_report import (
    ChatReport,
    Paste,
    Talk,
    TurnFigures,
    paste_line,
    time_table,
    token_table,
)


def turn(n_evaluated: int, seconds: float, *, n_new: int = 20, n_ahead: int = 0) -> TurnFigures:
    return TurnFigures(n_prompt=100, n_new=n_new, n_evaluated=n_evaluated, n_ahead=n_ahead, seconds=seconds)


def talk(name: str, *rounds: Sequence[TurnFigures], is_own: bool = False) -> Talk:
    return Talk(name, is_own, rounds)


OWN = talk("ours", [turn(20, 0.1), turn(20, 0.2)], [turn(20, 0.2), turn(20, 0.4)], is_own=True)
AHEAD = talk(
    "ahead",
    [turn(5, 0.05, n_ahead=15), turn(5, 0.1, n_ahead=15)],
    [turn(5, 0.1, n_ahead=15), turn(5, 0.2, n_ahead=15)],
    is_own=True,
)
PEER = talk("peer", [turn(20, 0.3), turn(22, 0.8)], [turn(20, 0.6), turn(22, 1.6)])
PASTE = Paste(400, 2000, without=[1.0, 2.0, 0.5], ahead=[0.1, 0.1, 0.1])


def report(*talks: Talk) -> ChatReport:
    return ChatReport("m.gguf", 2, [{"name": "ours"}], talks, PASTE)


def test_a_turn_has_the_medians_of_its_rounds() -> None:
    rounds = [[turn(20, seconds)] for seconds in (0.1, 0.9, 0.2)]
    assert talk("ours", *rounds).turns() == [turn(20, 0.2)]


def test_a_ratio_compares_each_turn_with_the_same_one_of_the_same_round() -> None:
    assert OWN.ratio_to(PEER) == 3.5  # of 3, 4, 3 and 4
    drifting = talk("peer", [turn(20, 0.3), turn(20, 0.6)], [turn(20, 0.6), turn(20, 1.2)])
    assert abs(OWN.ratio_to(drifting) - 3) < 1e-9  # a machine that slows down meets both


def test_the_token_table_has_what_was_evaluated_of_what_was_new() -> None:
    assert token_table(report(OWN, AHEAD, PEER)) == [
        ("tokens evaluated, of new ones", "ours", "ahead", "peer"),
        ("turn 1", "20/20", "5/20", "20/20"),
        ("turn 2", "20/20", "5/20", "22/20"),
        ("all turns", "40/40", "10/40", "42/40"),
    ]


def test_the_time_table_ends_with_how_much_longer_others_take() -> None:
    assert time_table(report(OWN, AHEAD, PEER)) == [
        ("time to first token", "ours", "ahead", "peer"),
        ("turn 1", "150.0 ms", "75.0 ms", "450.0 ms"),
        ("turn 2", "300.0 ms", "150.0 ms", "1200.0 ms"),
        ("median", "225.0 ms", "112.5 ms", "825.0 ms"),
        ("times as long as ours", "–", "–", "3.50"),
        ("times as long as ahead", "–", "–", "7.00"),
    ]


def test_alone_there_is_nothing_to_compare_with() -> None:
    assert [row[0] for row in time_table(report(OWN, AHEAD))] == [
        "time to first token", "turn 1", "turn 2", "median",
    ]  # fmt: skip


def test_the_pasted_message_is_compared_within_its_rounds() -> None:
    assert PASTE.ratio == 0.1  # of 0.1, 0.05 and 0.2
    assert paste_line(PASTE) == (
        "a message of 400 tokens, pasted and sent after 2 s: first token after 100.0 ms, 1000.0 ms if not read"
        " ahead, ratio 0.10"
    )


def test_the_json_has_every_round_and_the_medians() -> None:
    record = json.loads(report(OWN, AHEAD, PEER).to_json())
    own, _, peer = record["talks"]
    assert own["rounds"][1][1]["seconds"] == 0.4 and len(own["rounds"]) == 2
    assert [values["n_evaluated"] for values in peer["turns"]] == [20, 22]
    assert (own["ratios"], peer["ratios"]) == ({"peer": 3.5}, {})
    assert record["paste"]["ratio"] == 0.1 and record["paste"]["ahead"] == [0.1, 0.1, 0.1]
