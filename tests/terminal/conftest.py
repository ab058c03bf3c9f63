"""Fixtures of the tests of slash commands."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from command_context import Chats


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[Chats]:
    """Make chats whose conversations are stored."""
    chats = Chats(tmp_path)
    yield chats
    chats.close()
