"""What was computed for a stored conversation is there when it is gone on with, and is not where it should not be."""

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes import ChatBytes, HashModel
from scripted_chat import send
from sessions import LETTERS, NEVER, CancelAfter
from tiny_model import CHATML, CONTROLS

from turbospark_chat.chat.archive import ConversationArchive
from turbospark_chat.chat.chat_model import ChatModel
from turbospark_chat.chat.chat_session import ChatSession
from turbospark_chat.chat.options import ChatOptions, find_option
from turbospark_chat.chat.receipt import Cause
from turbospark_chat.chat.store import Store
from turbospark_chat.chat.template import ChatTemplate
from turbospark_chat.chat.warm_states import DEFAULT_MEGABYTES, WarmStates
from turbospark_chat.engine.kv_prefix import KvPrefix
from turbospark_chat.errors import ModelWarning
from turbospark_chat.models.model_states import ModelStates
from turbospark_chat.models.runner import Runner
from turbospark_chat.models.state_file import read_state

Open = Callable[..., tuple[ChatSession, ConversationArchive]]


@pytest.fixture
def states(tmp_path: Path) -> WarmStates:
    return WarmStates(tmp_path / "states")


@pytest.fixture
def open_chat(tmp_path: Path, states: WarmStates) -> Iterator[Open]:
    """Begin a chat over one store, as another process would: with an engine that holds nothing."""
    archives: list[ConversationArchive] = []

    def open_chat(
        *,
        keeps: bool = True,
        system: str | None = None,
        template: str = CHATML,
        model: str = "tiny",
        pieces: Sequence[str] = (),
    ) -> tuple[ChatSession, ConversationArchive]:
        runner = Runner(HashModel(vocab_size=512, says=LETTERS), KvPrefix)
        chat_model = ChatModel(
            producer=runner, tokenizer=ChatBytes(CONTROLS, pieces=pieces), stop_ids={}, context_length=4096,
            template=ChatTemplate(template, bos_token=None, eos_token="<|im_end|>", control_spellings=CONTROLS),
            states=ModelStates(runner, KvPrefix, lambda cancel: {"model file": model}),
        )  # fmt: skip
        options = ChatOptions()
        for name, value in (("temperature", "0"), ("max_tokens", "8")):
            options = find_option(name).change(options, value)
        session = ChatSession(chat_model, system=system, options=options)
        archive = ConversationArchive(lambda: Store.open(tmp_path / "conversations.db"), states=states)
        archive.name_model(model, "hash")
        archives.append(archive)
        if keeps:
            archive.keep(session)
        return session, archive

    yield open_chat
    for archive in archives:
        archive.close()


def held(session: ChatSession) -> int:
    """How many positions the cache holds."""
    assert session.model.states is not None
    return len(session.model.states.held_ids)


def resume(open_chat: Open, reference: str = "last", **more: Any) -> tuple[ChatSession, ConversationArchive]:
    session, archive = open_chat(**more)
    archive.open(session, archive.read(reference))
    return session, archive


def test_a_resumed_conversation_goes_on_with_nothing_recomputed(open_chat: Open) -> None:  # T84
    session, archive = open_chat(system="Be brief.")
    send(session, "one")
    send(session, "two")
    archive.leave(session)
    n_held = held(session)
    again, _ = resume(open_chat)
    assert held(again) == n_held
    turns = [send(chat, "three") for chat in (session, again)]
    assert [turn.raw.reused_prefix_tokens for turn in turns] == [n_held, n_held]
    assert turns[0].raw.token_ids == turns[1].raw.token_ids
    assert turns[0].raw.kv_backed_token_ids == turns[1].raw.kv_backed_token_ids


def test_a_reply_keeps_the_ids_it_was_generated_as(open_chat: Open) -> None:  # 4
    pieces = [one + other for one in "bcdfghijk" for other in "bcdfghijk"]  # text tokenised anew has these
    session, archive = open_chat(pieces=pieces)
    n_held = send(session, "one").raw.kv_position
    archive.leave(session)
    again, _ = resume(open_chat, pieces=pieces)
    assert send(again, "two").raw.reused_prefix_tokens == n_held


def test_what_was_read_of_a_draft_that_was_not_sent_is_not_written(
    open_chat: Open, states: WarmStates
) -> None:
    session, archive = open_chat()
    n_said = send(session, "one").raw.kv_position
    assert session.read_ahead("my secret", cancel=NEVER) > len("my secret")
    archive.leave(session)
    said = ChatBytes(CONTROLS).decode(read_state(states.of_conversation(1)).ids, show_control=True)
    assert "secret" not in said
    again, _ = resume(open_chat)
    # The last token of the reply, which was cut short, was fed by reading ahead.
    assert send(again, "two").raw.reused_prefix_tokens == n_said + 1


