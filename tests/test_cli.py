"""The command line without a terminal, in this process: exit codes, streams, help, and that every flag does something.

The model is tiny and babbles; what is asserted is what the flags do to its babble.
"""

import errno
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from terminal_driver import TS, Picture, Terminal, environment, objects, run_ts
from tiny_model import CHATML, COMPILED_SIZES, write_tiny_model

from turbospark_chat import assembly, cli
from turbospark_chat.chat.store import Store
from turbospark_chat.command_line.flag_parameters import with_implied_values
from turbospark_chat.config.flags import FLAGS, SETTINGS, flags_of
from turbospark_chat.errors import DownloadError
from turbospark_chat.models import retention, sealed_file
from turbospark_chat.models.catalog import CATALOG
from turbospark_chat.models.loader import Arithmetic, load_model
from turbospark_chat.settings import (
    ARITHMETIC_VARIABLE,
    CACHE_DIR_VARIABLE,
    CONFIG_VARIABLE,
    Locations,
)
from turbospark_chat.threads import physical_cores

LETTERS = "'abcdefgh':100"  # as a bias: replies are of these letters, and only a limit ends them


@dataclass(frozen=True)
class Outcome:
    """What came of a command."""

    code: int
    out: str
    err: str

    @property
    def turns(self) -> list[dict[str, Any]]:
        return objects(self.out)


Run = Callable[..., Outcome]


@pytest.fixture
def ts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `ts` with arguments, and bytes on its stdin."""

    def run(*arguments: str | Path, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        code = cli.run([str(argument) for argument in arguments])
        return Outcome(code, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def kernels_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a tiny model that kernels take."""
    path = tmp_path_factory.mktemp("models") / "kernels.gguf"
    return write_tiny_model(path, kind="Q4_1", sizes=COMPILED_SIZES)


@pytest.fixture
def complete(ts: Run, tiny_path: Path) -> Run:
    """Complete a message with the tiny model; `turns` has the one JSON object."""

    def run(*flags: str, prompt: str = "hello") -> Outcome:
        outcome = ts(
            "complete", "-m", tiny_path, "--json", "--ctx", "1000", "--max-tokens", "40", *flags, prompt
        )
        assert (outcome.code, outcome.err) == (0, "")
        return outcome

    return run


def ids(outcome: Outcome) -> list[int]:
    return list(outcome.turns[0]["token_ids"])


# Help and version


def test_help_lists_every_command(ts: Run) -> None:
    outcome = ts("--help")
    assert outcome.code == 0
    for command in (
        "chat", "complete", "pull", "models", "show", "bench", "config", "history", "search", "export",
    ):  # fmt: skip
        assert f"\n  {command} " in outcome.out


@pytest.mark.parametrize("command", ["chat", "complete"])
def test_help_of_a_command_lists_every_flag(ts: Run, command: str) -> None:
    outcome = ts(command, "--help")
    assert (outcome.code, outcome.err) == (0, "")
    for flag in FLAGS:
        is_taken = command in flag.commands
        assert all((spelling in re.split(r"[\s,]+", outcome.out)) is is_taken for spelling in flag.spellings)
    assert outcome.out == ts(command, "-h").out


def test_help_comes_at_once() -> None:  # T77; test_imports says why
    def seconds() -> float:
        started = time.monotonic()
        subprocess.run([TS, "--help"], capture_output=True, check=True)
        return time.monotonic() - started

    assert any(
        seconds() < 0.3 for _ in range(20)
    )  # one quick run shows that it can be; a busy machine delays some


def test_version_is_one_line(ts: Run) -> None:
    outcome = ts("--version")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("ts ") and outcome.out.count("\n") == 1


def test_without_a_command_it_is_a_chat(ts: Run, tiny_path: Path) -> None:
    flags = ("-m", tiny_path, "--json", "--temperature", "0", "--max-tokens", "3")
    alone, named = ts(*flags, stdin=b"hello\n"), ts("chat", *flags, stdin=b"hello\n")
    assert ids(alone) == ids(named)


# Complaints: one line on stderr, nothing on stdout, an exit code


def damaged_files(folder: Path, sound: Path) -> dict[str, Path]:
    """Return a file, or none, for every kind of damage."""
    whole = sound.read_bytes()
    contents = {
        "empty.gguf": b"",
        "text.gguf": b"To be, or not to be.",
        "cut.gguf": whole[: len(whole) // 2],
        "header.gguf": whole[:30],
        "other.gguf": whole.replace(b"llama", b"mamba"),
        "zeros.gguf": bytes(1000),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return {name: folder / name for name in contents} | {
        "a folder": folder,
        "no such file": folder / "gone.gguf",
        "no such name": Path("nonesuch"),
    }


@pytest.mark.parametrize("command", [("complete", "hello", "-m"), ("chat", "-m"), ("show",), ("bench",)])
def test_whatever_is_wrong_with_a_model_file_is_one_line_and_exit_code_3(
    ts: Run, tmp_path: Path, tiny_path: Path, command: tuple[str, ...]
) -> None:  # T86, 19, F14
    for damage, path in damaged_files(tmp_path, tiny_path).items():
        outcome = ts(*command, path, stdin=b"hello\n")
        if command == ("show",) and damage == "other.gguf":
            assert outcome.code == 0 and "runs here" in outcome.out and "mamba" in outcome.out
            continue
        assert (outcome.code, outcome.out) == (3, ""), damage
        assert_is_one_error(outcome.err)


def assert_is_one_error(err: str) -> None:
    assert err.startswith("error: ") and err.endswith("\n") and err.count("\n") == 1, err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("bogus", "No such command 'bogus'"),
        ("complete --bogus hi", "No such option: --bogus"),
        ("complete -m", "'-m' requires an argument"),
        ("complete -m {tiny} hi there", "unexpected extra argument"),
        ("chat hello", "unexpected extra argument"),
        ("chat --raw", "No such option: --raw"),
        ("show", "Missing argument 'MODEL'"),
        ("complete -m {tiny}", "nothing to answer"),
        ("complete -m {tiny} --raw --system x hi", "`--raw` uses no template"),
        ("complete -m {tiny} --on-overflow ask hi", "is for the chat"),
        ("chat -m {tiny} --on-overflow ask", "needs a terminal"),
        ("complete -m {tiny} --on-overflow drip hi", "on_overflow is 'drip': give one of drop, error, ask"),
        ("complete -m {tiny} --power-profile max hi", "power_profile is 'max': give one of performance"),
        ("complete -m {tiny} --temperature hot hi", "temperature is 'hot': give a number, 0 to 100"),
        ("complete -m {tiny} --temperature -1 hi", "temperature is -1.0: give a number, 0 to 100"),
        ("complete -m {tiny} --temperature nan hi", "temperature is nan"),
        ("complete -m {tiny} --top-p 1.1 hi", "top_p is 1.1: give a number, 0 to 1"),
        ("complete -m {tiny} --seed -1 hi", "seed is -1"),
        ("complete -m {tiny} --max-tokens -1 hi", "max_tokens is -1"),
        ("complete -m {tiny} --max-tokens-per-sec 0 hi", "max_tokens_per_sec is 0.0"),
        ("complete -m {tiny} --logit-bias 9999:1 hi", "logit_bias names token id 9999"),
        ("complete -m {tiny} --ctx 0 hi", "ctx is '0'"),
        ("complete -m {tiny} --stream hi", "`--stream` is about the objects of `--json`"),
        ("complete -m {tiny} --think no hi", "think is 'no': give one of show, fold, hide"),
        ("chat -m {tiny} --theme drak", "theme is 'drak': give one of default, dark, light, plain"),
        ("chat -m {tiny} --editing joe", "editing is 'joe': give emacs or vi"),
        ("complete -m {tiny} --theme dark hi", "No such option: --theme"),
        ("complete -m {tiny} --resume hi", "No such option: --resume"),
        ("chat -m {tiny} --n 2", "No such option: --n"),
        ("complete -m {tiny} --n 0 hi", "n is '0': give a whole number from 1 to 1000"),
        ("complete -m {tiny} --n -1 hi", "n is '-1'"),
        ("complete -m {tiny} --n 1001 hi", "n is '1001'"),
        ("complete -m {tiny} --n few hi", "n is 'few'"),
        ("config extra", "unexpected extra argument"),
        ("search", "Missing argument 'TEXT'"),
        ("export", "Missing argument 'ID'"),
        ("history --delete last", "`--delete last`: give the number of a conversation"),
        ("history --delete 1@2", "`--delete 1@2`: give the number of a conversation"),
        ("complete -m {tiny} --ctx many hi", "ctx is 'many'"),
        ("complete -m {tiny} --ctx 99999999 hi", "ctx is 99999999: give 1 to "),
    ],
)
def test_what_cannot_be_meant_is_one_line_and_exit_code_2(
    ts: Run, tiny_path: Path, arguments: str, problem: str
) -> None:  # T14, H14
    outcome = ts(*(part.format(tiny=tiny_path) for part in arguments.split()))
    assert (outcome.code, outcome.out) == (2, "")
    assert_is_one_error(outcome.err)
    assert problem in outcome.err


