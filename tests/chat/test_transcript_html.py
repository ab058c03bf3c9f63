"""Transcripts as a page: all of it is there, and nothing in it runs, is fetched, or is HTML that somebody said."""

from html.parser import HTMLParser

import pytest
from hypothesis import given
from transcripts import transcript_of, transcripts

from turbospark_chat.chat.message import Message
from turbospark_chat.chat.transcript import Transcript, TranscriptTurn, encodable
from turbospark_chat.chat.transcript_html import to_html

ELEMENTS = set(
    "html head meta title style body h1 h2 h3 h4 h5 h6 p div article details summary pre code blockquote ul ol li"
    " table thead tbody tr th td em strong s a br hr".split()
)
ATTRIBUTES = {"charset", "name", "content", "http-equiv", "dir", "class", "href", "title", "start", "style"}
EMPTY = {"meta", "br", "hr"}


class Page(HTMLParser):
    """What a page holds: elements, attributes, and the texts of the elements that are asked for."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += attrs
        if tag not in EMPTY:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_data(self, data: str) -> None:
        self.texts.append((self._open[-1] if self._open else "", data))

    def text(self, element: str) -> str:
        """Return the text directly within all elements of a name."""
        return "".join(text for inside, text in self.texts if inside == element)


def shown(text: str) -> str:
    return "".join(
        c if c in "\t\n\r" or not (c < " " or "\x7f" <= c < "\xa0") else "\ufffd" for c in encodable(text)
    )


@given(transcripts)
def test_a_page_is_whole_and_holds_nothing_but_text_and_its_style(transcript: Transcript) -> None:
    html = to_html(transcript)
    html.encode("utf-8")
    page = Page(html)
    assert set(page.elements) <= ELEMENTS
    assert {name for name, _ in page.attributes} <= ATTRIBUTES
    assert page.elements.count("style") == 1
    assert page.elements.count("article") == len(transcript.turns)
    assert page.text("h1").startswith(shown(transcript.heading))


@given(transcripts)
def test_what_was_typed_is_shown_as_it_was_typed(transcript: Transcript) -> None:
    page = Page(to_html(Transcript("", "", None, transcript.system, ())))
    assert page.text("div") == shown(transcript.system or "")
    for turn in transcript.turns:
        silent = TranscriptTurn(turn.user, Message("assistant", ""))
        assert Page(to_html(Transcript("", "", turns=(silent,)))).text("div") == shown(turn.user.content)


@pytest.mark.parametrize(
    "said",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "![pixel](https://example.org/p.png)",
        "![pixel][p]\n\n[p]: https://example.org/p.png",
        "[x](javascript:alert(1)) [y](JaVaScRiPt:alert(1)) <javascript:alert(1)>",
        "[x](data:text/html;base64,PHNjcmlwdD4=)",
        '[x](https://example.org "\\" onmouseover=alert(1)")',
        "```<script>\n</code></pre><script>alert(1)</script>\n```",
        "</article></details></style></title><iframe src=x>",
        "<!-- ",
    ],
)
def test_nothing_that_was_said_runs_or_is_fetched(said: str) -> None:
    turn = TranscriptTurn(Message("user", said), Message("assistant", said, reasoning=said))
    html = to_html(Transcript(said, said, None, said, (turn,)))
    page = Page(html)
    assert set(page.elements) <= ELEMENTS
    links = [value or "" for name, value in page.attributes if name == "href"]
    assert all(link.startswith("https://example.org") for link in links)
    assert {name for name, _ in page.attributes} <= ATTRIBUTES
    assert not {"url(", "@import", "@font-face"} & set(page.text("style").split())
    assert "url(" not in page.text("style")


def test_replies_and_reasoning_are_markdown_and_a_cut_reply_says_so() -> None:
    reply = Message(
        "assistant",
        "**so**\n\n```py\nif a < b:\n```\n\n|a|\n|-|\n|1|",
        reasoning="- hm",
        complete=False,
    )
    html = to_html(Transcript("T", "m", turns=(TranscriptTurn(Message("user", "**hi**"), reply),)))
    assert '<pre><code class="language-py">if a &lt; b:\n</code></pre>' in html
    assert "<strong>so</strong>" in html
    assert "<td>1</td>" in html
    details = html[html.index("<details>") : html.index("</details>")]
    assert "<summary>Reasoning</summary>" in details
    assert "<li>hm</li>" in details
    assert "The reply was cut short." in html
    assert ">**hi**</div>" in html


def test_a_whole_reply_without_reasoning_says_neither() -> None:
    html = to_html(transcript_of("u", "r"))
    assert "<details" not in html
    assert "cut short" not in html


def test_a_page_suits_a_phone_and_both_kinds_of_screen() -> None:
    page = Page(to_html(Transcript("T", "m")))
    assert ("content", "width=device-width, initial-scale=1") in page.attributes
    assert "@media (prefers-color-scheme: dark)" in page.text("style")
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in page.attributes
