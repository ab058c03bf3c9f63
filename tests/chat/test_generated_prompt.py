"""Templates that rewrite history end the shared prefix early; `keep_reasoning` gives replies back as they were.

Each turn is also held to what `sessions.Chat` checks: it kept the longest common prefix, and a cold run of the same
ids gives the same reply.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
from chat_templates import CHATML, FAMILIES, GEMMA, LLAMA3, QWEN3, Family
from sessions import CancelAtToken, Chat, hash_chat, scripted_chat

from turbospark_chat.chat.conversation import Turn
from turbospark_chat.engine.completion import StopReason


def empty_thought(*controls: str) -> Family:
    """Opens each reply with an empty thought, which it leaves out of the history."""
    source = (
        "{% for m in messages %}{{ 'U:' if m.role == 'user' else 'A:' }}{{ m.content }}{{ '</e>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'A:<t></t>' }}{% endif %}"
    )
    return Family(source, ("</e>", *controls), None, "</e>", frozenset({"</e>"}))


EMPTY_THOUGHTS = [
    pytest.param(empty_thought("<t>", "</t>"), id="control tokens"),
    pytest.param(empty_thought(), id="plain text"),
]


@pytest.mark.parametrize("family", EMPTY_THOUGHTS)
def test_a_thought_the_history_omits_ends_the_shared_prefix_there_and_leaves_the_cache(
    family: Family,
) -> None:
    chat = hash_chat(family)  # 7
    first = chat.say("one")
    second = chat.say("two")
    reused = second.raw.reused_prefix_tokens
    assert chat.tokenizer.decode(chat.record[:reused], show_control=True) == "U:one</e>A:"
    assert (reused, second.raw.prefilled_tokens) == (
        first.raw.prompt_tokens - len(chat.tokenizer.encode("<t></t>", parse_special=True)),
        second.raw.prompt_tokens - reused,
    )
    held = chat.tokenizer.decode(chat.record, show_control=True)
    assert held.startswith(f"U:one</e>A:{chat.turns[0][1]}</e>U:two</e>A:<t></t>")


@pytest.mark.parametrize("family", EMPTY_THOUGHTS)
@pytest.mark.parametrize("ends_by_itself", [False, True], ids=["at its limit", "by itself"])
def test_kept_as_generated_the_whole_turn_is_reused(family: Family, ends_by_itself: bool) -> None:  # 7
    chat = scripted_chat(family, "hm", "ok") if ends_by_itself else hash_chat(family)
    chat.session.set_option("keep_reasoning", "on")
    first, second = chat.say("one").raw, chat.say("two").raw
    assert first.reason is (StopReason.END_OF_TURN if ends_by_itself else StopReason.MAX_TOKENS)
    n_fed = first.new_tokens - (not ends_by_itself)  # the last of a reply at its limit was never fed
    assert second.reused_prefix_tokens == first.prompt_tokens + n_fed
    text = chat.tokenizer.decode(chat.record, show_control=True)
    assert text.startswith(f"U:one</e>A:<t></t>{chat.turns[0][1]}</e>U:two</e>A:<t></t>")


THOUGHTFUL = "why not</think>\n\nBecause "
# What each template leaves out of the history: the thought, the thought, the space around a reply.
REWRITING = [
    pytest.param(empty_thought("<t>", "</t>"), "hm ", id="empty thought"),
    pytest.param(QWEN3, THOUGHTFUL, id="qwen3"),
    pytest.param(LLAMA3, " spaced \n", id="llama3"),
    pytest.param(GEMMA, "\n spaced ", id="gemma"),
    pytest.param(CHATML, "plain", id="chatml"),
]


def as_generated(chat: Chat) -> bool:
    """Whether the latest prompt holds every reply before it as it was generated."""
    held = chat.tokenizer.decode(chat.record, show_control=True)
    generated = [turn.generated for turn in chat.session.conversation.turns[:-1]]
    ends = [held.find(text) + len(text) for text in generated]
    return all(text in held for text in generated) and ends == sorted(ends)


@pytest.mark.parametrize(("family", "reply"), REWRITING)
def test_over_several_turns_nothing_is_computed_twice(family: Family, reply: str) -> None:  # 7, T50
    chat = scripted_chat(family, *(f"{reply}{n}" for n in range(6)), keep_reasoning="on", system="Be brief.")
    n_held = 0
    for number in range(6):
        raw = chat.say(f"message {number}").raw
        assert raw.reused_prefix_tokens == n_held
        n_held = raw.prompt_tokens + raw.new_tokens
        assert as_generated(chat)
    assert chat.turns[5][1].endswith("5")


@pytest.mark.parametrize(("family", "reply"), REWRITING)
def test_after_undo_and_retry_replies_are_still_as_generated(family: Family, reply: str) -> None:  # 7
    chat = scripted_chat(family, *(f"{reply}{n}" for n in range(7)), keep_reasoning="on")
    first, second = chat.say("one").raw, chat.say("two").raw
    chat.say("three")
    chat.session.undo()
    assert chat.session.costs.count_tokens() >= second.prompt_tokens + second.new_tokens
    assert chat.say("four").raw.reused_prefix_tokens >= second.prompt_tokens + second.new_tokens
    assert as_generated(chat)
    retried = chat.retry().raw
    assert retried.reused_prefix_tokens == retried.prompt_tokens - 1
    assert as_generated(chat)
    chat.session.undo(2)
    assert chat.say("five").raw.reused_prefix_tokens >= first.prompt_tokens + first.new_tokens
    assert as_generated(chat)


@pytest.mark.parametrize(("family", "reply"), REWRITING)
@pytest.mark.parametrize("way", ["drop", "forget", "leave out"])
def test_when_old_turns_leave_the_prompt_the_others_stay_as_generated(
    family: Family, reply: str, way: str
) -> None:  # 7
    chat = scripted_chat(family, *(f"{reply}{n}" for n in range(9)), keep_reasoning="on", system="S.")
    for number in range(3):
        chat.say(f"message {number}")
    if way == "forget":
        chat.session.forget()
    elif way == "leave out":
        chat.session.leave_out(1)
    else:
        chat.session.set_option("max_tokens", str(4096 - len(chat.record)))
    raw = chat.say("next").raw
    held = chat.tokenizer.decode(chat.record, show_control=True)
    assert "S." in held and "message 0" not in held and f"{reply}0" not in held
    assert f"{reply}1" in held and f"{reply}2" in held and held.endswith(f"{reply}3")
    assert bool(chat.dropped) == (way == "drop")
    chat.session.set_option("max_tokens", "none")
    assert chat.say("on").raw.reused_prefix_tokens == raw.prompt_tokens + raw.new_tokens


def test_a_new_system_prompt_is_in_the_next_prompt() -> None:  # A15
    chat = hash_chat(CHATML, keep_reasoning="on", system="Be brief.")
    chat.say("one")
    chat.session.conversation.system = "Be long."
    prompt = chat.tokenizer.decode(chat.prompt_ids(chat.say("two")))
    assert "Be long." in prompt and "Be brief." not in prompt
    assert as_generated(chat)


def test_a_stop_string_does_not_come_back_with_the_reply() -> None:  # C7
    chat = scripted_chat(CHATML, "so it ENDs", "ok", keep_reasoning="on", stop="END")
    first = chat.say("one").raw
    assert first.reason is StopReason.STOP_STRING and chat.shown == "so it "
    second = chat.say("two")
    assert second.raw.reused_prefix_tokens == first.prompt_tokens + len("so it ")
    assert "so it <|im_end|>" in chat.tokenizer.decode(chat.record, show_control=True)


def test_half_a_character_does_not_come_back_with_the_reply() -> None:  # H4
    chat = scripted_chat(CHATML, "aé".encode(), "ok", keep_reasoning="on")
    first = chat.say("one", CancelAtToken(2))
    assert first.raw.token_ids == (ord("a"), 0xC3) and chat.turns == [("one", "a")]
    chat.say("two")
    assert "\na<|im_end|>" in chat.tokenizer.decode(chat.record, show_control=True)


def edit_content(turn: Turn) -> Turn:
    return replace(turn, reply=replace(turn.reply, content="edited"))


def edit_reasoning(turn: Turn) -> Turn:
    return replace(turn, reply=replace(turn.reply, reasoning="edited"))


@pytest.mark.parametrize("edit", [edit_content, edit_reasoning])
def test_an_edited_reply_is_given_back_as_it_was_edited(edit: Callable[[Turn], Turn]) -> None:  # 4b
    shows_all = QWEN3.source.replace("{%- set content = message.content %}", (
        "{%- set content = (message.reasoning_content or '') + message.content %}"
    ))  # fmt: skip
    chat = scripted_chat(replace(QWEN3, source=shows_all), *[THOUGHTFUL] * 4, keep_reasoning="on")
    chat.say("one")
    chat.say("two")
    chat.session.conversation.replace_last(edit(chat.session.conversation.turns[-1]))
    chat.say("three")
    assert "edited" in chat.tokenizer.decode(chat.record)


@pytest.mark.parametrize(
    ("reply", "rendered"),
    [("", ""), ("{{ m.content + m.content }}", "okok"), ("{{ m.content | upper }}", "OK")],
    ids=["left out", "twice", "in capitals"],
)
def test_a_template_that_alters_replies_gets_an_ordinary_prompt(reply: str, rendered: str) -> None:  # 7
    source = (
        "{% for m in messages %}{% if m.role == 'user' %}U:{{ m.content }}</e>{% else %}"
        + reply
        + "{% endif %}{% endfor %}A:"
    )
    chat = scripted_chat(replace(empty_thought(), source=source), "ok", "ok", keep_reasoning="on")
    chat.say("one")
    prompt = chat.tokenizer.decode(chat.prompt_ids(chat.say("two")), show_control=True)
    assert prompt == f"U:one</e>{rendered}U:two</e>A:"


def test_text_that_looks_like_the_mark_in_a_reply_is_only_text() -> None:
    mark = "reply-stands-here"
    chat = scripted_chat(QWEN3, *[f"x</think>{mark}"] * 4, keep_reasoning="on", system=mark)
    for text in (mark, mark + "-", "three"):
        chat.say(text)
        assert as_generated(chat)
    held = chat.tokenizer.decode(chat.record, show_control=True)
    assert held.count(f"<think>\nx</think>{mark}") == 3


def test_thinking_is_given_back_from_the_turn_at_which_it_is_asked_for() -> None:  # T50
    chat = scripted_chat(QWEN3, *[THOUGHTFUL] * 4)
    chat.say("one")
    held = len(chat.record)
    assert chat.say("two").raw.reused_prefix_tokens < held
    assert "why not" not in chat.tokenizer.decode(chat.record[: -len(THOUGHTFUL)])
    chat.session.set_option("keep_reasoning", "on")
    held = len(chat.record)
    assert chat.say("three").raw.reused_prefix_tokens == held
    chat.session.set_option("keep_reasoning", "off")
    assert chat.say("four").raw.reused_prefix_tokens < held


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("keep_reasoning", ["off", "on"])
def test_the_tokens_counted_are_those_of_the_next_prompt_but_for_its_message(
    name: str, keep_reasoning: str
) -> None:
    chat = hash_chat(FAMILIES[name], system="S.", keep_reasoning=keep_reasoning)
    assert chat.session.costs.count_tokens() == 0
    for text in ("one", "two"):
        chat.say(text)
    n_counted = chat.session.costs.count_tokens()
    after = chat.prompt_ids(chat.say("three"))[n_counted:]
    spelled = chat.tokenizer.decode(after, show_control=True)
    assert spelled.count("three") == 1 and "two" not in spelled
