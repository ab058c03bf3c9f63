"""What is within the lines of a Markdown block: marks become styles, and what would not be seen stays as written.

HTML, images, entities and bare links are their source text; a link shows its target behind its own text.
"""

from functools import cache

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.text import Span, Text

from turbospark_chat.terminal.harmless import harmless

MOST_STYLED = 20_000  # characters: some texts take time that grows with their square


def inline_text(source: str) -> Text:
    """Return the text that a block's source makes, styled. Lines stay lines: a model breaks them where it means to."""
    if len(source) > MOST_STYLED:
        return Text(source)
    text = Text()
    open_marks: list[tuple[Token, int]] = []
    for token in _parser().parseInline(source)[0].children or ():
        if token.nesting == 1:
            open_marks.append((token, len(text)))
        elif token.nesting == -1:
            mark, start = open_marks.pop()
            text.spans.append(Span(start, len(text), f"markdown.{_STYLES[mark.tag]}"))
            if mark.tag == "a":
                text.append(f" ({_target(mark)})", "markdown.link_url")
        else:
            text.append(_as_written(token), "markdown.code" if token.tag == "code" else None)
    return text


_STYLES = {"strong": "strong", "em": "em", "s": "s", "a": "link"}


def _as_written(token: Token) -> str:
    if token.tag == "br":
        return "\n"
    return f"![{token.content}]({_target(token)})" if token.tag == "img" else token.content


def _target(token: Token) -> str:
    """Return where a link leads to, and what it is called there."""
    url = str(token.attrs.get("href") or token.attrs.get("src") or "")
    title = token.attrs.get("title")
    return harmless(f'{url} "{title}"' if title else url).replace("\n", " ")  # escapes may have hidden in it


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark").enable("strikethrough")
    parser.normalizeLink = lambda url: url  # type: ignore[method-assign] # it is shown as written
    parser.validateLink = lambda url: True  # type: ignore[method-assign] # and opened by nobody here
    return parser.disable(["autolink", "entity"])
