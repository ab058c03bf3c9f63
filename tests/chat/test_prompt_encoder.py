"""The ids of a prompt: known ids stay where they say the same text, control tokens come from the template alone."""

import random
from functools import partial

import pytest
from fakes import ChatBytes
from hypothesis import given
from hypothesis import strategies as st
from sessions import common_length
from vocabularies import CONTROL, UNKNOWN, sentencepiece

from turbospark_chat.chat.prompt_encoder import Ids, PromptPart, encode_prompt, ids_saying, whole_characters
from turbospark_chat.chat.rendered_prompt import Control, RenderedPrompt, Segment, Text
from turbospark_chat.models.tokenizer import Tokenizer
from turbospark_chat.models.vocabulary import read_vocabulary

PIECES = ("ha", "nz", "han", "zi", "\n\n", "<s", "pad")
CHAT = ChatBytes(("<s>", "</s>"), pieces=PIECES)
BOS, END = CHAT.control_ids["<s>"], CHAT.control_ids["</s>"]
HA, NZ, HAN, ZI = (CHAT.piece_ids[piece] for piece in PIECES[:4])
H, A, I_, SPACE = b"hai "

encode = partial(encode_prompt, tokenizer=CHAT)


@pytest.mark.parametrize(
    ("text", "known", "ids"),
    [
        pytest.param("hanzi", [], [HAN, ZI], id="4 unknown text is encoded as usual"),
        pytest.param("hanzi", [HA, NZ, I_], [HA, NZ, I_], id="4 a reply of the same bytes keeps its ids"),
        pytest.param(
            "hanzi ha", [HA, NZ, I_], [HA, NZ, I_, SPACE, HA], id="4 what follows is encoded by itself"
        ),
        pytest.param("hanzihanzi", [HA, NZ, I_], [HA, NZ, I_, HAN, ZI], id="4 no merge across the seam"),
        pytest.param("hanz", [HA, NZ, I_], [HAN, ord("z")], id="4 a shortened text is another one"),
        pytest.param("hani", [HA, NZ, I_], [HAN, I_], id="4 an edited text is another one"),
        pytest.param("é", [0xC3, 0xA9], [0xC3, 0xA9], id="a character in halves"),
        pytest.param("\ufffdx", [0x98, ord("x")], [0x98, ord("x")], id="bytes that are no text, as shown"),
        pytest.param("\n\n", [10, 10], [10, 10], id="T53 two newlines apart"),
    ],
)
def test_text_keeps_the_ids_that_say_it(text: str, known: list[int], ids: list[int]) -> None:
    assert encode([Text(text)], known=[known]) == ids
    turn: list[PromptPart] = [Control("<s>"), Text("a"), Control("</s>")]
    assert encode([*turn, Text(text)], known=[[BOS, A, END, *known]]) == [BOS, A, END, *ids]


@pytest.mark.parametrize(
    ("parts", "known", "ids"),
    [
        pytest.param(
            [Text("hanzi"), Control("</s>"), Text("hanzi")], [HA, NZ, I_, END, H, A, NZ, I_],
            [HA, NZ, I_, END, H, A, NZ, I_], id="4 two replies",
        ),
        pytest.param(
            [Text("hani"), Control("</s>"), Text("hanzi")], [HA, NZ, I_, END, HA, NZ, I_],
            [HAN, I_, END, HAN, ZI], id="4 nothing is taken over after the first difference",
        ),
        pytest.param(
            [Text("hanzi "), Control("</s>"), Text("hanzi")], [HA, NZ, I_, END, HA, NZ, I_],
            [HAN, ZI, SPACE, END, HAN, ZI], id="4 text goes on only where the known ids end",
        ),
        pytest.param([Control("</s>"), Text("hanzi")], [BOS, HA, NZ, I_], [END, HAN, ZI], id="another control"),
        pytest.param([Control("</s>"), Text("hanzi")], [HA, NZ, I_], [END, HAN, ZI], id="a control less"),
        pytest.param(
            [Text("ha"), Ids((NZ, I_)), Text("hanzi")], [H, A, NZ, I_, HA, NZ, I_],
            [HA, NZ, I_, HAN, ZI], id="text before given ids is not known by what they say",
        ),
        pytest.param(
            [Control("<s>"), Ids((HA, NZ, I_)), Control("</s>"), Text("hanzi")], [BOS, HA, NZ, I_, END, H, A, NZ, I_],
            [BOS, HA, NZ, I_, END, H, A, NZ, I_], id="7 given ids stand, and what is known goes on after them",
        ),
        pytest.param(
            [Control("<s>"), Ids((HA, NZ, I_)), Control("</s>"), Text("hanzi")], [BOS, HAN, ZI, END, H, A, NZ, I_],
            [BOS, HA, NZ, I_, END, HAN, ZI], id="7 given ids that are not the known ones",
        ),
        pytest.param(
            [Text("a"), Control("</s>"), Text("hanzi")], [END, HA, NZ, I_], [A, END, HAN, ZI],
            id="text where there was none",
        ),
        pytest.param([Ids(()), Text("ha")], [H, A], [H, A], id="no ids given"),
        pytest.param([], [HA], [], id="nothing"),
    ],
)  # fmt: skip
def test_known_ids_serve_up_to_the_first_difference(
    parts: list[PromptPart], known: list[int], ids: list[int]
) -> None:
    assert encode(parts, known=[known]) == ids


