"""Why a turn reused less than was said before: each cause by what brings it about."""

import pytest
from chat_templates import CHATML, Family
from sessions import Chat, hash_chat

from turbospark_chat.chat.receipt import Cause, Miss, describe_miss
from turbospark_chat.engine.reuse_miss import MissCause, ReuseMiss

# A generation prompt that the history leaves out, as some models' templates have it: engine case 7, T49.
EMPTY_THOUGHT = Family(
    CHATML.source.replace("assistant\n' }}", "assistant\n<t></t>' }}"), *(
        CHATML.control_spellings, CHATML.bos_token, CHATML.eos_token, CHATML.turn_ends
    )
)  # fmt: skip


def twice(chat: Chat) -> Chat:
    """Two turns said, so that each has something before it."""
    assert chat.say("hi").miss is None
    assert chat.say("and?").miss is None
    return chat


def test_a_conversation_that_goes_on_misses_nothing():
    chat = twice(hash_chat(CHATML))
    for text in ("more", "é😀", "", "42 42"):
        assert chat.say(text).miss is None


def test_what_the_user_changes_is_edited():
    chat = twice(hash_chat(CHATML))
    chat.session.forget()
    miss = chat.say("or?").miss
    assert (miss.cause, miss.held, miss.prompt) == (Cause.EDITED, "h", "a")
    chat.session.set_system("be brief")
    miss = chat.say("more").miss
    assert miss.cause is Cause.EDITED
    assert str(miss).startswith("edited: position ")


def test_what_is_taken_back_is_no_longer_part_of_it_and_so_not_missed():
    chat = twice(hash_chat(CHATML))
    chat.session.undo()
    assert chat.say("or?").miss is None
    chat.session.branch_off("other")
    chat.say("there")
    chat.session.switch("main")
    assert chat.say("here").miss is None


def test_of_what_was_changed_and_changed_back_the_token_that_is_told_is_the_one_that_was_held():
    chat = twice(hash_chat(CHATML, system="be kind"))
    chat.session.set_system("be brief")
    chat.read_ahead()
    chat.session.set_system("be kind")
    miss = chat.say("more").miss
    assert (miss.cause, miss.held, miss.prompt) == (Cause.EDITED, "b", "k")


def test_the_same_message_again_misses_nothing():
    chat = twice(hash_chat(CHATML))
    assert chat.retry().miss is None


def test_a_template_that_writes_the_last_turn_otherwise_is_named():  # T49, 7
    chat = hash_chat(EMPTY_THOUGHT)
    first = chat.say("hi")
    second = chat.say("and?")
    assert second.miss.cause is Cause.TEMPLATE
    assert (second.miss.held, second.miss.prompt[0]) == ("<", second.miss.prompt)
    assert second.raw.reused_prefix_tokens == first.raw.prompt_tokens - len("<t></t>")
    assert second.miss.position == second.miss.differs_at == second.raw.reused_prefix_tokens


@pytest.mark.parametrize("keep_reasoning", ["off", "on"])
def test_another_template_is_named_and_writes_the_whole_prompt(keep_reasoning):
    chat = twice(hash_chat(CHATML, keep_reasoning=keep_reasoning))
    other = CHATML.source.replace("message['role'] + '\n'", "message['role'] + ':\n'")
    other = other.replace("assistant\n' }}", "assistant:\n' }}")
    chat.session.set_model(chat.session.model.with_template(other))
    chat.template = chat.session.model.template
    result = chat.say("more")
    assert result.miss.cause is Cause.TEMPLATE
    prompt = chat.tokenizer.decode(chat.prompt_ids(result), show_control=True)
    assert prompt.count("<|im_start|>user:\n") == 3
    assert chat.say("and more").miss is None


def test_the_template_is_to_blame_again_at_every_turn():  # T49
    chat = hash_chat(EMPTY_THOUGHT)
    chat.say("hi")
    assert [chat.say(text).miss.cause for text in ("a", "b", "c")] == [Cause.TEMPLATE] * 3


def test_reading_ahead_takes_the_cost_of_such_a_template_from_the_turn_which_says_so_all_the_same():  # T49
    chat = hash_chat(EMPTY_THOUGHT)
    first = chat.say("hi")
    chat.read_ahead("and")
    chat.read_ahead("and?")
    result = chat.say("and?")
    assert result.miss.cause is Cause.TEMPLATE
    assert result.miss.position == first.raw.prompt_tokens - len("<t></t>")
    assert result.raw.prefilled_tokens < 40
    assert result.n_ahead == result.raw.reused_prefix_tokens - result.miss.position


def test_a_draft_that_changed_is_not_the_miss_though_it_stands_before_where_the_last_turn_ended():  # T49
    chat = hash_chat(EMPTY_THOUGHT)
    chat.say("hi")
    n_held = len(chat.record)
    chat.read_ahead("xyz")
    assert len(chat.record) < n_held + len("<t></t>")
    chat.read_ahead("and")
    miss = chat.say("and?").miss
    assert (miss.cause, miss.held) == (Cause.TEMPLATE, "<")  # what the template did, not what the typist did


def test_turns_that_leave_the_prompt_are_named():
    chat = hash_chat(CHATML, context_length=200, max_tokens="8")
    causes = [result.miss.cause for result in (chat.say("m" * 30) for _ in range(6)) if result.miss]
    assert causes
    assert set(causes) == {Cause.WINDOW_DROPPED}


def test_a_new_conversation_misses_nothing():
    chat = twice(hash_chat(CHATML))
    chat.session.forget()
    chat.read_ahead("oh")  # misses what was forgotten
    chat.session.clear()
    assert chat.say("hello").miss is None


@pytest.mark.parametrize(
    ("of_state", "cause"),
    [
        (MissCause.EVICTED, Cause.SLOT_EVICTED),
        (MissCause.REFUSED, Cause.REFUSED),
        (MissCause.TAINTED, Cause.TAINTED),
    ],
)
def test_what_the_state_says_goes_before_what_the_conversation_says(of_state, cause):
    found = describe_miss(
        ReuseMiss(of_state, 3, 7, None, 65),
        n_said=2,
        cause=Cause.TEMPLATE,
        spell=chr,
    )
    assert found == Miss(cause, 3, 7, None, "A")
    assert str(found) == f"{cause}: computed anew from position 3"


def test_what_was_held_behind_all_that_was_said_is_no_miss():
    miss = ReuseMiss(MissCause.DIFFERS, 7, 7, 66, 65)
    given = {"cause": Cause.TEMPLATE, "spell": chr}
    assert describe_miss(miss, n_said=7, **given) is None
    assert describe_miss(miss, n_said=8, **given) == Miss(Cause.TEMPLATE, 7, 7, "B", "A")
    assert describe_miss(None, n_said=8, **given) is None


@pytest.mark.parametrize(
    ("held", "prompt", "said"),
    [
        ("a", "b", "`b`, where `a` was held"),
        (None, "b", "`b`, where the end was held"),
        ("\n\n", "\r\n", r"`\r\n`, where `\n\n` was held"),
    ],
)
def test_a_miss_is_one_line_whatever_the_tokens(held, prompt, said):
    assert str(Miss(Cause.EDITED, 3, 3, held, prompt)) == f"edited: position 3 is {said}"
