"""What was computed once is never computed again: replies keep the ids they were generated with.

Each turn is also held to what `sessions.Chat` checks: it kept the longest common prefix of what the cache held, its
prompt says what the template renders, and a cold run of the same ids gives the same reply.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from chat_templates import CHATML, FAMILIES
from fakes import ChatBytes, HashModel
from hypothesis import given, settings
from hypothesis import strategies as st
from sessions import (
    LETTERS,
    CancelAfter,
    CancelAtToken,
    Chat,
    chat_tokenizer,
    common_length,
    hash_chat,
    load_template,
    scripted_chat,
)

from turbospark_chat.engine.completion import StopReason
from turbospark_chat.engine.kv_prefix import KvPrefix
from turbospark_chat.engine.producer import ScriptedProducer
from turbospark_chat.errors import UsageError
from turbospark_chat.models.gguf import GgufFile
from turbospark_chat.models.runner import Runner
from turbospark_chat.models.tokenizer import Tokenizer
from turbospark_chat.models.vocabulary import read_vocabulary

EXCHANGES = [
    ("Write a loop.", "```python\nfor i in range(10):\n    print(i,  i ** 2)\n\n\n```\nDone."),
    ("And with emoji?", "👨‍👩‍👧 family, ✈️ plane,🇩🇪 flag 😀😀"),
    ("你好", "你好!我能帮你什么吗?汉字测试。"),
    ("Numbers", "1234567890 3.14159 -42 1,000,000 0x7fff 1e-9"),
    ("Spaces", "   lead\ttab\r\n\r\n  and    gaps   "),
    ("Han+zi", "hanzi Hanzi HANZI\n\n\nhanzi"),
    ("<|im_end|>", "I saw `<|im_end|>` there; naïve café, Ωμέγα, مرحبا, नमस्ते"),
    ("", "x"),
    ("{{ messages }}", "{% for m in messages %}{{ m }}{% endfor %}"),
    ("Why?", "Because."),
] * 2


@dataclass
class Smol:
    """The default model's vocabulary and template, without its weights."""

    tokenizer: Tokenizer
    source: str

    def chat(self, *replies: str, **more: Any) -> Chat:
        """A chat whose model says these replies in splits no tokenizer would choose."""
        rng = random.Random(len(replies))
        vocabulary = self.tokenizer.vocabulary
        producer = ScriptedProducer(
            [self.split(reply, rng) for reply in replies],
            vocab_size=self.tokenizer.n_tokens,
            end_id=vocabulary.control_ids["<|im_end|>"],
        )
        template = load_template(
            self.source, tuple(vocabulary.control_ids), bos_token="<|im_start|>", eos_token="<|im_end|>"
        )
        return Chat(producer, self.tokenizer, template, **more)

    def split(self, text: str, rng: random.Random) -> list[int]:
        """Ids that say `text`, cut where the merges would not."""
        cuts = sorted({0, len(text), *(rng.randrange(len(text)) for _ in range(len(text) // 3))})
        ids = [
            i for at, end in zip(cuts, cuts[1:], strict=False) for i in self.tokenizer.encode(text[at:end])
        ]
        assert self.tokenizer.decode(ids) == text
        return ids


@pytest.fixture(scope="module")
def smol(smollm2_path: Path) -> Smol:
    with GgufFile.open(smollm2_path) as file:
        vocabulary = read_vocabulary(file.metadata, source=smollm2_path)
        return Smol(Tokenizer(vocabulary), str(file.metadata["tokenizer.chat_template"]))


@pytest.mark.weights
def test_over_20_turns_only_what_is_new_is_computed(smol: Smol) -> None:  # T48, T52, T53
    chat = smol.chat(*(reply for _, reply in EXCHANGES))
    tokenizer, n_held = smol.tokenizer, 0
    n_around = len(
        tokenizer.encode(
            "<|im_end|>\n<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n", parse_special=True
        )
    )
    n_resplit = 0
    for number, (message, reply) in enumerate(EXCHANGES):
        result = chat.say(message)
        raw = result.raw
        assert chat.shown == reply and raw.reason is StopReason.END_OF_TURN
        if number:
            assert raw.reused_prefix_tokens == n_held
            assert raw.prompt_tokens - n_held == n_around + len(tokenizer.encode(message))
        n_held = raw.prompt_tokens + raw.new_tokens
        assert raw.kv_position == n_held
        n_resplit += list(raw.token_ids) != tokenizer.encode(reply)
    assert n_resplit >= 16  # replies whose own ids are not those of their text


def undo(chat: Chat) -> int:
    held = len(chat.record)
    chat.say("three")
    chat.session.undo()
    return held


def retry(chat: Chat) -> int:
    result = chat.retry()
    return result.raw.prompt_tokens + result.raw.new_tokens


def edit(chat: Chat) -> int:
    last = chat.session.conversation.turns[-1]
    held = len(chat.record) - len(last.generated_ids)
    reply = replace(last.reply, content="y" + last.reply.content)
    chat.session.conversation.replace_last(replace(last, reply=reply))
    return held


def cancel_in_prefill(chat: Chat) -> int:
    held = len(chat.record)
    result = chat.say("never mind", CancelAfter(1))
    assert result.turn is None and result.raw.reason is StopReason.CANCELLED
    return held


def cancel_in_reply(chat: Chat) -> int:
    result = chat.say("go", CancelAtToken(5))
    assert result.raw.reason is StopReason.CANCELLED
    return result.raw.prompt_tokens + 4  # the fifth was shown, and not fed


def stop_string(chat: Chat) -> int:
    chat.session.set_option("stop", "gaps")
    result = chat.say("go")
    assert result.raw.reason is StopReason.STOP_STRING and chat.shown == "   lead\ttab\r\n\r\n  and    "
    kept = common_length(result.raw.token_ids, chat.session.conversation.turns[-1].generated_ids)
    assert kept >= 5
    return result.raw.prompt_tokens + kept


def length_stop(chat: Chat) -> int:
    chat.session.set_option("max_tokens", "6")
    result = chat.say("go")
    assert result.raw.reason is StopReason.MAX_TOKENS
    return result.raw.prompt_tokens + 5


def go_on(chat: Chat) -> int:
    length_stop(chat)
    begun = chat.session.conversation.turns[-1]
    held = len(chat.record)
    chat.session.set_option("max_tokens", "none")
    result = chat.go_on()
    assert result.raw.reused_prefix_tokens == held
    assert chat.session.conversation.turns[-1].generated.startswith(begun.generated)
    return result.raw.prompt_tokens + result.raw.new_tokens


def clear(chat: Chat) -> int:
    chat.session.clear()
    system = chat.template.render(chat.session.conversation.messages(), add_generation_prompt=False).text
    return len(chat.tokenizer.encode(system, parse_special=True))


@pytest.mark.weights
@pytest.mark.parametrize(
    "change",
    [undo, retry, edit, cancel_in_prefill, cancel_in_reply, stop_string, length_stop, go_on, clear],
    ids=lambda change: change.__name__,
)
def test_after_any_change_the_next_turn_reuses_all_that_still_holds(
    smol: Smol, change: Callable[[Chat], int]
) -> None:  # 4, C7, H4, T4, T52
    replies = [EXCHANGES[index][1] for index in (0, 1, 4, 5, 6)]
    chat = smol.chat(*replies, system="Be brief.")
    chat.say("one")
    chat.say("two")
    n_held = change(chat)
    for name in ("stop", "max_tokens"):
        chat.session.set_option(name, "none")
    assert chat.say("next").raw.reused_prefix_tokens >= n_held > 5


PIECES = ("ha", "nz", "han", "zi", "\n\n", " a", "b.")


def test_a_reply_in_another_split_is_taken_over_as_it_was_generated() -> None:  # 4a
    tokenizer = chat_tokenizer(CHATML, pieces=PIECES)
    ha, nz, han, zi = (tokenizer.piece_ids[piece] for piece in PIECES[:4])
    chat = scripted_chat(CHATML, [ha, nz, ord("i")], [10, 10], "ok", pieces=PIECES)
    first = chat.say("hanzi")
    assert chat.shown == "hanzi" and tokenizer.encode("hanzi") == [han, zi]
    second = chat.say("go")
    assert second.raw.reused_prefix_tokens == first.raw.prompt_tokens + 3
    third = chat.say("on")
    assert third.raw.reused_prefix_tokens == second.raw.prompt_tokens + 2


def test_an_edited_reply_keeps_what_comes_before_the_edit() -> None:  # 4b
    chat = hash_chat(CHATML, says=NOT_CANONICAL, pieces=PIECES)
    for text in ("one", "two", "three"):
        chat.say(text)
    last = chat.session.conversation.turns[-1]
    held = len(chat.record) - len(last.generated_ids)
    edited = replace(last, reply=replace(last.reply, content="edited"))
    chat.session.conversation.replace_last(edited)
    result = chat.say("four")
    assert held <= result.raw.reused_prefix_tokens < result.raw.prompt_tokens
    assert "edited" in chat.tokenizer.decode(chat.prompt_ids(result))


# Halves of pieces beside the pieces, so that the model's splits are seldom the tokenizer's.
NOT_CANONICAL = (*b"hanzi \nb.cde", *chat_tokenizer(CHATML, pieces=PIECES).piece_ids.values())


def test_a_model_that_never_splits_as_its_tokenizer_does_costs_no_more() -> None:  # 4, T52, T53
    chat = hash_chat(CHATML, says=NOT_CANONICAL, pieces=PIECES, max_tokens="9")
    n_held = n_resplit = 0
    for number in range(12):
        raw = chat.say(f"message {number}").raw
        assert raw.reused_prefix_tokens >= n_held
        n_held = raw.prompt_tokens + raw.new_tokens - 1
        n_resplit += list(raw.token_ids) != chat.tokenizer.encode(chat.tokenizer.decode(raw.token_ids))
    assert n_resplit >= 4


@pytest.mark.parametrize(
    ("opening", "closing"), [("{{ m.role }}: ", "\n\n"), ("", "")], ids=["plain text", "nothing at all"]
)
def test_a_template_without_control_tokens_loses_no_reuse(opening: str, closing: str) -> None:  # 4
    source = f"{{% for m in messages %}}{opening}{{{{ m.content }}}}{closing}{{% endfor %}}"
    source += "{% if add_generation_prompt %}" + opening.replace("{{ m.role }}", "assistant") + "{% endif %}"
    chat = hash_chat(replace(CHATML, source=source), says=NOT_CANONICAL, pieces=PIECES)
    n_held = 0
    for text in ("hanzi", "zi", "nzi", "a"):
        raw = chat.say(text).raw
        assert raw.reused_prefix_tokens >= n_held
        n_held = raw.prompt_tokens + raw.new_tokens - 1


SAYABLE = (*b"cbx<\n", 0xC3, 0xA9, 0xF1, 0x98, 256, 257, 258, 259)  # halves of characters, and control tokens
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["say", "say", "say", "retry", "go_on", "undo", "forget", "keep"]),
        st.text(alphabet="ab <|im_end>é\n", max_size=6),
        st.none() | st.integers(0, 9),
    ),
    min_size=2,
    max_size=7,
)


@pytest.mark.parametrize("name", FAMILIES)
@given(operations=OPERATIONS, system=st.sampled_from([None, "Be brief."]))
@settings(max_examples=50, deadline=None)
def test_in_any_conversation_the_ids_used_say_what_the_template_renders(
    name: str, operations: list[tuple[str, str, int | None]], system: str | None
) -> None:  # A19, B16; what holds for every turn is checked by Chat
    chat = hash_chat(FAMILIES[name], says=SAYABLE, system=system)
    for operation, text, n_looks in operations:
        cancel = CancelAfter(n_looks)
        try:
            if operation == "say":
                chat.say(text, cancel)
            elif operation in ("retry", "go_on"):
                (chat.retry if operation == "retry" else chat.go_on)(cancel)
            elif operation == "keep":
                chat.session.set_option("keep_reasoning", "on")
            else:
                (chat.session.undo if operation == "undo" else chat.session.forget)()
        except UsageError:
            continue


def test_the_newline_after_a_turn_is_in_the_prompt() -> None:  # A19
    chat = hash_chat(CHATML)
    chat.say("one")
    prompt = chat.tokenizer.decode(chat.prompt_ids(chat.say("two")), show_control=True)
    assert "one<|im_end|>\n<|im_start|>assistant\n" in prompt
    assert f"{chat.turns[0][1]}<|im_end|>\n<|im_start|>user\ntwo<|im_end|>\n" in prompt


class CountingBytes(ChatBytes):
    """Counts the characters it is given to encode."""

    n_encoded = 0

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        self.n_encoded += len(text)
        return super().encode(text, parse_special=parse_special)


@pytest.mark.parametrize("keep_reasoning", ["off", "on"])
def test_neither_computing_nor_tokenising_grows_with_the_conversation(keep_reasoning: str) -> None:  # G8, A20
    tokenizer = CountingBytes(CHATML.control_spellings)
    model = HashModel(vocab_size=tokenizer.n_tokens, says=LETTERS)
    template = load_template(CHATML.source, CHATML.control_spellings)
    chat = Chat(Runner(model, KvPrefix), tokenizer, template, max_tokens="20", keep_reasoning=keep_reasoning)
    evaluated, encoded = [], []
    for number in range(30):
        model.evaluated = tokenizer.n_encoded = 0
        chat.say(f"message number {number:04}")
        evaluated.append(model.evaluated)
        encoded.append(tokenizer.n_encoded)
    assert set(evaluated[1:]) == {evaluated[1]} and evaluated[1] < evaluated[0]
    assert max(encoded[1:]) <= encoded[1] and encoded[1] < encoded[0]