SOME_TEXT = st.text(alphabet="haniz\n é😀<s>", min_size=1, max_size=8)
SOME_CONTROLS = st.lists(st.sampled_from(["<s>", "</s>"]), max_size=5)


@st.composite
def some_parts(draw: st.DrawFn) -> list[Segment]:
    """A render: control tokens, and at most one text before each and at the end."""
    parts: list[Segment] = []
    for spelling in [*draw(SOME_CONTROLS), None]:
        parts += [Text(draw(SOME_TEXT))] if draw(st.booleans()) else []
        parts += [Control(spelling)] if spelling else []
    return parts


SOME_PARTS = some_parts()


@given(SOME_PARTS, st.lists(st.integers(0, CHAT.n_tokens - 1), max_size=20))
def test_whatever_is_known_the_ids_say_the_rendered_text(parts: list[Segment], known: list[int]) -> None:
    assert CHAT.decode(encode(parts, known=[known]), show_control=True) == RenderedPrompt(tuple(parts)).text


@given(SOME_PARTS, SOME_PARTS, st.randoms(use_true_random=False))
def test_a_prompt_said_before_in_any_split_is_taken_over_whole(
    before: list[Segment], after: list[Segment], rng: random.Random
) -> None:  # 4, T53
    known: list[int] = []
    for part in before:
        known += [CHAT.control_ids[part.spelling]] if isinstance(part, Control) else any_split(part.text, rng)
    ids = encode([*before, Control("</s>"), *after], known=[known])
    assert common_length(ids, known) == len(known)


def any_split(text: str, rng: random.Random) -> list[int]:
    """Ids that say `text`, cut at random."""
    cuts = sorted({0, len(text), *(rng.randrange(len(text)) for _ in range(rng.randrange(4)))})
    return [i for start, end in zip(cuts, cuts[1:], strict=False) for i in CHAT.encode(text[start:end])]


@pytest.mark.parametrize("literal", ["hi", "<s>hi"], ids=["plain", "begins with the letters of BOS"])
@pytest.mark.parametrize("adds_bos", [True, False], ids=["add_bos", "no add_bos"])
@pytest.mark.parametrize("writes_bos", [True, False], ids=["template writes BOS", "template writes none"])
@pytest.mark.parametrize("is_known", [True, False], ids=["said before", "new"])
def test_a_prompt_has_one_bos_if_the_template_or_the_tokenizer_has_one(
    literal: str, adds_bos: bool, writes_bos: bool, is_known: bool
) -> None:  # 15
    tokenizer = ChatBytes(("<s>", "</s>"), bos="<s>" if adds_bos else None)
    parts: list[PromptPart] = [Control("<s>")] if writes_bos else []
    parts += [Text(literal), Control("</s>")]
    known = encode_prompt(parts, tokenizer) if is_known else []
    expected = [BOS] * (writes_bos or adds_bos) + [*literal.encode(), END]
    assert encode_prompt(parts, tokenizer, known=[known]) == expected


@pytest.mark.parametrize("opening", [[], [Control("<s>")]], ids=["by the tokenizer", "by the template"])
def test_ids_known_with_bos_serve_a_prompt_whoever_writes_it(opening: list[PromptPart]) -> None:  # 15, 4
    tokenizer = ChatBytes(("<s>", "</s>"), bos="<s>", pieces=PIECES)
    known = [BOS, HA, NZ, I_]
    parts = [*opening, Text("hanzi"), Control("</s>")]
    assert encode_prompt(parts, tokenizer, known=[known]) == [*known, END]


@given(SOME_PARTS)
def test_only_what_the_template_wrote_becomes_a_control_token(parts: list[Segment]) -> None:  # 16
    ids = encode(parts)
    assert sum(i in (BOS, END) for i in ids) == sum(isinstance(part, Control) for part in parts)


