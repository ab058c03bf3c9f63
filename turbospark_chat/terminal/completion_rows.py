"""The completion menu as rows below the input: the choices, what each means, and the one chosen."""

from prompt_toolkit.buffer import CompletionState
from prompt_toolkit.formatted_text import StyleAndTextTuples
from rich.cells import cell_len
from rich.text import Text

MOST_MENU_ROWS = 8
_MOST_NAME_CELLS = 40


def completion_rows(state: CompletionState | None, *, width: int) -> list[StyleAndTextTuples]:
    """Return at most `MOST_MENU_ROWS` rows, each narrower than `width`; the last tells of more choices."""
    if state is None or not state.completions:
        return []
    n_all = len(state.completions)
    n_shown = n_all if n_all <= MOST_MENU_ROWS else MOST_MENU_ROWS - 1
    chosen = state.complete_index
    start = min(max((chosen or 0) - n_shown // 2, 0), n_all - n_shown)
    shown = state.completions[start : start + n_shown]
    n_cells = min(max(cell_len(choice.display_text) for choice in shown), _MOST_NAME_CELLS)
    rows: list[StyleAndTextTuples] = []
    for number, choice in enumerate(shown, start=start):
        is_chosen = number == chosen
        name = choice.display_text
        blanks = " " * (n_cells - cell_len(name) + 2) if choice.display_meta_text else ""
        row = _cut(f"{'>' if is_chosen else ' '} {name}{blanks}{choice.display_meta_text}", width - 1)
        rows.append([("class:menu.chosen" if is_chosen else "class:menu", row)])
    if n_shown < n_all:
        rows.append([("class:menu", _cut(f"  … {n_all - n_shown} more", width - 1))])
    return rows


def _cut(text: str, width: int) -> str:
    line = Text(" ".join(text.splitlines()))
    line.truncate(max(width, 1), overflow="ellipsis")
    return line.plain
