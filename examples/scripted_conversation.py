"""A conversation that another program leads: objects in, events out, the model loaded once.

`ts chat --json` takes a message or a slash command a line, and answers each with an object; with `--stream` every
piece of a reply is one too. Here the second question is asked again with another temperature, and then taken back.
Run: python examples/scripted_conversation.py [MODEL]
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

Event = dict[str, Any]


class Chat:
    """A running `ts chat`."""

    def __init__(self, *flags: str) -> None:
        self._process = subprocess.Popen(
            ["ts", "chat", "--json", "--stream", "--no-save", "--quiet", *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def events(self, **line: str) -> Iterator[Event]:
        """Send an object and yield what happens, up to its answer."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(line), file=self._process.stdin, flush=True)
        for answer in self._process.stdout:
            event = json.loads(answer)
            yield event
            if event["event"] in ("turn", "command", "error"):
                return

    def close(self) -> int:
        """Say that nothing more comes; return the exit code."""
        self._process.communicate()
        return self._process.returncode


def show(events: Iterator[Event]) -> None:
    for event in events:
        match event["event"]:
            case "token":
                print(event["text"], end="", flush=True)
            case "turn":
                print(f"\n[reused {event['reused_prefix_tokens']} of {event['prompt_tokens']} prompt tokens]")
            case "notice":
                print(f"({event['text']})")
            case "command":
                print(f"{event['command']}: {event['answer']}")
            case "error":
                print(f"error: {event['message']}")


def main() -> int:
    model = ["--model", sys.argv[1]] if len(sys.argv) > 1 else []
    chat = Chat("--temperature", "0", "--max-tokens", "40", *model)
    show(chat.events(content="What is the capital of France?"))
    show(chat.events(content="Name three of its museums."))
    show(chat.events(command="/retry --temperature 0.8 --seed 7"))
    show(chat.events(command="/undo"))
    return chat.close()


if __name__ == "__main__":
    sys.exit(main())
