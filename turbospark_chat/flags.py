"""The options that `ts chat` and `ts complete` share, as data: light enough for `ts --help`.

Each row that is an option of a turn carries the name, and the help, of its row in `chat.options.OPTIONS`, which
reads and checks the value; a test holds the two together.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. `metavar` None makes it a switch; a switch that sets an option says to what."""

    name: str
    metavar: str | None
    help: str
    option: str | None = None
    switch_value: str = "on"
    short: str | None = None
    is_repeatable: bool = False

    @property
    def spelling(self) -> str:
        """How it is typed."""
        return "--" + self.name.replace("_", "-")


def _turn_flag(name: str, metavar: str, help: str, *, is_repeatable: bool = False) -> Flag:
    return Flag(name, metavar, help, option=name, is_repeatable=is_repeatable)


FLAGS: Final = (
    Flag("model", "MODEL", "A catalogue name or the path of a GGUF file; the default is smollm2.", short="-m"),
    Flag("system", "TEXT", "The system prompt."),
    Flag("template", "FILE", "A chat template to use instead of the model's own."),
    Flag("ctx", "N", "Context length in tokens; the model's own, as far as memory allows, if not given."),
    _turn_flag(
        "temperature", "NUMBER", "Randomness: 0 always takes the likeliest token, more is more varied."
    ),
    _turn_flag("top_k", "N", "Keep only this many of the likeliest tokens; 0 or -1 is all."),
    _turn_flag(
        "top_p", "NUMBER", "Keep the fewest likeliest tokens that reach this probability together; 1 is all."
    ),
    _turn_flag(
        "min_p", "NUMBER", "Drop tokens below this fraction of the likeliest one's probability; 0 drops none."
    ),
    _turn_flag(
        "repetition_penalty", "NUMBER",
        "Make recently seen tokens less likely by this factor; 1 changes nothing.",
    ),
    _turn_flag(
        "repetition_window", "N",
        "Latest tokens, prompt included, the repetition penalty sees; -1 is all, 0 none.",
    ),
    _turn_flag(
        "presence_penalty", "NUMBER", "Subtract this from the logit of every token already in the reply."
    ),
    _turn_flag(
        "frequency_penalty", "NUMBER", "Subtract this for each time a token already occurs in the reply."
    ),
    _turn_flag(
        "logit_bias", "ID:BIAS,...", "Add to token ids' logits: ID:BIAS,...; -100 bans, 100 forces."
    ),
    _turn_flag("seed", "N", "Same seed, same reply; none takes a fresh one for every reply."),
    _turn_flag(
        "max_tokens", "N", "Most tokens of a reply; none lets it run to the end of the context."
    ),
    _turn_flag("stop", "TEXT", "End a reply where this text would begin.", is_repeatable=True),
    _turn_flag(
        "on_overflow", "drop|error|ask",
        "When the context is full: drop the oldest exchanges, refuse, or ask.",
    ),
    Flag(
        "keep_reasoning", None, "Give the model its own thinking back in later turns.", option="keep_reasoning"
    ),
    Flag(
        "no_reuse", None,
        "Compute every prompt from its first token instead of continuing from the KV cache.",
        option="reuse", switch_value="off",
    ),
    _turn_flag(
        "power_profile", "performance|balanced|efficiency",
        "performance runs flat out, balanced slows under pressure, efficiency keeps to 10 tokens a second.",
    ),
    _turn_flag("max_tokens_per_sec", "NUMBER", "Write at most this many tokens a second."),
    Flag("threads", "N", "Threads to compute with; one for each core, if not given."),
    Flag("json", None, "Print one JSON object a turn instead of text."),
    Flag("quiet", None, "Nothing on stderr but errors.", short="-q"),
    Flag("debug", None, "Show a traceback where something goes wrong."),
)  # fmt: skip
