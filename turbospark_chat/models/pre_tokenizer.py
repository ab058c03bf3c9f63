"""How text is cut into words before byte-level merging: one rule for each name in `tokenizer.ggml.pre`.

Names and patterns are the format's own: ggml-org/llama.cpp, src/llama-vocab.cpp at 00ad355, and the
tokenizer.json of the models a name stands for. Knows no vocabulary.
"""

import warnings
from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

from turbospark_chat.errors import ModelWarning

_GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _cl100k_words(digits: str) -> str:
    """Return the pattern after OpenAI's cl100k, which models vary by how many digits make a word."""
    return (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


@dataclass(frozen=True, slots=True)
class PreTokenizerRule:
    """Patterns applied in turn, each within the words of the one before: a match is a word, so is a gap."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False  # a word that is itself a piece is taken whole, whatever the merges say
    adds_bos: bool = False  # where the metadata does not say

    def build(self) -> pre_tokenizers.PreTokenizer:
        """Return the rule as the library's object, which also maps bytes to the characters of pieces."""
        return pre_tokenizers.Sequence(
            [
                *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )


_DEFAULT = PreTokenizerRule((r"[\p{P}$+<=>^~|]+", _GPT2_WORDS, r"\p{N}+", r"[0-9][0-9][0-9]"))
_SINGLE_DIGITS = PreTokenizerRule((r"\p{N}", _GPT2_WORDS))
_GPT_2 = PreTokenizerRule((_GPT2_WORDS,))
_LLAMA_3 = PreTokenizerRule((_cl100k_words(r"\p{N}{1,3}"),), ignore_merges=True, adds_bos=True)
_QWEN_2 = PreTokenizerRule((_cl100k_words(r"\p{N}"),))

_RULES = {
    "default": _DEFAULT,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "command-r": _SINGLE_DIGITS,
    "codeshell": _SINGLE_DIGITS,
    "exaone": _SINGLE_DIGITS,
    "minerva-7b": _SINGLE_DIGITS,
    "gpt-2": _GPT_2,
    "phi-2": _GPT_2,
    "mpt": _GPT_2,
    "olmo": _GPT_2,
    "jais": _GPT_2,
    "exaone4": _GPT_2,
    "llama-bpe": _LLAMA_3,
    "llama3": _LLAMA_3,
    "llama-v3": _LLAMA_3,
    "falcon3": _LLAMA_3,
    "pixtral": _LLAMA_3,
    "lfm2": _LLAMA_3,
    "qwen2": _QWEN_2,
    "deepseek-r1-qwen": _QWEN_2,
    "stablelm2": _QWEN_2,
    "hunyuan": _QWEN_2,
    "megrez": _QWEN_2,
}


def find_rule(name: str | None) -> PreTokenizerRule:
    """Return the rule of that name; for an unknown or missing one warn and return the default rule."""
    if name in _RULES:
        return _RULES[name]
    problem = f"unknown pre-tokenizer `{name}`" if name else "metadata lacks `tokenizer.ggml.pre`"
    warnings.warn(
        f"{problem}: using `default`, so token ids may differ from the model's", ModelWarning, stacklevel=2
    )
    return _DEFAULT
