"""The spellings that control tokens go by across models, for files whose metadata does not name or flag them.

Knows no vocabulary. Most are those ggml-org/llama.cpp looks for (src/llama-vocab.cpp at 00ad355).
"""

import re

END_OF_TURN_NAMES = frozenset(
    {
        "<|im_end|>",
        "<|eot_id|>",
        "<|eot|>",
        "<end_of_turn>",
        "<turn|>",
        "<|end|>",
        "<|return|>",
        "<|END_OF_TURN_TOKEN|>",
        "<EOT>",
        "[EOT]",
        "<end_of_utterance>",
    }
)
END_OF_SEQUENCE_NAMES = frozenset(
    {"<|endoftext|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "<eos>", "[EOS]", "</s>"}
)
TOOL_CALL_NAMES = frozenset({"<|eom_id|>", "<|call|>", "<|calls|>"})

# Control on the way in, but part of what a reply says: whoever reads the text splits it at these.
VISIBLE_NAMES = frozenset(
    {
        "<think>",
        "</think>",
        "<thinking>",
        "</thinking>",
        "<|think|>",
        "<|/think|>",
        "[THINK]",
        "[/THINK]",
        "<tool_call>",
        "</tool_call>",
        "<tool_response>",
        "</tool_response>",
    }
)

_OTHER_NAMES = frozenset({"<bos>", "<start_of_turn>", "<|turn>", "[INST]", "[/INST]"})
_KNOWN_NAMES = (
    END_OF_TURN_NAMES | END_OF_SEQUENCE_NAMES | TOOL_CALL_NAMES | VISIBLE_NAMES | _OTHER_NAMES
) - {"</s>"}  # where it is not flagged it is markup: Gemma has pieces for HTML's tags, <s> among them
_CONTROL_FORM = re.compile(r"<\|[^\s<>|]+\|>|<｜[^\s<>｜]+｜>")


def is_control_name(piece: str) -> bool:
    """Whether a piece must be a control token, flagged or not: by its name, or by the form `<|…|>`."""
    return piece in _KNOWN_NAMES or (piece.startswith("<") and _CONTROL_FORM.fullmatch(piece) is not None)
