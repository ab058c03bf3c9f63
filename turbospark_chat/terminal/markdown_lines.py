"""What one line of Markdown may begin: CommonMark's marks of blocks, without HTML and link definitions, with tables.

Knows single lines, whose tabs are spaces already; which of them make a block together is decided elsewhere.
"""

import re

CODE_COLUMNS = 4  # spaces before a line that make it code

_FENCE = re.compile(r"( {0,3})(`{3,}|~{3,})(.*)")
_HEADING = re.compile(r" {0,3}(#{1,6})(?: +|$)(.*)")
_CLOSING_HASHES = re.compile(r"(?:^| +)#+ *$")
_RULE = re.compile(r" {0,3}([-*_])(?: *\1){2,} *$")
_ITEM = re.compile(r" {0,3}([-+*]|\d{1,9}[.)])( +|$)")
_SETEXT = re.compile(r" {0,3}(=+|-+) *$")
_QUOTE = re.compile(r" {0,3}> ?")
_DELIMITER = re.compile(r":?-+:?")
_CELL_END = re.compile(r"(?<!\\)\|")
_MARKS_ONLY = re.compile(r"[-=+*_#>`~|: ]*|[ ]*\d{1,9}[.)]? *")


def indent(line: str) -> int:
    """Return how many spaces a line begins with."""
    return len(line) - len(line.lstrip(" "))


def fence(line: str) -> tuple[int, str, str] | None:
    """Return the indentation, mark and info string of a line that opens fenced code."""
    match = _FENCE.match(line)
    if match is None or (match[2][0] == "`" and "`" in match[3]):
        return None
    return len(match[1]), match[2], match[3].strip()


def closes_fence(line: str, mark: str) -> bool:
    """Whether a line ends the code that a fence of this mark began."""
    stripped = line.strip(" ")
    return indent(line) < CODE_COLUMNS and len(stripped) >= len(mark) and not stripped.strip(mark[0])


def heading(line: str) -> tuple[int, str] | None:
    """Return the level and text of a heading that begins with hashes."""
    match = _HEADING.match(line)
    return (len(match[1]), _CLOSING_HASHES.sub("", match[2])) if match else None


def underline_level(line: str) -> int:
    """Return the level of heading that a line under a text makes of it, or 0."""
    match = _SETEXT.match(line)
    return 0 if match is None else 1 if match[1][0] == "=" else 2


def is_rule(line: str) -> bool:
    """Whether a line is drawn as a line."""
    return _RULE.match(line) is not None


def item(line: str) -> tuple[str, int] | None:
    """Return a list item's marker and the column its content begins at."""
    match = _ITEM.match(line)
    if match is None:
        return None
    end = match.end(1)
    is_spaced = match.end() < len(line) and match.end() - end <= CODE_COLUMNS
    return match[1], match.end() if is_spaced else end + 1


def interrupts_paragraph(line: str) -> bool:
    """Whether a list item's line may follow a paragraph directly: it has content, and is the first if numbered."""
    match = _ITEM.match(line)
    return match is not None and match.end() < len(line) and match[1][:-1] in ("", "1")


def quote(line: str) -> int:
    """Return the column at which a quote's content begins, or 0."""
    match = _QUOTE.match(line)
    return match.end() if match else 0


def cells(row: str) -> list[str]:
    r"""Return a table row's cells.

    >>> cells(r"| a | b \| c |")
    ['a', 'b | c']
    """
    texts = [text.strip().replace(r"\|", "|") for text in _CELL_END.split(row.strip())]
    if texts and not texts[0]:
        del texts[0]
    if texts and not texts[-1]:
        del texts[-1]
    return texts


def is_table_head(row: str, delimiter: str) -> bool:
    """Whether two lines begin a table."""
    if "|" not in row or max(indent(row), indent(delimiter)) >= CODE_COLUMNS:
        return False
    columns = cells(delimiter)
    is_delimiter = bool(columns) and all(_DELIMITER.fullmatch(column) for column in columns)
    return is_delimiter and not item(delimiter) and len(columns) == len(cells(row))


def is_marks_only(line: str) -> bool:
    """Whether the beginning of a line says nothing yet, and its next character may make anything of it."""
    return _MARKS_ONLY.fullmatch(line) is not None
