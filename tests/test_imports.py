"""What the package promises of its own source: the layer arrows, a light start, sizes, docstrings that run."""

import ast
import doctest
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tiny_model import COMPILED_SIZES, write_tiny_model

import turbospark_chat

PACKAGE = "turbospark_chat"
ROOT = Path(turbospark_chat.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

# What each part may import of the package, itself apart. A part is a folder or a file at the top.
ARROWS = {
    "__init__": set(),
    "errors": set(),
    "settings": {"errors"},
    "regular_file": set(),
    "threads": {"errors"},
    "engine": {"errors"},
    "models": {"errors"},
    "chat": {"engine", "errors", "regular_file"},
    "terminal": {"chat", "engine", "errors", "regular_file", "settings"},
    "config": {"errors", "regular_file", "settings"},
    # The composition root.
    "assembly": {"chat", "engine", "models", "errors", "settings", "threads"},
    "bench": {"assembly", "chat", "engine", "models", "errors", "settings", "threads"},
    "command_line": {
        "assembly",
        "bench",
        "terminal",
        "chat",
        "engine",
        "models",
        "config",
        "errors",
        "settings",
    }
    | {"threads"},
    "cli": {"command_line", "terminal", "errors"},
}
# Who may import a library that the whole program leans on, by the start of the file's path.
OWNERS = {
    "numba": ("models/kernels/",),
    "llvmlite": ("models/kernels/",),
    "typer": ("cli.py", "command_line/flag_parameters.py", "command_line/subcommands.py"),
    "click": (),
    "prompt_toolkit": ("terminal/",),
    "rich": ("terminal/",),
    "numpy": ("bench/", "engine/", "models/"),
    "tokenizers": ("models/",),
    "jinja2": ("chat/",),
    "markdown_it": ("chat/transcript_html.py", "chat/transcript_markdown.py", "terminal/markdown_inline.py"),
    "psutil": ("engine/", "terminal/"),
    "platformdirs": ("settings.py",),
}
PRINTS = ("cli.py", "command_line/", "terminal/")
MAX_MODULE_LINES = 350
MAX_FUNCTION_LINES = 55
HEAVY = {"numpy", "jinja2", "prompt_toolkit", "tokenizers", "psutil", "numba", "llvmlite"}
HEAVY_PARTS = ("engine", "models", "chat", "terminal", "assembly", "bench", "command_line.launch")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path: Path) -> Iterator[str]:
    """Yield the absolute name of everything a file imports, wherever in it."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


every_file = pytest.mark.parametrize("path", FILES, ids=name_of)


@every_file
def test_imports_follow_the_arrows(path):
    part = path.relative_to(ROOT).parts[0].removesuffix(".py")
    imported = {name.split(".")[1] for name in imports(path) if name.startswith(f"{PACKAGE}.")}
    top = {"__version__"}  # of the package itself, which imports nothing
    assert imported - {part} - top <= ARROWS[part]


@every_file
def test_a_library_is_imported_only_by_its_owners(path):
    libraries = {name.split(".")[0] for name in imports(path)}
    name = name_of(path)
    assert [library for library in libraries & OWNERS.keys() if not name.startswith(OWNERS[library])] == []


@every_file
def test_only_what_owns_a_stream_prints(path):
    calls = [node.func for node in ast.walk(parse(path)) if isinstance(node, ast.Call)]
    prints = [call.lineno for call in calls if isinstance(call, ast.Name) and call.id == "print"]
    assert name_of(path).startswith(PRINTS) or prints == []


@every_file
def test_templates_are_made_only_in_the_sandbox(path):  # E5
    makers = {"Template", "Environment", "NativeEnvironment", "SandboxedEnvironment"}
    found = [
        node.lineno
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in makers
    ]
    assert found == []


def test_the_sandbox_is_there_to_be_found():
    names = {name for path in FILES for name in imports(path)}
    assert "jinja2.sandbox.ImmutableSandboxedEnvironment" in names


@every_file
def test_modules_and_functions_fit_their_sizes(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_MODULE_LINES
    functions = [n for n in ast.walk(parse(path)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    lines = {function: function.end_lineno - function.lineno + 1 for function in functions}
    own = {  # functions within count for themselves
        function.name: n_lines - sum(lines.get(node, 0) for node in function.body)
        for function, n_lines in lines.items()
    }
    assert {name: n_lines for name, n_lines in own.items() if n_lines > MAX_FUNCTION_LINES} == {}


def public_definitions(body: list[ast.stmt], *, of: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield the public classes and functions of a module, and the public methods of its public classes."""
    for node in body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        is_setter = any(ast.unparse(decorator).endswith(".setter") for decorator in node.decorator_list)
        if node.name.startswith("_") or is_setter:  # a property is described once
            continue
        yield f"{of}{node.name}", node
        if isinstance(node, ast.ClassDef):
            yield from public_definitions(node.body, of=f"{node.name}.")


