"""A picture of the terminal: styled rows in, an SVG out that draws them wherever it is shown. Knows no files.

rich draws it; what it gets wrong for rows of mixed widths is put right after it: a text's length counts cells, not
characters, and characters of two cells are a text of their own, so that none pushes its neighbours out of place.
The same rows always give the same bytes, and nothing in them is fetched: fonts are the reader's own.
"""

import hashlib
import re
from collections.abc import Iterator
from io import StringIO
from itertools import groupby
from typing import Final
from xml.etree import ElementTree

from rich.cells import cell_len, split_graphemes
from rich.console import Console
from rich.segment import Segment, Segments
from rich.text import Text

_ASPECT_RATIO: Final = 0.61
_CELL_WIDTH: Final = 20 * _ASPECT_RATIO  # rich draws characters 20 high
_NOT_TEXT: Final = re.compile("[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_FORMAT: Final = """\
<svg width="{width}" height="{height:g}" viewBox="0 0 {width} {height:g}">
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: {char_height}px;
}}
.{unique_id}-title {{ font: bold 18px system-ui, sans-serif; }}
{styles}
</style>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def draw_picture(rows: str, *, title: str, width: int) -> str:
    """Return an SVG of a terminal `width` columns wide that shows `rows`, text with ANSI style codes.

    A row that is wider goes on in the next one. A control, or what XML cannot hold, is U+FFFD.
    """
    width = max(width, 1)
    # The height means nothing, but without it rich takes both from the environment.
    console = Console(file=StringIO(), record=True, width=width, height=25, legacy_windows=False)
    text = Text.from_ansi(rows, overflow="fold")
    text.plain = _NOT_TEXT.sub("\ufffd", text.plain)
    lines = console.render_lines(text, pad=False, new_lines=True)
    console.print(Segments(run for line in lines for segment in line for run in _runs(segment)), end="")
    title = _NOT_TEXT.sub("\ufffd", " ".join(title.split()))
    name = _name_of(rows, title, width)
    svg = console.export_svg(
        title=title, code_format=_FORMAT, unique_id=name, font_aspect_ratio=_ASPECT_RATIO
    )
    return _in_cells(svg, title)


def _runs(segment: Segment) -> Iterator[Segment]:
    """Yield the parts of a segment that are all wide or all not."""
    graphemes, _ = split_graphemes(segment.text)
    for _, run in groupby(graphemes, key=lambda span: span[2] > 1):
        spans = list(run)
        yield Segment(segment.text[spans[0][0] : spans[-1][1]], segment.style)


def _name_of(*parts: object) -> str:
    """Return a name for the styles within, since several pictures may stand in one page."""
    content = "\n".join(map(str, parts)).encode("utf-8", "surrogatepass")
    return f"terminal-{hashlib.sha256(content).hexdigest()[:12]}"


def _in_cells(svg: str, title: str) -> str:
    """Return the picture with each text as long as its cells, and with the title for those who hear it."""
    picture = ElementTree.fromstring(svg)
    for group in list(picture.iter("g")):
        for text in group.findall("text"):
            if not (n_cells := cell_len(text.text or "")):
                group.remove(text)  # the end of a row
            text.set("textLength", f"{n_cells * _CELL_WIDTH:g}")
            del text.attrib["clip-path"]  # it holds a text of false length in its row
    picture.attrib.update({"xmlns": "http://www.w3.org/2000/svg", "role": "img", "aria-label": title})
    return ElementTree.tostring(picture, encoding="unicode") + "\n"
