"""A process whose children keep conversations, so that tests can kill them, or have several at once.

It loads the package once; each child is a fork made before anything is open. For each line it reads:

    kill NUMBER SECONDS   a child keeps turns from NUMBER on as fast as it can, and is killed after SECONDS; the answer
                          is how many it said were kept
    together N            N children open the database at the same moment and keep 5 turns each; the answer is how many
                          could
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

from stored_turns import ended, numbered_turn

from turbospark_chat.chat.conversation import Conversation
from turbospark_chat.chat.journal import Journal
from turbospark_chat.chat.store import Store

N_WORDS = 400  # of a reply, so that a turn takes several pages


def change(conversation: Conversation, number: int, n_kept: int) -> None:
    """Make the change number `n_kept` to a conversation: mostly a new turn, sometimes a retry or a new branch."""
    turn = numbered_turn(number + n_kept, n_words=N_WORDS)
    if n_kept % 7 == 5:
        conversation.branch_off(f"branch {n_kept}")
    if n_kept % 4 == 3:
        conversation.replace_last(turn)
    else:
        conversation.append(turn)


def keep_turns(path: Path, number: int, until: int | None, report: Callable[[], object]) -> None:
    """Keep turns of one conversation, and report each once it is kept."""
    store = Store.open(path)
    journal, conversation = Journal(store, model_name="none"), Conversation()
    for n_kept in count() if until is None else range(until):
        change(conversation, number, n_kept)
        journal.keep(conversation, ended=ended(conversation.turns[-1]))
        report()
    store.close()


def fork(work: Callable[[], object]) -> int:
    """Return the id of a child that does the work and ends with 0, or, after an exception, with 1."""
    child = os.fork()
    if child:
        return child
    try:
        work()
    except BaseException as error:
        sys.stderr.write(f"{error!r}\n")
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def kill_one(path: Path, number: int, seconds: float) -> int:
    """Return how many turns a child had kept when it was killed."""
    reader, writer = os.pipe()
    child = fork(lambda: keep_turns(path, number, None, lambda: os.write(writer, b".")))
    os.close(writer)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    with open(reader, "rb") as pipe:
        reported = pipe.read()
    if os.WTERMSIG(status) != signal.SIGKILL:
        raise RuntimeError(f"the child ended by itself: {status}")
    return len(reported)


def run_together(path: Path, n_children: int) -> int:
    """Return how many children kept all their turns, beginning at the same moment."""
    reader, writer = os.pipe()

    def begin(number: int) -> None:
        os.close(writer)
        os.read(reader, 1)  # ends when the parent closes its end
        keep_turns(path, number, 5, lambda: None)

    children = [fork(lambda number=number: begin(1000 * number)) for number in range(n_children)]
    os.close(reader)
    os.close(writer)
    return sum(os.waitpid(child, 0)[1] == 0 for child in children)


def main() -> None:
    """Answer one line after another."""
    path = Path(sys.argv[1])
    for line in sys.stdin:
        match line.split():
            case ["kill", number, seconds]:
                answer = kill_one(path, int(number), float(seconds))
            case ["together", n_children]:
                answer = run_together(path, int(n_children))
            case _:
                raise ValueError(line)
        print(answer, flush=True)


if __name__ == "__main__":
    main()
