"""A model that thinks, as a user meets it; and what is shown while a prompt is long, or too long.

The model's template opens a thought with every reply, so all of its babble is one until something ends it.
"""

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from terminal_driver import (
    CTRL_C,
    ENTER,
    GREEDY,
    LETTERS,
    UP,
    Picture,
    Terminal,
    environment,
    leave,
    objects,
    open_chat,
    paste,
    run_ts,
)
from tiny_model import CHATML, write_tiny_model

from turbospark_chat.chat.conversation import Turn
from turbospark_chat.chat.store import Store
from turbospark_chat.settings import Locations

SLOW = ("--max-tokens-per-sec", "25")  # so that a key is in time also on a busy machine
THINKING = CHATML.replace("assistant\n{% endif", "assistant\n<think>\n{% endif") + "{# </think> #}"
CTRL_G, CTRL_T, CTRL_U = "\x07", "\x14", "\x15"
FOLDED = re.compile(r"^\[thought for [\d.]+ s, (\d+) tokens; Ctrl-T shows it\]$", re.MULTILINE)
UNDER_WAY = re.compile(r"^thinking … (\d+) tokens, [\d.]+ s \(Ctrl-T shows it\)$", re.MULTILINE)
LIMIT = "[reached the limit of "


@pytest.fixture(scope="module")
def thinker_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    return write_tiny_model(folder / "thinker.gguf", context_length=4096, tokenizer__chat_template=THINKING)


@contextmanager
def chatting(path: Path, *flags: str) -> Iterator[Terminal]:
    """Give a chat of those letters, and leave it at the end."""
    with open_chat(path, *LETTERS, *flags) as chat:
        yield chat
        leave(chat)


def stored_turns() -> tuple[Turn, ...]:
    with closing(Store.open(Locations.of_user().conversations)) as store:
        return store.load("last").conversation.turns


def complete(path: Path, *flags: str) -> dict[str, Any]:
    """Return what the model says to `one` without a terminal."""
    done = run_ts("complete", "-m", path, "--json", *GREEDY, *LETTERS, *flags, "one")
    assert (done.returncode, done.stderr) == (0, b"")
    (turn,) = objects(done.stdout)
    return turn


def rows_below(seen: Picture, message: str) -> list[str]:
    """Return the rows of the turn that answers a message."""
    rows = seen.transcript.split("\n")
    return [row for row in rows[rows.index(f"> {message}") + 1 :] if row]


# Folded, opened, hidden


def test_a_thought_is_one_line_while_it_lasts_and_one_line_afterwards(thinker_path: Path) -> None:  # T74, T76
    flags = ("--max-tokens", "60", "--max-thinking-tokens", "40")
    told = complete(thinker_path, *flags)
    with chatting(thinker_path, *SLOW, *flags) as chat:
        seen = chat.begin("one", n_out=8)
        assert len(rows_below(seen, "one")) == 1
        assert UNDER_WAY.search(seen.text)
        seen = chat.wait_for(lambda seen: LIMIT in seen.text and seen.is_idle)
        folded, answer, _ = rows_below(seen, "one")
        thought = FOLDED.match(folded)
        assert thought and 40 <= int(thought[1]) <= 40 + len("\n</think>\n\n")
        assert answer == told["reply"]
        assert told["reasoning"] not in seen.text
        assert told["reasoning"] not in chat.written.decode()


def test_ctrl_t_opens_a_thought_while_it_lasts_and_afterwards(thinker_path: Path) -> None:
    flags = ("--max-tokens", "60", "--max-thinking-tokens", "40")
    told = complete(thinker_path, *flags)
    thought = told["reasoning"]
    with chatting(thinker_path, *SLOW, *flags) as chat:
        chat.begin("one", n_out=5)
        chat.type(CTRL_T)
        seen = chat.wait_for(
            lambda seen: rows_below(seen, "one")[-1] in thought and UNDER_WAY.search(seen.text) is None
        )
        assert not seen.is_idle
        seen = chat.wait_for(lambda seen: LIMIT in seen.text and seen.is_idle)
        assert rows_below(seen, "one")[:2] == [thought, told["reply"]]  # once, and nothing folded
        assert FOLDED.search(seen.text) is None
        chat.say("/set max_tokens_per_sec none")
        chat.say("/retry")
        seen = chat.wait_for(lambda seen: seen.text.count(LIMIT) == 2 and seen.is_idle)
        assert len(FOLDED.findall(seen.text)) == 1 and seen.text.count(thought) == 1
        chat.type(CTRL_T)
        seen = chat.wait_for(lambda seen: seen.text.count(thought) == 2)
        chat.type(CTRL_T)
        chat.say("/set seed none")  # a second time it has nothing to add
        assert chat.wait_for("seed  none").text.count(thought) == 2