@every_file
def test_every_module_and_every_public_name_has_a_docstring(path):
    assert ast.get_docstring(parse(path)), "the module has none"
    missing = [name for name, node in public_definitions(parse(path).body) if not ast.get_docstring(node)]
    assert missing == []


@pytest.mark.parametrize("path", [path for path in FILES if ">>>" in path.read_text("utf-8")], ids=name_of)
def test_docstring_examples_run(path):
    module = ".".join((PACKAGE, *path.relative_to(ROOT).with_suffix("").parts))
    failed, attempted = doctest.testmod(importlib.import_module(module))
    assert (failed, attempted > 0) == (0, True)


def modules_after(statement: str, **variables: str) -> set[str]:
    """Return the modules a new interpreter has loaded after a statement, without those it starts with."""
    script = f"""
import sys
before = set(sys.modules)
try:
    {statement}
except SystemExit as end:
    assert not end.code, end.code
sys.stderr.write("\\n".join(set(sys.modules) - before))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(done.stderr.splitlines())


def modules_after_ts(*arguments: str, **variables: str) -> set[str]:
    statement = f"sys.argv = {['ts', *arguments]}; from turbospark_chat.cli import main; main()"
    return modules_after(statement, **variables)


MAIN = "from turbospark_chat.cli import main; main()"


@pytest.mark.parametrize(
    ("statement", "variables"),
    [
        pytest.param(f"sys.argv = ['ts', '--help']; {MAIN}", {}, id="help"),
        pytest.param(f"sys.argv = ['ts', 'chat', '--help']; {MAIN}", {}, id="chat-help"),
        pytest.param(f"sys.argv = ['ts', 'complete', '--help']; {MAIN}", {}, id="complete-help"),
        pytest.param(
            f"sys.argv = ['ts']; {MAIN}",
            {"_TS_COMPLETE": "complete_bash", "COMP_WORDS": "ts chat --theme d", "COMP_CWORD": "3"},
            id="completion",
        ),
        pytest.param(
            "import turbospark_chat.config.flag_values, turbospark_chat.errors", {}, id="light-modules"
        ),
    ],
)
def test_help_and_completion_load_nothing_heavy(statement, variables):
    loaded = modules_after(statement, **variables)
    assert "tomllib" not in loaded
    assert f"{PACKAGE}.errors" in loaded
    assert {name for name in loaded if name.split(".")[0] in HEAVY} == set()
    heavy = tuple(f"{PACKAGE}.{part}" for part in HEAVY_PARTS)
    assert {name for name in loaded if name.startswith(heavy)} == set()


@pytest.mark.weights
def test_a_reply_loads_no_compiler_and_no_screen_once_everything_is_cached(smollm2_path):
    reply = ("complete", "-q", "Say hi.", "--max-tokens", "1")
    modules_after_ts(*reply)  # compiles what is not compiled yet, and keeps the vocabulary
    loaded = modules_after_ts(*reply)
    assert {f"{PACKAGE}.models.kernels.machine", "llvmlite"} <= loaded
    others = {"numba", "rich", "prompt_toolkit", "psutil", "sqlite3", "markdown_it"}
    assert others & {name.split(".")[0] for name in loaded} == set()
    assert f"{PACKAGE}.models.kernels.compile" not in loaded


def test_a_reply_in_numpy_loads_nothing_of_the_kernels_libraries(tmp_path):
    path = write_tiny_model(tmp_path / "tiny.gguf", sizes=COMPILED_SIZES)
    reply = ("complete", "-q", "-m", str(path), "Say hi.", "--max-tokens", "1")
    loaded = modules_after_ts(*reply, TS_ARITHMETIC="numpy")
    assert f"{PACKAGE}.models.numpy_model" in loaded
    assert {"numba", "llvmlite"} & loaded == set()


def test_the_engine_loads_no_chat_no_model_and_no_screen():
    loaded = modules_after(
        "import turbospark_chat.engine.raw_completion, turbospark_chat.engine.model_thread"
    )
    others = tuple(
        f"{PACKAGE}.{part}" for part in ("models", "chat", "terminal", "assembly", "command_line", "cli")
    )
    assert {name for name in loaded if name.startswith(others)} == set()
    assert not {"jinja2", "tokenizers", "prompt_toolkit", "rich", "typer"} & loaded