@pytest.mark.parametrize("reference", ["1@1", "1@2"])
def test_an_earlier_turn_is_served_as_far_as_it_goes(open_chat: Open, reference: str) -> None:
    session, archive = open_chat()
    ends = [send(session, text).raw.kv_position for text in ("one", "two", "three")]
    archive.leave(session)
    again, _ = resume(open_chat, reference)
    assert send(again, "other").raw.reused_prefix_tokens >= ends[int(reference[-1]) - 1]


@pytest.mark.parametrize("begin", [ChatSession.clear, ChatSession.start_over])
def test_a_conversation_that_is_left_for_a_new_one_keeps_its_state(
    open_chat: Open, begin: Callable[[ChatSession], None]
) -> None:
    session, archive = open_chat()
    send(session, "one")
    n_held = held(session)
    archive.leave(session)
    begin(session)
    send(session, "another")
    archive.leave(session)
    for reference, expected in (("1", n_held), ("2", held(session))):
        again, _ = resume(open_chat, reference)
        assert held(again) == expected


def test_a_conversation_that_is_left_for_a_stored_one_keeps_its_state(open_chat: Open) -> None:
    session, archive = open_chat()
    send(session, "one")
    ends = [held(session)]
    archive.leave(session)
    session.clear()
    send(session, "another one")
    ends.append(held(session))
    archive.open(session, archive.read("1"))
    assert send(session, "two").raw.reused_prefix_tokens == ends[0]
    archive.open(session, archive.read("2"))
    assert send(session, "two").raw.reused_prefix_tokens == ends[1]


def test_a_conversation_that_was_only_looked_at_is_not_written_again(
    open_chat: Open, states: WarmStates
) -> None:
    session, archive = open_chat()
    send(session, "one")
    archive.leave(session)
    session.clear()
    send(session, "something else")
    before = states.of_conversation(1).read_bytes()
    states.of_conversation(1).unlink()  # so what the cache holds is still the other one's
    archive.open(session, archive.read("1"))
    archive.leave(session)
    assert not states.of_conversation(1).exists() and states.of_conversation(2).exists()
    assert before != states.of_conversation(2).read_bytes()


def test_where_turns_are_not_stored_no_state_is(open_chat: Open, states: WarmStates) -> None:
    session, archive = open_chat(keeps=False)
    send(session, "one")
    archive.save(session, None)
    send(session, "two")
    archive.leave(session)
    assert not states.of_conversation(1).exists()


def test_where_turns_are_not_stored_a_state_is_taken_up_all_the_same(open_chat: Open) -> None:
    session, archive = open_chat()
    send(session, "one")
    archive.leave(session)
    again, archive = open_chat(keeps=False)
    archive.open(again, archive.read("last"))
    assert held(again) == held(session)


def test_without_reuse_none_is_written_or_taken_up(open_chat: Open, states: WarmStates) -> None:
    session, archive = open_chat()
    send(session, "one")
    archive.leave(session)
    again, archive = open_chat()
    again.set_option("reuse", "off")
    archive.open(again, archive.read("last"))
    assert held(again) == 0
    before = states.of_conversation(1).read_bytes()
    send(again, "two")
    archive.leave(again)
    assert states.of_conversation(1).read_bytes() == before


def test_a_conversation_that_was_deleted_meanwhile_leaves_no_state(
    open_chat: Open, states: WarmStates, tmp_path: Path
) -> None:
    session, archive = open_chat()
    send(session, "one")
    store = Store.open(tmp_path / "conversations.db")
    store.delete(1)
    store.close()
    archive.leave(session)
    assert not states.of_conversation(1).exists()


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "damaged"),
        (lambda path: path.write_bytes(b""), "cut off"),
        ({"template": CHATML + " "}, "another template"),
        ({"model": "other"}, "another model file"),
    ],
    ids=["cut", "empty", "template", "model"],
)
def test_a_state_that_cannot_be_used_is_one_line_and_the_same_reply(
    open_chat: Open, states: WarmStates, spoil: Callable[[Path], object] | dict[str, str], problem: str
) -> None:  # T84, 20
    session, archive = open_chat()
    send(session, "one")
    archive.leave(session)
    more = spoil if isinstance(spoil, dict) else {}
    if not isinstance(spoil, dict):
        spoil(states.of_conversation(1))
    with pytest.warns(ModelWarning, match=f"computed anew: .*{problem}") as caught:
        again, _ = resume(open_chat, **more)
    assert len(caught) == 1 and "\n" not in str(caught[0].message)
    turn = send(again, "two")
    assert turn.raw.reused_prefix_tokens == 0
    if "template" not in more:
        assert turn.raw.token_ids == send(session, "two").raw.token_ids


