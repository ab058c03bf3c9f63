"""A transcript as one page for a browser: no script, nothing fetched, light or dark as the reader's screen is.

Replies and reasoning are Markdown; what the user and the system said is shown as it was typed. HTML in any of it is
text. Pictures in a reply become links, since showing one would tell its server who reads.
"""

import re
from html import escape
from typing import Final

from markdown_it import MarkdownIt

from turbospark_chat.chat.transcript import Transcript, TranscriptTurn, encodable

_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")

_STYLE: Final = """
:root { color-scheme: light dark; --text: #1f2328; --faint: #59636e; --page: #fff; --box: #f3f4f6; --line: #d1d9e0; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6e8eb; --faint: #9aa4af; --page: #15181c; --box: #22272e; --line: #3d444d; }
}
* { box-sizing: border-box; }
body { max-width: 46rem; margin: 0 auto; padding: 1rem; background: var(--page); color: var(--text);
  font: 1rem/1.55 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 1rem 0 .25rem; }
article :is(h1, h2, h3, h4, h5, h6) { font-size: 1.1rem; margin: 1.2rem 0 .4rem; }
.faint, .role, summary { color: var(--faint); font-size: .875rem; }
.role { margin: 1.5rem 0 .25rem; font-weight: 600; }
.typed { white-space: pre-wrap; padding: .6rem .8rem; border-radius: .5rem; background: var(--box); }
pre { overflow-x: auto; overflow-wrap: normal; padding: .7rem .8rem; border-radius: .5rem; background: var(--box); }
code { font: .875em/1.45 ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
:not(pre) > code { padding: .1em .3em; border-radius: .25rem; background: var(--box); }
blockquote, details > div { margin: .5rem 0; padding-left: .8rem; border-left: .2rem solid var(--line); }
table { display: block; overflow-x: auto; border-collapse: collapse; }
th, td { padding: .3rem .6rem; border: 1px solid var(--line); }
a { color: inherit; }
"""

_PAGE: Final = """\
<!doctype html>
<html>
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="referrer" content="no-referrer">
<title>{heading}</title>
<style>{style}</style>
</head>
<body>
<h1 dir="auto">{heading}</h1>
<p class="faint">{byline}</p>
{body}
</body>
</html>
"""


def to_html(transcript: Transcript) -> str:
    """Return the page."""
    markdown = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("image")
    parts = [] if transcript.system is None else [_typed("System", transcript.system)]
    parts += [_turn(turn, markdown) for turn in transcript.turns]
    return _PAGE.format(
        heading=_escaped(transcript.heading),
        byline=_escaped(transcript.byline),
        style=_STYLE,
        body="\n".join(parts),
    )


def _turn(turn: TranscriptTurn, markdown: MarkdownIt) -> str:
    parts = [_typed("User", turn.user.content), '<h2 class="role">Assistant</h2>']
    if turn.reply.reasoning is not None:
        thought = markdown.render(_visible(turn.reply.reasoning))
        parts.append(
            f'<details>\n<summary>Reasoning</summary>\n<div dir="auto">\n{thought}</div>\n</details>'
        )
    parts.append(f'<article dir="auto">\n{markdown.render(_visible(turn.reply.content))}</article>')
    if not turn.reply.complete:
        parts.append('<p class="faint">The reply was cut short.</p>')
    return "\n".join(parts)


def _typed(role: str, text: str) -> str:
    return f'<h2 class="role">{role}</h2>\n<div class="typed" dir="auto">{_escaped(text)}</div>'


def _escaped(text: str) -> str:
    return escape(_visible(text))


def _visible(text: str) -> str:
    """Return text without the characters that a page may not hold; each is U+FFFD there."""
    return _CONTROLS.sub("\ufffd", encodable(text))
