"""The flags of `ts chat` and `ts complete`, as data: light enough for `ts --help` and for a shell's completion.

A flag that is a setting may also be set by the config file and by a variable, under the same name. Each row that is an
option of a turn or of the screen carries the help of its row in `chat.options` or `terminal.interface_options`, which
reads and checks the value; tests hold the two together.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

BOTH: Final = ("chat", "complete")
CHAT: Final = ("chat",)
COMPLETE: Final = ("complete",)


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag. `metavar` None makes it a switch; `table` says which table of options has a row of its name."""

    name: str
    metavar: str | None
    help: str
    commands: tuple[str, ...] = BOTH
    table: Literal["turn", "interface"] | None = None
    is_setting: bool = True  # False: belongs to one run, so neither the config file nor a variable may set it
    short: str | None = None
    is_repeatable: bool = False
    implied: str | None = None  # what it is worth without a value; None: it needs one

    @property
    def spelling(self) -> str:
        """How it is typed; of a pair, how it is switched on."""
        return "--" + self.name.replace("_", "-")

    @property
    def is_pair(self) -> bool:
        """Whether it can be switched on and off: a switch that the config file may have set."""
        return self.metavar is None and self.is_setting

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every way to type it: short, long, and of a pair off."""
        off = (self.spelling.replace("--", "--no-", 1),) if self.is_pair else ()
        return (*((self.short,) if self.short else ()), self.spelling, *off)

    @property
    def is_text(self) -> bool:
        """Whether its value is any text, so that a number in its place is a slip nobody else would notice."""
        return self.metavar in ("MODEL", "TEXT", "FILE")

    @property
    def choices(self) -> tuple[str, ...]:
        """The values there are to choose from, where they are few."""
        return tuple(self.metavar.split("|")) if self.metavar and "|" in self.metavar else ()

    @property
    def variable(self) -> str:
        """The environment variable that sets it, if it is a setting."""
        return "TS_" + self.name.upper()


def _turn(name: str, metavar: str | None, help: str, *, is_repeatable: bool = False) -> Flag:
    return Flag(name, metavar, help, table="turn", is_repeatable=is_repeatable)


def _interface(name: str, metavar: str | None, help: str, *, commands: tuple[str, ...] = CHAT) -> Flag:
    return Flag(name, metavar, help, table="interface", commands=commands)


FLAGS: Final = (
    Flag("model", "MODEL", "A catalogue name or the path of a GGUF file; the default is smollm2.", short="-m"),
    Flag("system", "TEXT", "The system prompt."),
    Flag("template", "FILE", "A chat template to use instead of the model's own."),
    Flag("ctx", "N", "Context length in tokens; the model's own, as far as memory allows, if not given."),
    Flag(
        "file", "FILE", "A text file that goes with the first message; may be given more than once.",
        short="-f", is_repeatable=True, is_setting=False,
    ),
    Flag(
        "resume", "[ID[@TURN]]",
        "Go on with a stored conversation, or its first turns; with the last one if not given.",
        commands=CHAT, is_setting=False, implied="last",
    ),
    _turn(
        "temperature", "NUMBER", "Randomness: 0 always takes the likeliest token, more is more varied."
    ),
    _turn("top_k", "N", "Keep only this many of the likeliest tokens; 0 or -1 is all."),
    _turn(
        "top_p", "NUMBER", "Keep the fewest likeliest tokens that reach this probability together; 1 is all."
    ),
    _turn(
        "min_p", "NUMBER", "Drop tokens below this fraction of the likeliest one's probability; 0 drops none."
    ),
    _turn(
        "repetition_penalty", "NUMBER",
        "Make recently seen tokens less likely by this factor; 1 changes nothing.",
    ),
    _turn(
        "repetition_window", "N",
        "Latest tokens, prompt included, the repetition penalty sees; -1 is all, 0 none.",
    ),
    _turn(
        "presence_penalty", "NUMBER", "Subtract this from the logit of every token already in the reply."
    ),
    _turn(
        "frequency_penalty", "NUMBER", "Subtract this for each time a token already occurs in the reply."
    ),
    _turn(
        "logit_bias", "ID:BIAS,...", "Add to token ids' logits: ID:BIAS,...; -100 bans, 100 forces."
    ),
    _turn("seed", "N", "Same seed, same reply; none takes a fresh one for every reply."),
    _turn(
        "max_tokens", "N", "Most tokens of a reply; none lets it run to the end of the context."
    ),
    _turn("stop", "TEXT", "End a reply where this text would begin.", is_repeatable=True),
    _turn(
        "on_overflow", "drop|error|ask",
        "When the context is full: drop the oldest exchanges, refuse, or ask.",
    ),
    _turn("keep_reasoning", None, "Give the model its own thinking back in later turns."),
    _turn(
        "reuse", None, "Continue from the KV cache; off computes every prompt from its first token."
    ),
    _turn(
        "power_profile", "performance|balanced|efficiency",
        "performance runs flat out, balanced slows under pressure, efficiency keeps to 10 tokens a second.",
    ),
    _turn("max_tokens_per_sec", "NUMBER", "Write at most this many tokens a second."),
    _turn(
        "speculate", "N",
        "Guess up to so many next tokens from the text so far and check them at once; auto: as many as pay.",
    ),
    _turn(
        "max_thinking_tokens", "N",
        "End the model's thinking after this many tokens and let it answer; none lets it think on.",
    ),
    _turn(
        "think_tags", "'OPEN CLOSE'", "Tags around the model's thinking; none takes those its template mentions."
    ),
    Flag("threads", "N", "Threads to compute with; one for each core, if not given."),
    Flag(
        "slots", "N",
        "Other conversations and branches whose computed state stays in memory; 4 if not given, 0 keeps none.",
        commands=CHAT,
    ),
    Flag(
        "window_slack", "N",
        "Tokens that a model with sliding windows can go back at once; 512 if not given.",
    ),
    Flag(
        "state_budget", "MB",
        "Disk space for what was computed, so that it need not be again; 1024 if not given, 0 keeps none.",
    ),
    _interface(
        "think", "show|fold|hide", "Show the model's thinking, fold it to one line, or hide it.", commands=BOTH
    ),
    _interface("save", None, "Store the conversation as it goes, to be resumed and searched."),
    _interface("markdown", None, "Style the Markdown of replies; off shows them as they are written."),
    _interface("toolbar", None, "Show the status bar below the input."),
    _interface("editing", "emacs|vi", "The keys that edit the input."),
    _interface("theme", "default|dark|light|plain", "The colours of the screen; plain has none."),
    _interface("eager", None, "Let the model read what is typed before it is sent, while it is idle."),
    Flag(
        "n", "N", "Give so many answers, one after another.", commands=COMPLETE, is_setting=False
    ),
    Flag(
        "prefix_cache", "NAME",
        "Keep what was computed of the prompt under a name, and begin from it the next time.",
        commands=COMPLETE, is_setting=False,
    ),
    Flag(
        "raw", None, "Feed the text as it is, without the chat template.", commands=COMPLETE, is_setting=False
    ),
    Flag("json", None, "Print one JSON object a turn instead of text.", is_setting=False),
    Flag("stream", None, "With --json, print an object for every token too.", is_setting=False),
    Flag("quiet", None, "Nothing on stderr but errors.", short="-q", is_setting=False),
    Flag("debug", None, "Show a traceback where something goes wrong.", is_setting=False),
)  # fmt: skip

SETTINGS: Final[Mapping[str, Flag]] = MappingProxyType({flag.name: flag for flag in FLAGS if flag.is_setting})
"""What the config file and the environment may set, by name."""


def flags_of(command: str) -> tuple[Flag, ...]:
    """Return the flags that a command takes."""
    return tuple(flag for flag in FLAGS if command in flag.commands)
