"""The commands about model files: `ts pull`, `ts models`, `ts show` and `ts bench`. Part of the composition root."""

import sys
from importlib.util import find_spec
from pathlib import Path

from turbospark_chat.assembly import check_model, describe_model, list_models
from turbospark_chat.command_line.model_files import fetch, find_installed, install
from turbospark_chat.errors import UnknownModelError, UsageError
from turbospark_chat.models.catalog import CATALOG, resolve
from turbospark_chat.settings import Locations
from turbospark_chat.terminal.progress_line import ProgressLine
from turbospark_chat.threads import physical_cores, read_threads


def run_pull(name: str) -> int:
    """Fetch a model of the catalogue and say where it is."""
    if name not in CATALOG:
        raise UnknownModelError(name, f"not in the catalogue; `ts pull` knows: {', '.join(CATALOG)}")
    path = fetch(CATALOG[name], is_quiet=False)
    print(path)
    return 0


def run_models() -> int:
    """List the catalogue."""
    from turbospark_chat.terminal.listing import print_table

    print_table(list_models(Locations.of_user()))
    return 0


def run_show(model: str) -> int:
    """Describe a model file, also one that cannot be run."""
    from turbospark_chat.terminal.listing import print_table

    print_table(describe_model(find_installed(model).path))
    return 0


def run_bench(
    model: str, threads: str | None, *, rounds: int, is_json: bool, against: Path | None, peer: str | None
) -> int:
    """Measure a model, beside a peer and an earlier run if asked."""
    from turbospark_chat.bench.report import read_report, table
    from turbospark_chat.bench.runner import PEER, measure
    from turbospark_chat.terminal.listing import print_table

    if peer not in (None, PEER):
        raise UsageError(f"peer is {peer!r}: give {PEER}")
    if peer and find_spec("xllamacpp") is None:
        raise UsageError(f"`--peer {PEER}` needs its wheel; `pip install xllamacpp` installs it")
    if is_json and against is not None:
        raise UsageError("`--json` prints a report, `--against` a comparison: leave one out")
    earlier = None if against is None else read_report(against)
    path = install(resolve(model, Locations.of_user()), is_quiet=False)
    check_model(path)
    n_threads = read_threads(threads) or physical_cores()
    if earlier and (earlier.model, earlier.n_threads) != (path.name, n_threads):
        raise UsageError(
            f"{against} measured {earlier.model} on {earlier.n_threads} threads, which tells nothing of"
            f" {path.name} on {n_threads}; name the same MODEL and `--threads`"
        )
    line = ProgressLine(sys.stderr)
    try:
        report = measure(
            path,
            n_threads=n_threads,
            n_rounds=rounds,
            has_peer=peer is not None,
            on_step=lambda name: line.draw(f"measuring: {name}"),
        )
    finally:
        line.clear()
    if is_json:
        print(report.to_json())
        return 0
    print_table(table(report, earlier))
    for name, text in report.notes.items():
        print(f"{name}: {text}")
    return 0


def run_chat_bench(model: str, threads: str | None, *, rounds: int, is_json: bool, peer: str | None) -> int:
    """Measure a conversation with a model, beside llama.cpp by its bindings and its server if asked."""
    from turbospark_chat.bench.chat_report import paste_line, time_table, token_table
    from turbospark_chat.bench.chat_runner import measure_chat
    from turbospark_chat.bench.peer_chat import installed_chats
    from turbospark_chat.bench.runner import PEER
    from turbospark_chat.terminal.listing import print_table

    if peer not in (None, PEER):
        raise UsageError(f"peer is {peer!r}: give {PEER}")
    peers = installed_chats() if peer else []
    if peer and not peers:
        raise UsageError(
            f"`--peer {PEER}` needs a package of it; `pip install llama-cpp-python` installs one"
        )
    path = install(resolve(model, Locations.of_user()), is_quiet=False)
    check_model(path)
    line = ProgressLine(sys.stderr)
    try:
        report = measure_chat(
            path,
            n_threads=read_threads(threads) or physical_cores(),
            n_rounds=rounds,
            peers=peers,
            on_step=lambda name: line.draw(f"measuring: {name}"),
        )
    finally:
        line.clear()
    if is_json:
        print(report.to_json())
        return 0
    print_table(token_table(report))
    print()
    print_table(time_table(report))
    print()
    print(paste_line(report.paste))
    return 0
