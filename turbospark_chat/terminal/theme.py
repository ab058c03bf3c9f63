"""The names of the styles used on screen, and what they look like."""

from typing import Final

STYLES: Final = {
    "bar": "dim",
    "bar.model": "bold",
    "bar.good": "green",
    "bar.busy": "cyan",
    "bar.warn": "yellow",
    "bar.critical": "bold red",
    "message": "bold",
    "reasoning": "dim italic",
    "notice": "dim",
    "error": "red",
}
"""rich style by name."""
