"""The words that each `tokenizer.ggml.pre` cuts a text into."""

import pytest

from turbospark_chat.errors import ModelWarning
from turbospark_chat.models.pre_tokenizer import find_rule

_READABLE = str.maketrans({"Ġ": " ", "Ċ": "\n", "č": "\r", "ĉ": "\t"})


def words(name: str, text: str) -> list[str]:
    return [word.translate(_READABLE) for word, _ in find_rule(name).build().pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("gpt-2", "I'VE don't 1234 a12", ["I", "'", "VE", " don", "'t", " 1234", " a", "12"]),
        ("gpt-2", "x  y\n\n z \t", ["x", " ", " y", "\n\n", " z", " \t"]),
        ("gpt-2", "(foo) ++$5", ["(", "foo", ")", " ++$", "5"]),
        ("smollm", "a12 34", ["a", "1", "2", " ", "3", "4"]),
        ("smollm", "x   9 y's", ["x", "   ", "9", " y", "'s"]),
        ("llama-bpe", "I'VE 12345 a", ["I", "'VE", " ", "123", "45", " a"]),
        ("llama-bpe", "(foo) ++$5", ["(foo", ")", " ++$", "5"]),
        ("llama-bpe", "hi!\r\n\n  x\t", ["hi", "!\r\n\n", " ", " x", "\t"]),
        ("llama-bpe", "a\n \n b", ["a", "\n \n", " b"]),
        ("llama3", "12345", ["123", "45"]),
        ("qwen2", "I'VE 123 (foo)", ["I", "'VE", " ", "1", "2", "3", " (", "foo", ")"]),
        ("qwen2", "a\n \n b", ["a", "\n \n", " b"]),
        ("default", "1234567 a,b", ["123", "456", "7", " a", ",", "b"]),
        ("default", "x +=1 `y`", ["x", " ", "+=", "1", " `", "y", "`"]),
    ],
)
def test_text_is_cut_as_the_name_says(name: str, text: str, expected: list[str]) -> None:
    assert words(name, text) == expected


def test_only_llama_3_takes_known_words_whole_and_adds_bos() -> None:
    rules = {name: find_rule(name) for name in ("llama-bpe", "smollm", "qwen2", "gpt-2", "default")}
    assert {name for name, rule in rules.items() if rule.ignore_merges} == {"llama-bpe"}
    assert {name for name, rule in rules.items() if rule.adds_bos} == {"llama-bpe"}


@pytest.mark.parametrize(("name", "told"), [("gpt-99", "`gpt-99`"), (None, "lacks `tokenizer.ggml.pre`")])
def test_unknown_name_warns_and_falls_back_to_the_default(name: str | None, told: str) -> None:  # F18
    with pytest.warns(ModelWarning, match=told):
        assert find_rule(name) == find_rule("default")
