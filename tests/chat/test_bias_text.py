"""Biases by text become biases by the ids of that text. D13."""

import pytest

from turbospark_chat.chat.bias_text import is_text_bias, spell_out_biases
from turbospark_chat.chat.options import OPTIONS, ChatOptions
from turbospark_chat.errors import SettingError


def encode(text: str) -> list[int]:
    """One id a character; white space has none."""
    return [ord(character) for character in text if not character.isspace()]


@pytest.mark.parametrize(
    ("text", "biases"),
    [
        ("'a':-5", {97: -5}),
        ('"ab":1.5', {97: 1.5, 98: 1.5}),
        ("'a':-5,7:1", {97: -5, 7: 1}),
        ("7:1, 'a' : -5 ,'b':2", {7: 1, 97: -5, 98: 2}),
        ("{'a':-5, \"b\":2}", {97: -5, 98: 2}),
        ("{'a':-5, '7':2}", {97: -5, 7: 2}),
        ("{'ab':-5}", {97: -5, 98: -5}),
        ("'a,b':1", {97: 1, 44: 1, 98: 1}),
        ("'a:b':1", {97: 1, 58: 1, 98: 1}),
        ("'\"':1", {34: 1}),
        ("' a':1", {97: 1}),
        ("'a1':1", {97: 1, 49: 1}),
    ],
)
def test_quoted_text_is_spelled_out_as_its_ids(text: str, biases: dict[int, float]) -> None:
    assert is_text_bias(text)
    options = OPTIONS["logit_bias"].change(ChatOptions(), spell_out_biases(text, encode))
    assert options.completion.sampling.logit_bias == biases


@pytest.mark.parametrize("text", ["2:-100", '{"2":-100}', "{2:-100}", "'2':1,'15':5", "", "none", "nonsense"])
def test_biases_by_id_stay_as_they_are(text: str) -> None:
    assert not is_text_bias(text)
    assert spell_out_biases(text, encode) == text


@pytest.mark.parametrize("text", ["'':1", "' ':1"])
def test_text_without_tokens_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="^logit_bias is .* has no tokens$"):
        spell_out_biases(text, encode)


@pytest.mark.parametrize("text", ["'a':much", "'a':101", "'a':"])
def test_a_bias_that_is_none_is_refused_as_for_an_id(text: str) -> None:
    with pytest.raises(
        SettingError, match="^logit_bias is .*: give token ids with a bias each, -100 to 100$"
    ):
        OPTIONS["logit_bias"].change(ChatOptions(), spell_out_biases(text, encode))