@pytest.mark.parametrize(
    ("text", "sampled", "ids"),
    [
        pytest.param("hanzi", [HA, NZ, I_], (HA, NZ, I_), id="all of it"),
        pytest.param("ha", [HA, NZ, I_], (HA,), id="C7 a stop string where a token begins"),
        pytest.param("han", [HA, NZ, I_], (HA, ord("n")), id="C7 a stop string inside a token"),
        pytest.param("", [HA, NZ, I_], (), id="C7 a stop string at once"),
        pytest.param("ha", [HA, 0xE9, 0xBE], (HA,), id="H4 half a character"),
        pytest.param("\ufffd", [0x98, 0xE9], (0x98,), id="H4 half a character after bytes that are none"),
        pytest.param("", [], (), id="nothing sampled"),
    ],
)
def test_a_shortened_reply_keeps_the_sampled_ids_as_far_as_they_go(
    text: str, sampled: list[int], ids: tuple[int, ...]
) -> None:
    assert ids_saying(text, sampled, CHAT) == ids


@given(st.lists(st.integers(0, CHAT.n_tokens - 1), max_size=12), st.integers(0, 12))
def test_ids_of_a_shortened_reply_say_exactly_what_is_left(sampled: list[int], length: int) -> None:
    text = CHAT.decode(sampled)[:length]
    ids = ids_saying(text, sampled, CHAT)
    assert CHAT.decode(ids) == text
    if length >= len(CHAT.decode(sampled)):
        assert ids == tuple(sampled)


def test_text_that_goes_on_gets_no_second_leading_space() -> None:
    # SentencePiece puts a space before text: before a prompt's, not before what follows a reply.
    vocabulary = read_vocabulary(
        sentencepiece({"<unk>": UNKNOWN, "<s>": CONTROL, "</s>": CONTROL}, ["▁a", "▁b", "a", "b", "▁"]),
        source="test",
    )
    tokenizer = Tokenizer(vocabulary)
    spaced, bare = vocabulary.normal_ids["▁a"], vocabulary.normal_ids["b"]
    reply = encode_prompt([Control("</s>"), Text("a")], tokenizer)[-1:]
    assert reply == [spaced]
    assert encode_prompt([Text("ab")], tokenizer, known=[reply]) == tokenizer.with_bos([spaced, bare])
    assert encode_prompt([Ids((spaced,)), Text("b")], tokenizer) == tokenizer.with_bos([spaced, bare])
    assert ids_saying("ab", [spaced, bare, bare], tokenizer) == (spaced, bare)
    assert ids_saying("ab", [spaced, vocabulary.normal_ids["▁b"]], tokenizer) == (spaced, bare)


@pytest.mark.parametrize(
    ("known", "text", "ids"),
    [
        pytest.param([HA], "hanzi", [HAN, ZI], id="`han` would merge across the seam"),
        pytest.param([H, A], "han", [HAN], id="also where the reply was spelled otherwise"),
        pytest.param([HA], "ha ha", [HA, SPACE, HA], id="a space merges with nothing"),
        pytest.param([H, A], "ha ha", [H, A, SPACE, HA], id="a safe seam keeps the ids before it"),
    ],
)
def test_what_goes_on_from_a_reply_keeps_its_ids_only_across_a_safe_seam(known, text, ids):
    assert encode([Text(text)], known=[known]) == ids


def test_of_several_known_prompts_each_serves_as_far_as_it_agrees_with_the_ids_so_far():
    one, other = [BOS, HA, NZ, I_, END, A], [BOS, HA, NZ, I_, END, H, A, NZ, I_]
    parts = [Control("<s>"), Text("hanzi"), Control("</s>"), Text("hanzi")]
    assert encode(parts, known=[one, other]) == other
    assert encode(parts, known=[one]) == [*one[:5], HAN, ZI]
    elsewhere = [BOS, H, A, NZ, I_, END, HA, NZ, I_]  # says the same, but begins with other ids
    assert encode(parts, known=[other, elsewhere]) == other
    assert encode(parts, known=[elsewhere, other]) == elsewhere


@pytest.mark.parametrize("character", ["é", "日", "😀"])
@pytest.mark.parametrize("more", ["", "x", " and more"])
def test_ids_that_break_off_inside_a_character_do_not_say_what_it_then_looks_like(character, more):
    whole = list(f"so {character}".encode())
    for n_bytes in range(1, len(character.encode())):
        cut = whole[: len("so ") + n_bytes]
        text = bytes(cut).decode("utf-8", "replace") + more
        known = whole_characters([BOS, *cut], CHAT)
        assert known == [BOS, *b"so "]
        assert encode([Control("<s>"), Text(text)], known=[known]) == [BOS, *encode([Text(text)])]
    assert whole_characters(whole, CHAT) == whole