def test_what_had_to_go_for_it_is_one_line(open_chat: Open, states: WarmStates) -> None:
    other = states.of_name("notes")
    other.parent.mkdir()
    other.touch()
    os.truncate(other, DEFAULT_MEGABYTES * 10**6)  # without taking any room
    session, archive = open_chat()
    send(session, "one")
    with pytest.warns(ModelWarning, match="^1 computed state of 1,024.0 MB deleted .*: notes$"):
        archive.leave(session)
    assert states.of_conversation(1).exists() and not other.exists()


def test_a_state_that_cannot_be_written_is_one_line(open_chat: Open, states: WarmStates) -> None:
    session, archive = open_chat()
    send(session, "one")
    states.of_conversation(1).mkdir(parents=True)
    with pytest.warns(ModelWarning, match="is not kept: .* cannot be written"):
        archive.leave(session)


@pytest.mark.parametrize("n_looks", range(3))
@pytest.mark.parametrize("way", ["for a new one", "for a stored one"])
def test_a_write_that_is_stopped_leaves_the_file_before_and_the_conversation_all_the_same(
    open_chat: Open, states: WarmStates, n_looks: int, way: str
) -> None:
    session, archive = open_chat()
    send(session, "one")
    archive.leave(session)
    before = states.of_conversation(1).read_bytes()
    session, archive = resume(open_chat)
    send(session, "two")
    with pytest.warns(ModelWarning, match="is not kept: .* writing it was stopped"):
        if way == "for a new one":
            archive.leave(session, cancel=CancelAfter(n_looks))
            session.clear()
        else:
            archive.open(session, archive.read("1@1"), cancel=CancelAfter(n_looks))
    assert len(session.conversation.turns) == (way == "for a stored one")
    assert list(states.of_conversation(1).parent.iterdir()) == [states.of_conversation(1)]
    assert states.of_conversation(1).read_bytes() == before


def test_another_model_leaves_the_state_of_the_one_before(open_chat: Open, states: WarmStates) -> None:
    session, archive = open_chat()
    send(session, "one")
    archive.leave(session)
    before = states.of_conversation(1).read_bytes()
    send(session, "two")
    session.set_model(open_chat(keeps=False, model="other")[0].model)  # which has computed nothing
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        archive.leave(session)
    assert states.of_conversation(1).read_bytes() == before


def written(session: ChatSession, folder: Path) -> str:
    """What a saved state was computed from, as text."""
    session.save_state(folder / "state")
    return session.model.tokenizer.decode(read_state(folder / "state").ids)


@pytest.mark.parametrize(
    "how", ["read ahead", "stopped", "no reply wanted", "failed", "failed while it was read"]
)
def test_of_what_was_never_said_nothing_is_written(open_chat: Open, tmp_path: Path, how: str) -> None:
    session, _ = open_chat()
    send(session, "hello")
    secret = "my secret is forty-two, and nobody knows it"
    model: Any = session.model.producer.model  # type: ignore[attr-defined]
    if how == "read ahead":
        session.read_ahead(secret, cancel=NEVER)
    elif how == "stopped":
        assert session.send(secret, cancel=CancelAfter(1), on_event=lambda event: None).turn is None
    elif how == "no reply wanted":
        session.set_option("max_tokens", "0")
        send(session, secret)
    else:
        n_left = iter(range(2))

        def fail(name: str) -> None:
            if name == "before a chunk":
                next(n_left)  # a StopIteration is as good as any

        model.on_boundary = fail
        with pytest.raises(StopIteration):
            if how == "failed":
                session.send(secret * 3, cancel=NEVER, on_event=lambda event: None)
            else:
                session.read_ahead(secret, cancel=NEVER)
        model.on_boundary = lambda name: None
    assert "secret" in session.model.tokenizer.decode(session.model.states.held_ids)
    session.read_ahead("", cancel=NEVER)
    text = written(session, tmp_path)
    assert "hello" in text
    assert "secret" not in text


def test_the_first_turn_after_a_resume_says_why_it_reused_no_more(open_chat: Open) -> None:
    session, archive = open_chat(system="be kind")
    send(session, "hello")
    send(session, "and?")
    archive.leave(session)
    unchanged, _ = resume(open_chat, keeps=False)
    assert send(unchanged, "more").miss is None
    changed, _ = resume(open_chat)
    changed.set_system("be brief")
    assert send(changed, "more").miss.cause is Cause.EDITED


def test_a_state_in_another_conversations_place_is_not_taken_up(
    open_chat: Open, states: WarmStates
) -> None:  # T84
    for text in ("one", "two"):
        session, archive = open_chat()
        send(session, text)
        archive.leave(session)
    states.of_conversation(1).replace(states.of_conversation(2))
    with pytest.warns(ModelWarning, match="another conversation"):
        session, _ = resume(open_chat, "2")
    assert held(session) == 0
