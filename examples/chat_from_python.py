"""Two turns of a conversation from Python; the second continues from the first one's KV cache.

Run: python examples/chat_from_python.py [MODEL.gguf]      (`ts pull` fetches the default model)
"""

import sys
import threading
from pathlib import Path

from turbospark_chat.assembly import open_chat_model
from turbospark_chat.chat.chat_session import ChatSession
from turbospark_chat.chat.turn_result import ReplyText, TurnEvent
from turbospark_chat.models.catalog import DEFAULT_MODEL, resolve
from turbospark_chat.settings import Locations


def show(event: TurnEvent) -> None:
    if isinstance(event, ReplyText):
        print(event.text, end="", flush=True)


def main() -> None:
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else resolve(DEFAULT_MODEL, Locations.of_user()).path
    session = ChatSession(open_chat_model(path, context_length=None), system="Answer in one short sentence.")
    never = threading.Event()  # set it from another thread to stop a reply
    for message in ("What is the capital of France?", "And of Italy?"):
        print(f"> {message}")
        result = session.send(message, cancel=never, on_event=show)
        print(f"\n[reused {result.raw.reused_prefix_tokens} of {result.raw.prompt_tokens} prompt tokens]")


if __name__ == "__main__":
    main()