@pytest.mark.parametrize("how", ["show", "fold", "hide"])
def test_think_says_how_thoughts_are_shown_from_then_on(thinker_path: Path, how: str) -> None:  # T76
    flags = ("--max-tokens", "40", "--max-thinking-tokens", "10")
    told = complete(thinker_path, *flags)
    started_with = {"show": "hide", "fold": "show", "hide": "fold"}[how]
    with chatting(thinker_path, *flags, "--think", started_with) as chat:
        chat.say(f"/think {how}")
        chat.wait_for(f"thinking: {how}")
        seen = chat.ask("one")
        above, expected = rows_below(seen, "one")[:-2], {"show": [told["reasoning"]], "hide": []}
        if how == "fold":
            assert len(above) == 1 and FOLDED.match(above[0])
        else:
            assert above == expected[how]
        assert rows_below(seen, "one")[-2] == told["reply"]
    (turn,) = stored_turns()  # what is kept is no question of how it is shown
    assert (turn.reply.reasoning, turn.reply.content) == (told["reasoning"], told["reply"])


# Answer now


def test_ctrl_g_has_the_model_answer_within_the_same_turn(thinker_path: Path) -> None:
    with chatting(thinker_path, *SLOW, "--max-tokens", "60", "--keep-reasoning") as chat:
        chat.begin("one", n_out=6)
        chat.type(CTRL_G)
        first = chat.wait_for(lambda seen: LIMIT in seen.text and seen.is_idle)
        folded, answer, _ = rows_below(first, "one")
        assert FOLDED.match(folded) and re.fullmatch("[a-h]+", answer)
        assert first.n_out == 60  # the tag's tokens too are the reply's
        (turn,) = stored_turns()
        thought = turn.reply.reasoning or ""
        assert re.fullmatch("[a-h]{6,47}", thought)
        assert (turn.reply.content, turn.generated) == (answer, f"{thought}\n</think>\n\n{answer}")
        chat.say("/set max_tokens 3")
        second = chat.ask("two")
        assert second.reused[0] >= first.reused[1] + 60 - 1  # all but the token never fed
    assert [turn.user.content for turn in stored_turns()] == ["one", "two"]


def test_ctrl_g_while_nothing_is_thought_changes_nothing(tiny_path: Path) -> None:
    with chatting(tiny_path, *SLOW, "--max-tokens", "30") as chat:
        chat.begin("one", n_out=5)
        chat.type(CTRL_G)
        seen = chat.wait_for(lambda seen: LIMIT in seen.text and seen.is_idle)
        assert rows_below(seen, "one")[0] == complete(tiny_path, "--max-tokens", "30")["reply"]
        chat.type(CTRL_G)
        chat.ask("two")


def test_a_thought_that_is_stopped_can_be_gone_on_with_and_harms_no_later_turn(thinker_path: Path) -> None:
    with chatting(thinker_path, *SLOW, "--max-tokens", "200") as chat:
        chat.begin("one", n_out=6)
        chat.type(CTRL_C)
        seen = chat.wait_for(lambda seen: "[stopped; " in seen.text and seen.is_idle)
        assert FOLDED.match(rows_below(seen, "one")[0])
        (stopped,) = stored_turns()
        assert (stopped.reply.content, stopped.reply.complete) == ("", False)
        chat.say("/continue")
        chat.wait_for(
            lambda seen: "> /continue" in seen.rows and not seen.is_idle and UNDER_WAY.search(seen.text)
        )
        chat.type(CTRL_G)
        chat.wait_for(lambda seen: re.fullmatch("[a-h]+", rows_below(seen, "/continue")[-1]))
        chat.type(CTRL_C)
        chat.wait_for(lambda seen: seen.text.count("[stopped; ") == 2 and seen.is_idle)
        (turn,) = stored_turns()
        assert (turn.reply.reasoning or "").startswith(stopped.reply.reasoning or "-")
        assert turn.reply.content
        chat.say("/set max_tokens 4")
        chat.ask("two")


# Streams, and tags of one's own


def test_a_pipe_gets_the_answers_and_the_terminal_the_thoughts(thinker_path: Path, tmp_path: Path) -> None:
    flags = ("--max-tokens", "40", "--max-thinking-tokens", "10")  # T25, T76
    told = complete(thinker_path, *flags)
    out = tmp_path / "out"
    with Terminal(
        "chat", "-m", thinker_path, *GREEDY, *LETTERS, *flags,
        shell='exec "$@" | cat >"$OUT"', env=environment(OUT=str(out)),
    ) as chat:  # fmt: skip
        chat.wait_for(lambda seen: seen.is_idle)
        seen = chat.ask("one")
        assert FOLDED.search(seen.text)
        leave(chat)
    assert out.read_text() == told["reply"] + "\n"