def test_an_empty_model_is_no_model(ts: Run) -> None:  # `-m "$UNSET"` must not quietly be the default
    outcome = ts("complete", "-m", "", "hi")
    assert (outcome.code, outcome.out) == (3, "")
    assert_is_one_error(outcome.err)


def test_an_empty_stop_string_is_refused(ts: Run, tiny_path: Path) -> None:  # C4
    outcome = ts("complete", "-m", tiny_path, "--stop", "", "hi")
    assert outcome.code == 2
    assert_is_one_error(outcome.err)


def test_pulling_what_the_catalogue_has_not_names_what_it_has(ts: Run) -> None:
    outcome = ts("pull", "nonesuch")
    assert (outcome.code, outcome.out) == (3, "")
    assert_is_one_error(outcome.err)
    assert "smollm2" in outcome.err


def test_a_download_that_fails_is_one_line_and_exit_code_1(
    ts: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*arguments: object, **options: object) -> Path:
        raise DownloadError("cannot fetch smollm2: no network")

    monkeypatch.setenv("TS_MODELS_DIR", str(tmp_path))
    monkeypatch.setattr("turbospark_chat.command_line.model_files.pull", fail)
    outcome = ts("complete", "-q", "hi")
    assert (outcome.code, outcome.out) == (1, "")
    assert_is_one_error(outcome.err)


def test_a_prompt_that_is_too_long_says_both_numbers_and_is_exit_code_4(
    ts: Run, tiny_path: Path
) -> None:  # T62
    outcome = ts("complete", "-m", tiny_path, "--ctx", "50", "--max-tokens", "8", "x" * 100)
    assert (outcome.code, outcome.out) == (4, "")
    assert_is_one_error(outcome.err)
    n_prompt = len(f"user\n{'x' * 100}\nassistant\n") + 3  # three control tokens
    assert f"{n_prompt} prompt tokens and 8 for the reply exceed 50" in outcome.err and "--ctx" in outcome.err


