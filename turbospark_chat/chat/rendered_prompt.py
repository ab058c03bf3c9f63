"""A prompt as text in which the control tokens are still told apart from their mere spellings."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Control:
    """A control token that the template wrote."""

    spelling: str


@dataclass(frozen=True, slots=True)
class Text:
    """Ordinary text. A control token's spelling in here is text too, and must be encoded as such."""

    text: str


Segment = Control | Text


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A rendered conversation: segments in order, no text empty."""

    segments: tuple[Segment, ...]

    @property
    def text(self) -> str:
        """The whole prompt as literal text."""
        return "".join(
            segment.spelling if isinstance(segment, Control) else segment.text for segment in self.segments
        )