def test_tags_of_ones_own_fold_what_is_between_them(tiny_path: Path) -> None:  # T75
    whole = complete(tiny_path, "--max-tokens", "40")["reply"]
    begin, end = whole[:2], whole[20:23]  # what it says anyway
    tags = f"{begin} {end}"
    told = complete(tiny_path, "--max-tokens", "40", "--think-tags", tags)
    assert told["reasoning"] and told["reply"]
    with chatting(tiny_path, "--max-tokens", "40", "--think-tags", tags) as chat:
        folded, answer, _ = rows_below(chat.ask("one"), "one")
        assert FOLDED.match(folded) and answer == told["reply"]
        chat.say("/set think_tags none")
        chat.say("/retry")
        seen = chat.wait_for(lambda seen: seen.text.count(LIMIT) == 2 and seen.is_idle)
        assert whole in seen.text  # tags that are none are shown, not lost


# A prompt that is long, or too long

LONG = "x y " * 3900  # takes a second or more to read


@pytest.mark.parametrize("flags", [(), ("--no-toolbar",)], ids=["in the bar", "without a bar"])
def test_a_long_prompt_shows_how_far_it_is(tiny_path: Path, flags: tuple[str, ...]) -> None:  # T78
    progress = re.compile(r"prefill (\d+)/(\d{5}) \d+ tok/s, [\d.]+ s left")
    with Terminal("chat", "-m", tiny_path, *GREEDY, *LETTERS, "--max-tokens", "5", *flags) as chat:
        chat.wait_for("/help")
        chat.type(paste(LONG))
        chat.wait_for("[paste: 1 line, ")
        chat.type(ENTER)
        seen = chat.wait_for(lambda seen: progress.search(seen.text))
        done, total = map(int, progress.findall(seen.text)[-1])
        assert 0 < done < total
        chat.wait_for(lambda seen: LIMIT in seen.text and progress.search(seen.text) is None)
        leave(chat)


def test_an_overflow_asks_and_the_answer_is_no_input_to_remember(tiny_path: Path) -> None:  # T65, T66, G2
    flags = ("--ctx", "150", "--max-tokens", "10", "--on-overflow", "ask")
    with chatting(tiny_path, *flags) as chat:
        chat.ask("a message of some length")
        chat.ask("another message like that")
        question, message = "leave out the oldest exchange? y/n", "and one more of that kind"
        chat.say(message)
        asking = chat.wait_for(question)
        assert "prompt tokens and 10 for the reply exceed 150" in " ".join(asking.text.split("\n"))
        chat.say("perhaps")  # is no answer
        chat.wait_for(f"{question} perhaps")
        chat.type(CTRL_U + "n" + ENTER)
        chat.wait_for(lambda seen: question not in seen.text and seen.input == message)
        chat.type(ENTER)
        chat.wait_for(question)
        chat.say("y")
        chat.wait_for(lambda seen: seen.text.count(LIMIT) == 3 and seen.is_idle)
        for recalled in (message, "another message like that"):
            chat.type(UP)
            chat.wait_for(lambda seen, recalled=recalled: seen.input == recalled)
        chat.type(CTRL_C)
        chat.wait_for(lambda seen: seen.input == "")
    assert len(stored_turns()) == 3  # what is left out of the prompt stays in the conversation


def test_what_is_dropped_is_said_and_the_system_prompt_stays(tiny_path: Path) -> None:  # T63, G2
    flags = ("--ctx", "150", "--max-tokens", "10", "--system", "be brief")
    with chatting(tiny_path, *flags) as chat:
        chat.ask("a message of some length")
        seen = chat.ask("another message like that")
        assert "dropped" not in seen.text
        seen = chat.ask("and one more of that kind")
        found = re.findall(
            r"^1 exchange dropped from the prompt to fit the context \((\d+) tokens\)$", seen.text, re.M
        )
        assert len(found) == 1 and int(found[0]) > 30
        assert seen.reused[0] >= len("system\nbe brief")
        chat.say("/context")
        seen = chat.wait_for(lambda seen: re.search(r"system +\d+", seen.text))
        assert int(re.findall(r"system +(\d+)", seen.text)[-1]) == len("be brief")
        chat.say("z" * 160)  # too long even alone
        seen = chat.wait_for(lambda seen: "error: " in seen.text and seen.is_idle)
        assert "shorten the message" in " ".join(seen.text.split("\n"))
        assert seen.input.replace("\n", "").startswith("zzz")
        chat.type(CTRL_C)
        chat.wait_for(lambda seen: seen.input == "")
    assert len(stored_turns()) == 3