def test_a_cache_larger_than_the_memory_is_refused_before_any_work(
    ts: Run, tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # T68, G6
    readings = iter([10**9, 10])  # for the weights, then for the cache
    opened = partial(assembly.open_chat_model, free_memory=lambda: next(readings))
    monkeypatch.setattr("turbospark_chat.command_line.launch.open_chat_model", opened)
    outcome = ts("complete", "-m", tiny_path, "--ctx", "4000", "hi")
    assert (outcome.code, outcome.out) == (4, "")
    assert_is_one_error(outcome.err)
    assert "a KV cache of 21 positions needs" in outcome.err


@pytest.mark.parametrize("fault", [RuntimeError("odd\n  thing"), MemoryError()])
def test_even_what_nobody_foresaw_is_one_line(
    ts: Run, tiny_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise fault

    monkeypatch.setattr("turbospark_chat.command_line.launch.open_chat_model", fail)
    outcome = ts("complete", "-m", tiny_path, "hi")
    assert (outcome.code, outcome.out) == (4 if isinstance(fault, MemoryError) else 1, "")
    assert_is_one_error(outcome.err)


def test_a_template_that_raises_is_shown_in_its_own_words(ts: Run, tmp_path: Path) -> None:  # T73
    template = "{{ raise_exception('only poems, please') }}"
    path = write_tiny_model(tmp_path / "poet.gguf", tokenizer__chat_template=template)
    outcome = ts("complete", "-m", path, "hi")
    assert (outcome.code, outcome.out) == (1, "")
    assert_is_one_error(outcome.err)
    assert "only poems, please" in outcome.err


# Every flag has an effect (T14, T26)

TESTED: set[str] = set()


def effect_of(name: str) -> Callable[[Any], Any]:
    """Note that a test shows the effect of a flag."""
    TESTED.add(name)
    return lambda test: test


def test_every_flag_has_a_test_that_its_effect_occurs() -> None:
    assert {flag.name for flag in FLAGS} == TESTED


GREEDY = ("--temperature", "0")
HOT = ("--temperature", "5", "--min-p", "0", "--top-p", "1", "--top-k", "0")


@effect_of("model")
def test_model_is_the_file_that_answers(ts: Run, tiny_path: Path, tmp_path: Path) -> None:
    other = write_tiny_model(tmp_path / "other.gguf", seed=1)
    answers = [ts("complete", "-m", path, "--json", *GREEDY, "hello") for path in (tiny_path, other)]
    assert [answer.turns[0]["model"] for answer in answers] == ["tiny", "other"]
    assert ids(answers[0]) != ids(answers[1])


@effect_of("temperature")
def test_temperature_0_is_the_same_whatever_the_seed_and_more_is_not(complete: Run) -> None:
    assert ids(complete(*GREEDY, "--seed", "1")) == ids(complete(*GREEDY, "--seed", "2"))
    assert ids(complete(*HOT, "--seed", "1")) != ids(complete(*HOT, "--seed", "2"))


@effect_of("seed")
def test_a_seed_gives_the_same_reply_again_and_none_another(complete: Run) -> None:  # D11
    assert ids(complete(*HOT, "--seed", "0")) == ids(complete(*HOT, "--seed", "0"))
    assert ids(complete(*HOT)) != ids(complete(*HOT))


@effect_of("top_k")
@effect_of("top_p")
@effect_of("min_p")
@pytest.mark.parametrize("narrowest", [("--top-k", "1"), ("--top-p", "0"), ("--min-p", "1")])
def test_the_narrowest_choice_is_the_likeliest_token(complete: Run, narrowest: tuple[str, str]) -> None:
    assert ids(complete(*HOT, *narrowest)) == ids(complete(*GREEDY))


@effect_of("repetition_penalty")
@effect_of("repetition_window")
def test_repetition_is_penalised_as_far_back_as_the_window(complete: Run) -> None:
    def n_repeated(*flags: str) -> int:
        found = ids(complete(*GREEDY, "--logit-bias", LETTERS, *flags))
        return sum(token in found[max(0, at - 3) : at] for at, token in enumerate(found))

    assert n_repeated("--repetition-penalty", "100", "--repetition-window", "3") == 0
    assert n_repeated("--repetition-penalty", "100", "--repetition-window", "0") == n_repeated() > 0


@effect_of("presence_penalty")
@effect_of("frequency_penalty")
@pytest.mark.parametrize("name", ["presence", "frequency"])
def test_penalties_change_what_is_said_and_negative_ones_the_other_way(complete: Run, name: str) -> None:
    n_different = [
        len(set(ids(complete(*GREEDY, "--logit-bias", LETTERS, f"--{name}-penalty", value))))
        for value in ("2", "-2")
    ]
    assert n_different[0] > n_different[1]


@effect_of("logit_bias")
@pytest.mark.parametrize("bias", ["'a':100", '"a":100', "66:100", "{66:100}"])
def test_a_bias_forces_a_token_named_by_text_or_id(complete: Run, bias: str) -> None:  # D13
    assert complete("--logit-bias", bias).turns[0]["reply"] == "a" * 40


@effect_of("max_tokens")
@pytest.mark.parametrize("limit", [1, 7])
def test_max_tokens_ends_the_reply_and_is_named_as_the_reason(complete: Run, limit: int) -> None:  # T69, C11
    turn = complete("--logit-bias", LETTERS, "--max-tokens", str(limit)).turns[0]
    assert (turn["new_tokens"], turn["reason"]) == (limit, "max_tokens")


def test_without_max_tokens_a_reply_runs_to_the_end_of_the_context(complete: Run) -> None:  # T69
    turn = complete("--logit-bias", LETTERS, "--max-tokens", "none", "--ctx", "300").turns[0]
    assert (turn["prompt_tokens"] + turn["new_tokens"], turn["reason"]) == (300, "max_tokens")


@effect_of("stop")
def test_a_reply_ends_where_a_stop_string_would_begin(complete: Run) -> None:  # T70, T71
    babble = (*GREEDY, "--logit-bias", LETTERS)
    whole = complete(*babble).turns[0]["reply"]
    for stops in ([whole[9:12]], ["zzz", whole[20:23], whole[7:9]]):
        turn = complete(*babble, *(part for stop in stops for part in ("--stop", stop))).turns[0]
        first_end = min(whole.find(stop) + len(stop) for stop in stops if stop in whole)
        stopped_by = next(stop for stop in stops if whole[:first_end].endswith(stop))
        assert turn["reply"] == whole[: first_end - len(stopped_by)]
        assert turn["reason"] == "stop_string"


@effect_of("system")
def test_system_puts_the_system_prompt_into_the_prompt(complete: Run) -> None:
    more = len("system\nBe brief\n") + 2  # two control tokens
    assert (
        complete("--system", "Be brief").turns[0]["prompt_tokens"]
        == complete().turns[0]["prompt_tokens"] + more
    )


@effect_of("threads")
def test_threads_is_what_blas_is_told(complete: Run) -> None:
    complete("--threads", "3")
    assert os.environ["OPENBLAS_NUM_THREADS"] == "3"


@effect_of("threads")
@pytest.mark.parametrize("command", ["complete", "chat"])
@pytest.mark.parametrize(
    ("flags", "arithmetic"),
    [
        (("--threads", "1"), "compiled, 1 thread"),
        (("--threads", "3"), "compiled, 3 threads"),
        ((), f"compiled, {physical_cores()} thread{'s' * (physical_cores() > 1)}"),
    ],
    ids=["one", "three", "a thread for each core"],
)
def test_threads_is_on_how_many_the_kernels_run(
    ts: Run, kernels_path: Path, command: str, flags: tuple[str, ...], arithmetic: str
) -> None:
    outcome = ts(command, "-m", kernels_path, "--json", "--max-tokens", "2", *flags, stdin=b"hello\n")
    assert (outcome.code, outcome.err) == (0, "")
    assert [turn["arithmetic"] for turn in outcome.turns] == [arithmetic]


def test_however_many_threads_the_reply_is_the_same(ts: Run, kernels_path: Path) -> None:
    flags = ("complete", "-m", kernels_path, "--json", *GREEDY, "--max-tokens", "30", "hello")
    replies = [ids(ts(*flags, "--threads", n)) for n in ("1", "2", "5")]
    assert replies[0] == replies[1] == replies[2]


@effect_of("template")
def test_template_takes_the_place_of_the_models_own(complete: Run, tmp_path: Path) -> None:
    file = tmp_path / "short.jinja"
    file.write_text("{{ messages[-1].content }}{{ '>' if add_generation_prompt }}")
    assert complete("--template", str(file)).turns[0]["prompt_tokens"] == len("hello>")


@effect_of("ctx")
@effect_of("on_overflow")
def test_on_overflow_drop_leaves_out_the_oldest_and_says_so_and_error_refuses(
    ts: Run, tiny_path: Path
) -> None:
    chat = ("chat", "-m", tiny_path, "--json", "--logit-bias", LETTERS, "--max-tokens", "10", "--ctx", "120")
    lines = b"a message of some length\n" * 3
    dropped = ts(*chat, stdin=lines)  # T63, T65
    assert dropped.code == 0
    assert [turn["truncated"] for turn in dropped.turns] == [False, False, True]
    assert [turn["dropped_turns"] for turn in dropped.turns] == [0, 0, 1]
    assert dropped.turns[2]["dropped_tokens"] > 0
    assert dropped.err.count("\n") == 1 and "1 exchange dropped" in dropped.err
    refused = ts(*chat, "--on-overflow", "error", stdin=lines)
    assert (refused.code, refused.err) == (4, "")
    assert [event["event"] for event in refused.turns] == ["turn", "turn", "error"]
    message = refused.turns[2]["message"]
    assert "exceed 120" in message and "--on-overflow drop" in message
    in_text = ts(*(flag for flag in chat if flag != "--json"), "-q", "--on-overflow", "error", stdin=lines)
    assert (in_text.code, in_text.err) == (4, f"error: {message}\n")


@effect_of("reuse")
def test_no_reuse_computes_every_prompt_from_its_first_token_with_the_same_reply(
    ts: Run, tiny_path: Path
) -> None:  # T55, T61
    chat = ("chat", "-m", tiny_path, "--json", *GREEDY, "--max-tokens", "30")
    warm, cold = (ts(*chat, *flags, stdin=b"one\ntwo\nthree\n").turns for flags in ((), ("--no-reuse",)))
    assert [turn["token_ids"] for turn in warm] == [turn["token_ids"] for turn in cold]
    assert [turn["reused_prefix_tokens"] for turn in cold] == [0, 0, 0]
    assert all(turn["reused_prefix_tokens"] > 20 for turn in warm[1:])


THINKING = CHATML.replace("assistant\n{% endif", "assistant\n<think>\n{% endif") + "{# </think> #}"


@effect_of("keep_reasoning")
def test_keep_reasoning_gives_thinking_back_so_that_none_of_it_is_computed_again(
    ts: Run, tmp_path: Path
) -> None:
    path = write_tiny_model(tmp_path / "thinker.gguf", context_length=4096, tokenizer__chat_template=THINKING)
    chat = ("chat", "-m", path, "--json", *GREEDY, "--max-tokens", "30", "--logit-bias", LETTERS)
    kept, dropped = (ts(*chat, *flags, stdin=b"one\ntwo\n").turns for flags in (("--keep-reasoning",), ()))
    assert kept[0]["reply"] == "" and len(kept[0]["reasoning"]) == 30  # T74: the prompt opened the thought
    assert kept[1]["reused_prefix_tokens"] == kept[0]["kv_position"]
    assert dropped[1]["reused_prefix_tokens"] < dropped[0]["prompt_tokens"]


@effect_of("power_profile")
@effect_of("max_tokens_per_sec")
@pytest.mark.parametrize(
    ("slow", "rate"),
    [(("--power-profile", "efficiency"), 10), (("--max-tokens-per-sec", "40"), 40)],
)
def test_a_cap_slows_a_reply_down_and_changes_no_token(
    complete: Run, slow: tuple[str, str], rate: int
) -> None:
    flags = (*GREEDY, "--logit-bias", LETTERS, "--max-tokens", "6")
    fast, paced = complete(*flags), complete(*flags, *slow)
    assert ids(fast) == ids(paced)
    assert paced.turns[0]["decode_seconds"] >= 4 / rate * 0.99 > fast.turns[0]["decode_seconds"]


@effect_of("json")
def test_json_is_one_object_a_turn_with_what_the_cache_did(ts: Run, tiny_path: Path) -> None:  # T57, T6
    chat = ("chat", "-m", tiny_path, "--json", *GREEDY, "--max-tokens", "9", "--logit-bias", LETTERS)
    outcome = ts(*chat, stdin=b"one\ntwo\n")
    assert (outcome.code, outcome.err) == (0, "")
    first, second = outcome.turns
    assert first.keys() >= {
        "reply", "reason", "token_ids", "prompt_tokens", "reused_prefix_tokens", "new_tokens", "prefill_seconds",
        "decode_seconds", "kv_position", "peak_memory_pressure", "model",
    }  # fmt: skip
    for turn in (first, second):
        assert turn["new_tokens"] == len(turn["token_ids"]) == len(turn["reply"]) == 9
        assert turn["reused_prefix_tokens"] + turn["prefilled_tokens"] == turn["prompt_tokens"]
        assert turn["kv_position"] == turn["prompt_tokens"] + 8  # the last token was never fed
    assert second["reused_prefix_tokens"] >= first["prompt_tokens"] + first["new_tokens"] - 1  # T52


@effect_of("quiet")
def test_quiet_leaves_the_reply_on_stdout_and_nothing_on_stderr(ts: Run, tiny_path: Path) -> None:  # T24
    flags = ("complete", "-m", tiny_path, "--logit-bias", "'a':100", "--max-tokens", "5", "hello")
    assert ts(*flags, "-q") == Outcome(0, "aaaaa\n", "")
    assert ts(*flags) == Outcome(0, "aaaaa\n", "[reached the limit of 5 tokens: max_tokens]\n")  # T69


@effect_of("debug")
def test_debug_shows_where_it_went_wrong(ts: Run) -> None:
    outcome = ts("complete", "-m", "nonesuch", "--debug", "hello")
    assert outcome.code == 3
    assert outcome.err.startswith("Traceback") and "\nerror: nonesuch: " in outcome.err


@effect_of("raw")
def test_raw_feeds_the_text_as_it_is_control_tokens_parsed(ts: Run, tiny_path: Path) -> None:
    flags = ("complete", "-m", tiny_path, "--json", *GREEDY, "--max-tokens", "3")
    raw = ts(*flags, "--raw", "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert raw.turns == [{**ts(*flags, "hi").turns[0], **timed(raw.turns[0])}]
    assert ts(*flags, "--raw", "<|im_start|>").turns[0]["prompt_tokens"] == 1
    assert ts(*flags, "--raw", "hi", stdin=b"\n").turns[0]["prompt_tokens"] == len(
        "hi\n\n"
    )  # all of it counts


@effect_of("file")
@pytest.mark.parametrize("spelling", ["-f", "--file"])
def test_files_go_framed_before_the_prompt(
    ts: Run, complete: Run, tiny_path: Path, tmp_path: Path, spelling: str
) -> None:
    (tmp_path / "one.txt").write_text("eggs\n")
    (tmp_path / "two.md").write_text("milk, `x`")
    files = (spelling, tmp_path / "one.txt", spelling, tmp_path / "two.md")
    message = "one.txt:\n```\neggs\n```\n\ntwo.md:\n```\nmilk, `x`\n```\n\nWhat to buy?"
    expected = complete(*GREEDY, prompt=message)
    assert ids(complete(*GREEDY, *map(str, files), prompt="What to buy?")) == ids(expected)
    chat = ("chat", "-m", tiny_path, "--json", *GREEDY, "--max-tokens", "40")
    first, second = ts(*chat, *files, stdin=b"What to buy?\nAnd?\n").turns
    assert first["token_ids"] == ids(expected)
    assert second["prefilled_tokens"] < len(message)  # they go once


@pytest.mark.parametrize("command", ["chat", "complete"])
@pytest.mark.parametrize(
    ("name", "content"), [("gone.txt", None), ("picture.png", b"\x89PNG\0"), ("a folder", b"")]
)
def test_a_file_that_is_no_text_is_refused_before_any_work(
    ts: Run, tmp_path: Path, command: str, name: str, content: bytes | None
) -> None:
    path = tmp_path if name == "a folder" else tmp_path / name
    if content:
        path.write_bytes(content)
    outcome = ts(command, "-m", "nonesuch", "-f", path, stdin=b"hello\n")
    assert (outcome.code, outcome.out) == (2, "")
    assert_is_one_error(outcome.err)
    assert str(path) in outcome.err


@effect_of("n")
@pytest.mark.parametrize("form", [(), ("--raw",)], ids=["message", "raw"])
def test_several_answers_are_those_of_as_many_runs_with_the_prompt_computed_once(
    complete: Run, form: tuple[str, ...]
) -> None:
    flags = (*HOT, "--max-tokens", "8", *form)
    answers = complete(*flags, "--n", "3", "--seed", "5").turns
    alone = [complete(*flags, "--n", "1", "--seed", str(seed)).turns[0] for seed in (5, 6, 7)]
    assert [answer["token_ids"] for answer in answers] == [answer["token_ids"] for answer in alone]
    assert len({tuple(answer["token_ids"]) for answer in answers}) == 3
    assert [answer["prefilled_tokens"] for answer in answers] == [answers[0]["prompt_tokens"], 1, 1]
    assert [(answer["conversation_id"], answer["turn"]) for answer in answers] == [(None, None)] * 3


def test_without_a_seed_several_answers_differ(complete: Run) -> None:
    answers = complete(*HOT, "--n", "3").turns
    assert len({tuple(answer["token_ids"]) for answer in answers}) == 3


def test_an_empty_line_stands_between_answers_in_text(ts: Run, tiny_path: Path) -> None:
    flags = ("complete", "-q", "-m", tiny_path, "--logit-bias", "'a':100", "--max-tokens", "3")
    assert ts(*flags, "--n", "3", "hello") == Outcome(0, "aaa\n\naaa\n\naaa\n", "")


@effect_of("stream")
@pytest.mark.parametrize("command", ["chat", "complete"])
def test_stream_prints_an_object_for_everything_as_it_comes(ts: Run, tiny_path: Path, command: str) -> None:
    flags = (command, "-m", tiny_path, "--json", *GREEDY, "--logit-bias", LETTERS, "--max-tokens", "9")
    streamed = ts(*flags, "--stream", stdin=b"x" * 2000 + b"\n")
    assert (streamed.code, streamed.err) == (0, "")
    (turn,) = ts(*flags, stdin=b"x" * 2000 + b"\n").turns
    *events, last = streamed.turns
    assert last == {**turn, **timed(last), "conversation_id": last["conversation_id"]}
    prefills = [event for event in events if event["event"] == "prefill"]
    tokens = events[len(prefills) :]
    assert len(prefills) > 2 and {event["event"] for event in tokens} == {"token"}
    assert [event["done"] for event in prefills] == sorted({event["done"] for event in prefills})
    assert prefills[-1]["done"] == prefills[-1]["total"] == turn["prompt_tokens"]
    assert "".join(event["text"] for event in tokens) == turn["reply"]


@pytest.fixture
def thinker_path(tmp_path: Path) -> Path:
    """Return a model whose template opens a thought, so that all of its babble is one."""
    return write_tiny_model(tmp_path / "thinker.gguf", context_length=4096, tokenizer__chat_template=THINKING)


@effect_of("think")
@pytest.mark.parametrize(("how", "err"), [("show", "aaaaa\n"), ("fold", "aaaaa\n"), ("hide", "")])
@pytest.mark.parametrize("command", ["chat", "complete"])
def test_thinking_in_a_pipe_is_on_stderr_or_nowhere(
    ts: Run, thinker_path: Path, command: str, how: str, err: str
) -> None:  # T25, T76
    flags = (command, "-m", thinker_path, "--logit-bias", "'a':100", "--max-tokens", "5", "--think", how)
    limit = "[reached the limit of 5 tokens: max_tokens]\n"
    assert ts(*flags, stdin=b"hello\n") == Outcome(0, "\n", err + limit)
    assert ts(*flags, "-q", stdin=b"hello\n") == Outcome(0, "\n", "")
    (turn,) = ts(*flags, "--json", stdin=b"hello\n").turns  # what is kept is no question of display
    assert (turn["reply"], turn["reasoning"]) == ("", "aaaaa")


@effect_of("speculate")
def test_speculate_says_the_same_and_counts_what_it_guessed(complete: Run) -> None:
    flags = (*GREEDY, "--logit-bias", "'a':100", "--max-tokens", "30")
    plain, guessing = (complete(*flags, *more).turns[0] for more in ((), ("--speculate", "4")))
    assert plain["token_ids"] == guessing["token_ids"]
    assert (plain["proposed_tokens"], plain["accepted_tokens"]) == (0, 0)
    assert guessing["proposed_tokens"] >= guessing["accepted_tokens"] > 0


@effect_of("state_budget")
def test_state_budget_is_how_much_is_kept(ts: Run, tiny_path: Path) -> None:
    for megabytes in ("0", "1"):
        flags = ("--json", "--max-tokens", "3", "--state-budget", megabytes)
        outcome = ts("chat", "-m", tiny_path, *flags, stdin=b"hello\n")
        assert (outcome.code, outcome.err) == (0, "")
        assert Locations.of_user().states.exists() is (megabytes == "1")


@effect_of("slots")
@pytest.mark.parametrize("n_slots", [0, 2])
def test_slots_keep_the_branches_that_are_left(ts: Run, tiny_path: Path, n_slots: int) -> None:
    lines = b"hello\n/branch other\non this one\n/switch main\nback again\n/switch other\nonce more\n"
    flags = ("--json", "--max-tokens", "9", "--logit-bias", LETTERS)  # no reply ends in half a character
    outcome = ts("chat", "-m", tiny_path, *flags, "--slots", str(n_slots), stdin=lines)
    turns = [event for event in outcome.turns if event["event"] == "turn"]
    is_kept = turns[3]["reused_prefix_tokens"] >= turns[1]["kv_position"]
    assert is_kept is (n_slots > 0)
    assert (turns[3]["miss"] is None) is is_kept


@effect_of("window_slack")
def test_window_slack_is_how_far_a_window_goes_back(
    ts: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # T51
    monkeypatch.setattr(retention, "GROWTH_STEP", 1)  # or many more rows are kept beside the slack
    model = write_tiny_model(
        tmp_path / "windowed.gguf", llama__attention__sliding_window=8, context_length=4096
    )
    reused, causes = {}, {}
    for slack in ("1", "900"):
        flags = ("--json", "--max-tokens", "50", "--logit-bias", LETTERS, "--window-slack", slack)
        outcome = ts("chat", "-m", model, *flags, stdin=b"hello\nthen\n/retry\n")
        turns = [event for event in outcome.turns if event["event"] == "turn"]
        reused[slack] = [turn["reused_prefix_tokens"] for turn in turns]
        causes[slack] = turns[2]["miss"] and turns[2]["miss"]["cause"]
    assert reused["1"][:2] == reused["900"][:2]
    assert reused["1"][2] == reused["1"][1]  # the checkpoint at the end of the turn before
    assert reused["900"][2] == turns[2]["prompt_tokens"] - 1
    assert causes == {"1": "refused", "900": None}


@effect_of("prefix_cache")
def test_prefix_cache_begins_from_what_was_computed_before(complete: Run) -> None:
    first, second = (complete("--prefix-cache", "greeting", *GREEDY).turns[0] for _ in range(2))
    assert (first["reused_prefix_tokens"], second["reused_prefix_tokens"]) == (0, first["prompt_tokens"] - 1)
    assert first["token_ids"] == second["token_ids"]


def test_a_prefix_cache_without_reuse_means_nothing(ts: Run, tiny_path: Path) -> None:
    outcome = ts("complete", "-m", tiny_path, "--prefix-cache", "greeting", "--no-reuse", "hi")
    assert (outcome.code, outcome.out) == (2, "")
    assert_is_one_error(outcome.err)


@effect_of("max_thinking_tokens")
@pytest.mark.parametrize("limit", [0, 4])
def test_max_thinking_tokens_ends_the_thought_and_the_answer_goes_on(
    ts: Run, thinker_path: Path, limit: int
) -> None:
    flags = ("complete", "-m", thinker_path, "--json", "--logit-bias", "'a':100", "--max-tokens", "30")
    (turn,) = ts(*flags, "--max-thinking-tokens", str(limit), "hello").turns
    assert (turn["reasoning"] or "", set(turn["reply"])) == ("a" * limit, {"a"})


def test_what_was_guessed_before_and_after_a_thought_was_ended_counts(ts: Run, thinker_path: Path) -> None:
    flags = ("complete", "-m", thinker_path, "--json", "--logit-bias", "'a':100", "--max-tokens", "40")
    (turn,) = ts(*flags, "--max-thinking-tokens", "25", "--speculate", "8", "hello").turns
    assert len(turn["reply"]) < 15 < turn["accepted_tokens"] < turn["new_tokens"]


@effect_of("think_tags")
def test_think_tags_say_what_is_thinking(ts: Run, tiny_path: Path) -> None:  # T75
    flags = ("complete", "-m", tiny_path, "--json", *GREEDY, "--logit-bias", LETTERS, "--max-tokens", "40")
    whole = ts(*flags, "hello").turns[0]["reply"]
    begin, end = whole[:2], whole[20:23]  # what it says anyway
    inside, _, answer = whole[2:].partition(end)
    (turn,) = ts(*flags, "--think-tags", f"{begin} {end}", "hello").turns
    assert (turn["reasoning"].strip(), turn["reply"].strip()) == (inside.strip(), answer.strip())


def written_in_a_terminal(path: Path, *flags: str, keys: str = "", until: str) -> tuple[Picture, str]:
    """Chat at a terminal until `until` is seen; return what is shown then, and all that was written."""
    with Terminal("chat", "-m", path, *GREEDY, *flags) as terminal:
        terminal.wait_for("/help lists commands")
        terminal.type(keys)
        return terminal.wait_for(until), terminal.written.decode()


@effect_of("markdown")
def test_markdown_is_styled_and_without_it_replies_show_as_they_are_written(ts: Run, tiny_path: Path) -> None:
    flags = ("--logit-bias", "'`a':100", "--max-tokens", "30")
    reply = ts("complete", "-m", tiny_path, "--json", *GREEDY, *flags, "hello").turns[0]["reply"]
    assert re.search("[^`]`a+`[^`]", reply)  # a piece of code within a line

    def shown(flag: str) -> str:
        return written_in_a_terminal(tiny_path, *flags, flag, keys="hello\r", until="[reached the limit")[
            0
        ].text

    assert reply in shown("--no-markdown")
    assert reply not in shown("--markdown")


@effect_of("toolbar")
@pytest.mark.parametrize(("flag", "is_there"), [("--toolbar", True), ("--no-toolbar", False)])
def test_the_toolbar_is_there_unless_it_is_not_wanted(tiny_path: Path, flag: str, is_there: bool) -> None:
    flags = ("--max-tokens", "5", "--logit-bias", LETTERS, flag)
    _, written = written_in_a_terminal(tiny_path, *flags, keys="hello\r", until="[reached the limit")
    assert (" · ctx " in written) is is_there


@effect_of("eager")
def test_eager_reads_before_anything_is_sent(tiny_path: Path) -> None:
    flags = ("--max-tokens", "5", "--logit-bias", LETTERS)
    written_in_a_terminal(tiny_path, *flags, "--eager", until=" · ahead 6 · ")
    seen, _ = written_in_a_terminal(tiny_path, *flags, "--no-eager", keys="hello\r", until=" · 5 out · ")
    assert " · reused 0/" in seen.bar


@effect_of("editing")
@pytest.mark.parametrize(
    ("editing", "keys"), [("vi", "abc\x1b0xAd"), ("emacs", "abc\x01\x04\x05d")]
)  # to the start, take a letter away, to the end, one more letter
def test_editing_says_whose_keys_edit_the_input(tiny_path: Path, editing: str, keys: str) -> None:
    seen, _ = written_in_a_terminal(tiny_path, "--editing", editing, keys=keys, until="> bcd")
    assert ("· insert" in seen.bar) is (editing == "vi")


@effect_of("theme")
def test_a_theme_has_colours_of_its_own_and_plain_has_none(tiny_path: Path) -> None:
    def colours(*flags: str) -> set[str]:
        _, written = written_in_a_terminal(tiny_path, *flags, keys="/nonsense\r", until="error: ")
        codes = {code for codes in re.findall(r"\x1b\[([\d;]*)m", written) for code in codes.split(";")}
        return {code for code in codes if code.isdecimal() and int(code) >= 30}

    assert colours("--theme", "plain") == set()
    assert colours("--theme", "default") == colours() == {"31"}  # the error
    assert "91" in colours("--theme", "dark") and "91" not in colours("--theme", "light")


def stored_turns(reference: str = "last") -> list[tuple[str, str]]:
    store = Store.open(Locations.of_user().conversations)
    try:
        turns = store.load(reference).conversation.turns
    finally:
        store.close()
    return [(turn.user.content, turn.reply.content) for turn in turns]


@effect_of("save")
def test_a_chat_is_stored_unless_it_is_not_to_be(ts: Run, tiny_path: Path) -> None:  # T79
    chat = ("chat", "-m", tiny_path, "--json", *GREEDY, "--logit-bias", LETTERS, "--max-tokens", "5")
    kept = ts(*chat, "--no-save", stdin=b"secret\n").turns
    assert kept[0]["conversation_id"] is None
    assert not Locations.of_user().conversations.exists()
    ts("complete", "-m", tiny_path, "--max-tokens", "5", "-q", "hello")
    assert not Locations.of_user().conversations.exists()  # that is the chat's
    told = ts(*chat, stdin=b"one\ntwo\n").turns
    assert [(turn["conversation_id"], turn["turn"]) for turn in told] == [(1, 1), (1, 2)]
    assert stored_turns() == [("one", told[0]["reply"]), ("two", told[1]["reply"])]


@effect_of("resume")
@pytest.mark.parametrize(
    ("flag", "turns"),
    [
        (("--resume",), ["three", "four", "and?"]),
        (("--resume", "last"), ["three", "four", "and?"]),
        (("--resume", "1"), ["one", "two", "and?"]),
        (("--resume", "1@1"), ["one", "and?"]),
        (("--resume=2",), ["three", "four", "and?"]),
    ],
    ids=" ".join,
)
def test_resume_goes_on_with_what_was_said_as_if_it_had_never_ended(
    ts: Run, tiny_path: Path, flag: tuple[str, ...], turns: list[str]
) -> None:  # T83
    chat = ("chat", "-m", tiny_path, "--json", *GREEDY, "--logit-bias", LETTERS, "--max-tokens", "9")
    for lines in (b"one\ntwo\n", b"three\nfour\n"):
        assert ts(*chat, stdin=lines).code == 0
    outcome = ts(*chat, *flag, stdin=b"and?\n")
    assert (outcome.code, outcome.err) == (0, "")
    unbroken = ts(*chat, "--no-save", stdin="".join(f"{line}\n" for line in turns).encode()).turns
    assert ids(outcome) == unbroken[-1]["token_ids"]
    assert outcome.turns[0]["turn"] == len(turns)
    assert [user for user, _ in stored_turns(str(outcome.turns[0]["conversation_id"]))] == turns


def test_a_resumed_chat_that_is_not_to_be_stored_changes_nothing(ts: Run, tiny_path: Path) -> None:
    chat = ("chat", "-m", tiny_path, "--json", *GREEDY, "--max-tokens", "9")
    ts(*chat, stdin=b"one\n")
    (turn,) = ts(*chat, "--resume", "--no-save", stdin=b"two\n").turns
    assert (turn["turn"], turn["conversation_id"]) == (2, None)
    assert [user for user, _ in stored_turns()] == ["one"]


def test_resuming_what_is_not_there_is_one_line(ts: Run, tiny_path: Path) -> None:
    outcome = ts("chat", "-m", tiny_path, "--resume", "7", stdin=b"hello\n")
    assert (outcome.code, outcome.out) == (1, "")
    assert_is_one_error(outcome.err)


# Scripts

SCRIPT = ("one", "/undo", "two", "/set max_tokens 4", "three", "/retry")


def test_a_script_gives_the_same_turns_as_text_and_as_objects(ts: Run, tiny_path: Path) -> None:  # T15
    chat = ("chat", "-m", tiny_path, *GREEDY, "--logit-bias", LETTERS, "--max-tokens", "9")
    typed = "".join(f"{line}\n" for line in SCRIPT).encode()
    told = "".join(
        json.dumps({"command" if line.startswith("/") else "content": line}) + "\n" for line in SCRIPT
    ).encode()
    text, mixed, objects_ = (
        ts(*chat, stdin=typed),
        ts(*chat, "--json", stdin=typed),
        ts(*chat, "--json", stdin=told),
    )
    turns = [turn for turn in objects_.turns if turn["event"] == "turn"]
    assert [turn["new_tokens"] for turn in turns] == [9, 9, 4, 4]
    assert text.out == "".join(f"{turn['reply']}\n" for turn in turns)
    assert "taking back 1 turn" in text.err and "answering again" in text.err
    assert [turn.get("token_ids") for turn in mixed.turns] == [
        turn.get("token_ids") for turn in objects_.turns
    ]
    assert ts(*chat, "-q", stdin=typed) == Outcome(0, text.out, "")  # T24


def test_in_text_an_unknown_command_is_one_line_and_exit_code_2(ts: Run, tiny_path: Path) -> None:
    chat = ("chat", "-q", "-m", tiny_path, "--logit-bias", "'a':100", "--max-tokens", "3")
    outcome = ts(*chat, stdin=b"one\n/nope and more\ntwo\n")
    assert (outcome.code, outcome.out) == (2, "aaa\n")
    assert_is_one_error(outcome.err)
    assert ts(*chat, stdin=b"one\n /nope\ntwo\n") == Outcome(0, "aaa\n" * 3, "")
    assert [user for user, _ in stored_turns()] == ["one", " /nope", "two"]


def test_in_json_the_conversation_goes_on_after_an_error_which_is_the_exit_code(
    ts: Run, tiny_path: Path
) -> None:
    chat = ("chat", "-m", tiny_path, "--json", "--logit-bias", "'a':100", "--max-tokens", "3", "--ctx", "200")
    lines = (
        b'one\n/etc\n{"content": "/etc"}\n{"content": "' + b"x" * 300 + b'"}\n{\n{"command": "/exit"}\nno\n'
    )
    outcome = ts(*chat, stdin=lines)
    assert (outcome.code, outcome.err) == (2, "")
    assert [event["event"] for event in outcome.turns] == [
        "turn",
        "error",
        "turn",
        "error",
        "error",
        "command",
    ]
    assert [event.get("exit_code") for event in outcome.turns] == [None, 2, None, 4, 2, None]
    assert [user for user, _ in stored_turns()] == ["one", "/etc"]


def test_another_model_in_the_middle_is_named_in_the_turns_it_answers(
    ts: Run, tiny_path: Path, tmp_path: Path
) -> None:
    other = write_tiny_model(tmp_path / "other.gguf", seed=1)
    outcome = ts(
        "chat", "-m", tiny_path, "--json", "--max-tokens", "3", stdin=f"one\n/model {other}\ntwo\n".encode()
    )
    assert outcome.code == 0
    assert [turn["model"] for turn in outcome.turns if turn["event"] == "turn"] == ["tiny", "other"]


def timed(turn: dict[str, Any]) -> dict[str, Any]:
    return {name: turn[name] for name in ("prefill_seconds", "decode_seconds")}


# Settings: the config file, variables, flags


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return where the config file is; there is none yet."""
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "config.toml"))
    return tmp_path / "config.toml"


def test_the_file_a_variable_and_a_flag_settle_a_run_in_rising_strength(
    complete: Run, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text("logit-bias = \"'a':100\"\nreuse = false\n")
    assert complete().turns[0]["reply"] == "a" * 40
    monkeypatch.setenv("TS_LOGIT_BIAS", "'b':100")
    assert complete().turns[0]["reply"] == "b" * 40
    assert complete("--logit-bias", "'c':100").turns[0]["reply"] == "c" * 40


def test_a_default_the_users_file_a_variable_and_a_flag_are_told_apart(
    isolated_home: Path, tiny_path: Path
) -> None:
    config = isolated_home / "config" / "turbospark_chat" / "config.toml"

    def told(name: str, *flags: str, **variables: str) -> tuple[list[str], str]:
        """Return what `ts config` says of a setting, and what a reply is made of."""
        env = environment(**variables)
        listed = run_ts("config", env=env)
        rows = [re.split("  +", row) for row in listed.stdout.decode().splitlines()]
        answered = run_ts("complete", "-q", "-m", tiny_path, "--max-tokens", "9", *flags, "hello", env=env)
        assert (listed.returncode, listed.stderr, answered.stderr) == (0, b"", b"")
        return next(row[1:] for row in rows if row[0] == name), "".join(
            sorted({*answered.stdout.decode().strip()})
        )

    (value, origin), _ = told("logit_bias")
    assert (value, origin) == ("none", "default")
    config.parent.mkdir(parents=True)
    config.write_text("logit_bias = {a = 100}\n")
    assert told("logit_bias") == (["'a':100", "config.toml:1"], "a")
    assert told("logit_bias", TS_LOGIT_BIAS="'b':100") == (["'b':100", "TS_LOGIT_BIAS"], "b")
    assert told("logit_bias", "--logit-bias", "'c':100", TS_LOGIT_BIAS="'b':100")[1] == "c"


def test_the_model_may_be_set_for_good(ts: Run, config: Path, tiny_path: Path) -> None:
    config.write_text(f"model = '{tiny_path}'\nmax_tokens = 3\nlogit_bias = {{a = 100}}")
    assert ts("complete", "-q", "hello") == Outcome(0, "aaa\n", "")


def test_a_pair_on_the_command_line_overrules_the_file(ts: Run, config: Path, tiny_path: Path) -> None:
    config.write_text("reuse = false")
    chat = ("chat", "-m", tiny_path, "--json", *GREEDY, "--max-tokens", "9")
    assert [turn["reused_prefix_tokens"] for turn in ts(*chat, stdin=b"one\ntwo\n").turns] == [0, 0]
    assert ts(*chat, "--reuse", stdin=b"one\ntwo\n").turns[1]["reused_prefix_tokens"] > 0


BROKEN = {
    "no TOML": ("seed = ", ": not TOML: Invalid value"),
    "unknown": ("\ntemprature = 1", ":2: unknown setting `temprature`: did you mean `temperature`?"),
    "outside its range": ("temperature = 1000", ":1: temperature is 1000.0: give a number, 0 to 100"),
    "a screen's": ("think = 'no'", ":1: think is 'no': give one of show, fold, hide"),
    "threads": ("threads = 0", ":1: threads is '0'"),
    "ctx": ("ctx = 'x'", ":1: ctx is 'x'"),
}


@pytest.mark.parametrize(("text", "problem"), BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("command", ["chat", "complete"])
def test_a_file_that_is_wrong_stops_what_uses_settings_with_one_line_and_exit_code_2(
    ts: Run, config: Path, tiny_path: Path, command: str, text: str, problem: str
) -> None:
    config.write_text(text)
    outcome = ts(command, "-m", tiny_path, stdin=b"hello\n")
    assert (outcome.code, outcome.out) == (2, "")
    assert_is_one_error(outcome.err)
    assert f"error: {config}{problem}" in outcome.err


def test_a_file_that_is_wrong_stops_nothing_else(ts: Run, config: Path, tiny_path: Path) -> None:
    config.write_bytes(b"\xff")
    for arguments in (["--help"], ["chat", "--help"], ["models"], ["show", tiny_path], ["config", "--path"]):
        outcome = ts(*arguments)
        assert (outcome.code, outcome.err) == (0, "")


def test_what_is_set_for_the_chat_alone_stops_no_completion(
    complete: Run, config: Path, tmp_path: Path
) -> None:
    config.write_text("on_overflow = 'ask'\nsystem = 'x'\ntemplate = 'gone.jinja'\ntheme = 'dark'")
    complete("--raw")


def test_config_shows_every_setting_and_where_it_is_from(
    ts: Run, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = config.with_name("absent.toml")
    config.write_text("top-k = 7\nstop = ['a b', 'c']\nsave = false\n[styles]\nerror = 'blue'\n")
    monkeypatch.setenv("TS_TEMPERATURE", "0.5")
    outcome = ts("config")
    assert (outcome.code, outcome.err) == (0, "")
    rows = [re.split(r"  +", line) for line in outcome.out.splitlines()]
    assert rows[0] == ["config file", str(config)]
    assert {row[0] for row in rows[1:]} == {*SETTINGS, "styles.error"}
    for row in (
        ["top_k", "7", "config.toml:1"],
        ["stop", '"a b" "c"', "config.toml:2"],
        ["save", "off", "config.toml:3"],
        ["styles.error", "blue", "config.toml:5"],
        ["temperature", "0.5", "TS_TEMPERATURE"],
        ["top_p", "0.95", "default"],
        ["model", "smollm2", "default"],
        ["think", "fold", "default"],
    ):
        assert row in rows
    assert ts("config", "--path") == Outcome(0, f"{config}\n", "")
    monkeypatch.setenv(CONFIG_VARIABLE, str(absent))
    assert ts("config").code == 2  # it was asked for
    monkeypatch.setenv(CONFIG_VARIABLE, "")
    assert ts("config").out.splitlines()[0].endswith("config.toml  does not exist")


def test_config_shows_all_that_is_wrong_a_line_each_and_exits_with_2(
    ts: Run, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text("bogus = 1\nseed = 'x'\ntop_k = 3\n[styles]\nerror = 'rde'\n")
    monkeypatch.setenv("TS_THINK", "no")
    outcome = ts("config")
    assert outcome.code == 2
    assert [line.partition("give")[0] for line in outcome.err.splitlines()] == [
        f"error: {config}:1: unknown setting `bogus`: `ts config` lists those there are",
        f"error: {config}:2: seed is 'x': ",
        "error: TS_THINK: think is 'no': ",
        f"error: {config}:5: style error is 'rde': ",
    ]
    assert "config.toml:3" in outcome.out


def test_a_flag_may_be_left_without_a_value_wherever_it_stands() -> None:
    def given(*arguments: str) -> list[str]:
        return list(with_implied_values(arguments))

    assert given("--resume") == ["--resume", "last"]
    assert given("--resume", "-q") == ["--resume", "last", "-q"]
    assert given("-q", "--resume", "7@2", "--json") == ["-q", "--resume", "7@2", "--json"]
    assert given("--resume=7", "-q") == ["--resume=7", "-q"]
    assert given("--system", "--resume", "-q") == ["--system", "--resume", "-q"]  # what it says, not a flag
    assert given("--resume", "--", "--resume") == ["--resume", "last", "--", "--resume"]


# A shell that completes


@pytest.fixture
def offered(
    ts: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], list[str]]:
    """Return what bash is offered for the last word of a line."""

    def complete(line: str) -> list[str]:
        monkeypatch.setenv("_TS_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        with pytest.raises(SystemExit):
            cli.run([])
        captured = capsys.readouterr()
        assert captured.err == ""
        return captured.out.split()

    return complete


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ts co", ["complete", "config"]),
        ("ts chat --res", ["--resume"]),
        ("ts --res", ["--resume"]),
        ("ts complete --no-r", ["--no-reuse"]),
        ("ts complete --toolb", []),
        ("ts --theme ", ["default", "dark", "light", "plain"]),
        ("ts chat -q --editing v", ["vi"]),
        ("ts complete --power-profile e", ["efficiency"]),
        ("ts complete --think=f", ["fold"]),
        ("ts -m smo", ["smollm2"]),
        ("ts chat --system ", []),
        ("ts export 3 f.md --form h", ["html"]),
        ("ts export ", ["last"]),
        ("ts chat --resume ", ["last"]),
    ],
)
def test_a_shell_is_offered_commands_flags_and_values(
    offered: Callable[[str], list[str]], line: str, expected: list[str], isolated_home: Path
) -> None:
    assert offered(line) == expected
    assert list(isolated_home.iterdir()) == []  # looking makes nothing


def test_every_command_is_offered_and_every_flag_of_the_chat_without_its_name(
    offered: Callable[[str], list[str]],
) -> None:
    assert offered("ts ")[:2] == ["chat", "complete"]
    assert {spelling for flag in flags_of("chat") for spelling in flag.spellings} <= {
        *offered("ts -"), *offered("ts --"),
    }  # fmt: skip


def test_model_files_are_offered_from_the_folder_that_is_typed(
    offered: Callable[[str], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("here.gguf", "notes.txt", "two words.gguf", "models/b.gguf", "models/deep/c.gguf"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert offered("ts -m ") == [*CATALOG, "here.gguf", "models/b.gguf"]
    assert offered("ts show models/") == ["models/b.gguf", "models/deep/c.gguf"]
    assert offered(f"ts -m {tmp_path}/h") == [f"{tmp_path}/here.gguf"]


@pytest.mark.parametrize("program", ["ts", "turbospark-chat"])
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shells_script_completes_the_program_it_was_asked_of(program: str, shell: str) -> None:
    variable = "_" + program.replace("-", "_").upper() + "_COMPLETE"
    done = subprocess.run(
        [Path(TS).with_name(program), "--show-completion", shell],
        env=environment(_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1"),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert f"{variable}=complete_{shell}" in done.stdout and done.stderr == ""


@pytest.mark.parametrize(("shell", "sign"), [("zsh", '"--resume"'), ("fish", "--resume\t")])
def test_other_shells_are_offered_the_same(shell: str, sign: str) -> None:
    done = subprocess.run(
        [TS],
        env=environment(
            _TS_COMPLETE=f"complete_{shell}", _TYPER_COMPLETE_ARGS="ts chat --res",
            _TYPER_COMPLETE_FISH_ACTION="get-args",
        ),
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert sign in done.stdout and done.stderr == ""


# What computes, and the cache of kernels


@pytest.mark.parametrize(
    ("asked", "arithmetic"), [("numpy", "numpy, float32"), ("compiled", "compiled, 2 threads")]
)
def test_the_environment_chooses_the_arithmetic_and_the_object_says_which(
    ts: Run, kernels_path: Path, monkeypatch: pytest.MonkeyPatch, asked: str, arithmetic: str
) -> None:
    monkeypatch.setenv(ARITHMETIC_VARIABLE, asked)
    outcome = ts("complete", "-m", kernels_path, "--json", "--max-tokens", "2", "--threads", "2", "hi")
    assert (outcome.code, outcome.err, outcome.turns[0]["arithmetic"]) == (0, "", arithmetic)


def test_a_model_that_kernels_do_not_take_is_answered_by_numpy_without_a_word(complete: Run) -> None:
    assert complete().turns[0]["arithmetic"] == "numpy, float32"


@pytest.mark.parametrize(
    "command", [("complete", "-m", "{path}", "hi"), ("chat", "-m", "{path}"), ("show", "{path}")]
)
def test_an_arithmetic_that_does_not_exist_is_one_line_and_exit_code_2(
    ts: Run, kernels_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.setenv(ARITHMETIC_VARIABLE, "fast")
    outcome = ts(*(part.format(path=kernels_path) for part in command), stdin=b"hi\n")
    assert (outcome.code, outcome.out) == (2, "")
    assert_is_one_error(outcome.err)
    assert "TS_ARITHMETIC is 'fast': give compiled or numpy" in outcome.err


COMPILING = "compiling for this processor, once: "


@pytest.fixture
def lacking_one(kernels_path: Path, compiled: Arithmetic, user_locations: Locations, tmp_path: Path) -> Path:
    """Return a cache that has every kernel but one."""
    load_model(kernels_path, available_bytes=10**9, arithmetic=compiled)
    kernels = shutil.copytree(user_locations.kernels, tmp_path / "cache" / "kernels")
    for path in kernels.glob("*/swiglu.o"):
        path.unlink()
    return tmp_path / "cache"


def test_only_the_first_run_compiles_and_a_terminal_sees_how_far_it_is(
    kernels_path: Path, lacking_one: Path
) -> None:
    for name in ("add", "last"):
        for path in lacking_one.glob(f"kernels/*/{name}.o"):
            path.unlink()
    env = environment(**{CACHE_DIR_VARIABLE: str(lacking_one)})
    arguments = ("complete", "-m", kernels_path, *GREEDY, "--logit-bias", LETTERS, "--max-tokens", "9", "hi")
    shown = []
    for n_kernels in (3, 0):
        with Terminal(*arguments, env=env) as terminal:
            assert terminal.wait_for_end() == 0
            counts = re.findall(f"{COMPILING}(\\d+) of (\\d+)", terminal.written.decode())
            assert counts == [(str(nth), str(n_kernels)) for nth in range(1, n_kernels + 1)]
            shown.append(terminal.picture.text)
    assert shown[0] == shown[1]  # nothing of the line is left
    assert "compiling" not in shown[0] and "[reached the limit of 9 tokens" in shown[0]


def test_a_file_or_a_user_who_wants_quiet_gets_no_line(kernels_path: Path, lacking_one: Path) -> None:
    env = environment(**{CACHE_DIR_VARIABLE: str(lacking_one)})
    arguments = ("complete", "-m", kernels_path, "--max-tokens", "1", "--logit-bias", LETTERS)
    answered = run_ts(*arguments, "hi", env=env)
    assert (answered.returncode, answered.stderr) == (0, b"[reached the limit of 1 tokens: max_tokens]\n")
    (kernel,) = lacking_one.glob("kernels/*/swiglu.o")  # it was compiled, and kept
    kernel.unlink()
    with Terminal(*arguments, "-q", "hi", env=env) as terminal:
        assert terminal.wait_for_end() == 0
        assert COMPILING not in terminal.written.decode()
    assert kernel.exists()


def test_with_a_cache_that_cannot_be_written_it_still_answers(
    ts: Run, kernels_path: Path, lacking_one: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ("complete", "-m", kernels_path, "--json", *GREEDY, "--max-tokens", "9", "hello")
    expected = ts(*flags)

    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setenv(CACHE_DIR_VARIABLE, str(lacking_one))
    monkeypatch.setattr(sealed_file.tempfile, "NamedTemporaryFile", refuse)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")  # the other process would not be refused
    outcome = ts(*flags)
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.turns == [{**expected.turns[0], **timed(outcome.turns[0])}]
    assert list(lacking_one.glob("kernels/*/swiglu.o")) == []


# Streams


def test_thinking_never_comes_to_stdout(ts: Run, tmp_path: Path) -> None:  # T25
    path = write_tiny_model(tmp_path / "thinker.gguf", tokenizer__chat_template=THINKING)
    flags = ("complete", "-m", path, "--logit-bias", "'a':100", "--max-tokens", "5", "hello")
    assert ts(*flags, "-q") == Outcome(0, "\n", "")
    assert ts(*flags) == Outcome(0, "\n", "aaaaa\n[reached the limit of 5 tokens: max_tokens]\n")


def test_a_model_that_says_nothing_is_an_empty_reply(ts: Run, tiny_path: Path) -> None:  # H14
    flags = ("complete", "-m", tiny_path, "--logit-bias", "1:100", "hello")
    assert ts(*flags) == Outcome(0, "\n", "")
    turn = ts(*flags, "--json").turns[0]
    assert (turn["reply"], turn["new_tokens"], turn["reason"]) == ("", 0, "end_of_turn")


@pytest.mark.parametrize(
    ("prompt", "stdin", "message"),
    [
        ("hello", b"", "hello"),
        ("", b"hello\n", "hello"),  # T22
        ("hello", b"more\nand more\r\n", "hello\nmore\nand more"),
        ("", b"two\n\nlines", "two\n\nlines"),
    ],
)
def test_what_is_piped_in_is_added_to_the_prompt(
    ts: Run, tiny_path: Path, prompt: str, stdin: bytes, message: str
) -> None:
    flags = ("complete", "-m", tiny_path, "--json", *GREEDY, "--max-tokens", "8")
    assert ids(ts(*flags, prompt, stdin=stdin)) == ids(ts(*flags, message))


@pytest.mark.parametrize(
    ("stdin", "n_turns"),
    [
        pytest.param(b"", 0, id="T11"),
        pytest.param(b"hi", 1, id="H5 no newline"),
        pytest.param(b"one\ntwo\nthree\n", 3, id="T15"),
        pytest.param(b"one\r\ntwo\r\n", 2, id="CRLF"),
        pytest.param(b"\n\n  \n\t\nhi\n\n", 1, id="H14 empty lines"),
        pytest.param(b"a\xff\xfeb\n\xf0\x9f\n\xed\xa0\x80\na\0b\n", 4, id="T45 no UTF-8"),
        pytest.param(bytes(range(256)).replace(b"\n", b"").replace(b"\r", b""), 1, id="T45 every byte"),
    ],
)
def test_every_line_piped_in_is_a_turn(ts: Run, tiny_path: Path, stdin: bytes, n_turns: int) -> None:
    outcome = ts("chat", "-m", tiny_path, "--json", "--max-tokens", "4", stdin=stdin)
    assert (outcome.code, outcome.err, len(outcome.turns)) == (0, "", n_turns)


def test_bytes_that_are_no_text_become_replacement_characters(ts: Run, tiny_path: Path) -> None:  # T45
    flags = ("complete", "-m", tiny_path, "--json", *GREEDY, "--max-tokens", "8")
    assert ids(ts(*flags, stdin=b"a\xffb")) == ids(ts(*flags, "a\ufffdb"))


def test_show_describes_the_file_in_lines_that_are_not_cut(ts: Run, tiny_path: Path) -> None:  # T21
    outcome = ts("show", tiny_path)
    assert (outcome.code, outcome.err) == (0, "")
    rows = dict(line.split(maxsplit=1) for line in outcome.out.splitlines() if line.count(" ") > 0)
    assert rows["file"].strip() == str(tiny_path)
    assert rows["architecture"].strip() == "llama"


def test_models_lists_the_catalogue(ts: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TS_MODELS_DIR", str(tmp_path))
    outcome = ts("models")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("smollm2") and "`ts pull smollm2`" in outcome.out


def test_names_and_templates_cannot_drive_the_terminal_through_an_error(ts: Run, tmp_path: Path) -> None:
    evil = "\x1b]0;PWN\a"
    missing = ts("complete", "-m", tmp_path / f"{evil}.gguf", "hi")
    raising = write_tiny_model(
        tmp_path / "evil.gguf", **{"tokenizer__chat_template": "{{ raise_exception('" + evil + "') }}"}
    )
    for outcome in (missing, ts("complete", "-m", raising, "hi")):
        assert outcome.code in (1, 3)
        assert "\x1b" not in outcome.err and "\a" not in outcome.err and "PWN" in outcome.err
