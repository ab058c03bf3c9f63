"""Counting beside the keys: the latest text wins."""

import threading

from turbospark_chat.terminal.draft_counter import DraftCounter

TIMEOUT = 10.0


class Counting:
    """A counter whose counts the test lets go one by one."""

    def __init__(self):
        self.counted = []
        self.begun, self.go_on, self.changed = (
            threading.Semaphore(0),
            threading.Semaphore(0),
            threading.Semaphore(0),
        )
        self.counter = DraftCounter(self._count, on_change=self.changed.release)

    def _count(self, text):
        self.counted.append(text)
        self.begun.release()
        assert self.go_on.acquire(timeout=TIMEOUT)
        if text == "bad":
            raise ValueError(text)
        return len(text)

    def finish(self):
        self.go_on.release()
        assert self.changed.acquire(timeout=TIMEOUT)


def test_a_count_comes_later_and_then_at_once():
    counting = Counting()
    assert counting.counter.tokens("abc") is None
    counting.finish()
    assert counting.counter.tokens("abc") == 3
    assert counting.counted == ["abc"]
    counting.counter.close()


def test_an_empty_draft_has_none_and_needs_no_thread():
    counting = Counting()
    assert counting.counter.tokens("") == 0
    assert counting.counted == []


def test_what_was_typed_over_meanwhile_is_not_counted():
    counting = Counting()
    counting.counter.tokens("a")
    assert counting.begun.acquire(timeout=TIMEOUT)
    for text in ("ab", "abc", "abcd"):
        assert counting.counter.tokens(text) is None
    counting.finish()
    assert counting.counter.tokens("abcd") is None
    counting.finish()
    assert counting.counter.tokens("abcd") == 4
    assert counting.counted == ["a", "abcd"]
    counting.counter.close()


def test_what_cannot_be_counted_has_no_count_and_the_next_has():
    counting = Counting()
    counting.counter.tokens("bad")
    counting.finish()
    assert counting.counter.tokens("bad") is None
    counting.counter.tokens("ab")
    counting.finish()
    assert counting.counter.tokens("ab") == 2
    assert counting.counted == ["bad", "ab"]
    counting.counter.close()


def test_after_forgetting_it_counts_anew_even_what_was_under_way():
    counting = Counting()
    counting.counter.tokens("ab")
    assert counting.begun.acquire(timeout=TIMEOUT)
    counting.counter.forget()
    counting.go_on.release()
    assert counting.counter.tokens("ab") is None
    counting.finish()
    assert counting.counter.tokens("ab") == 2
    assert counting.counted == ["ab", "ab"]
    counting.counter.close()


def test_closed_it_counts_nothing_and_its_thread_ends():
    counting = Counting()
    counting.counter.tokens("ab")
    assert counting.begun.acquire(timeout=TIMEOUT)
    counting.counter.close()
    counting.go_on.release()
    counting.counter._thread.join(TIMEOUT)
    assert not counting.counter._thread.is_alive()
    assert counting.counter.tokens("abc") is None
    assert counting.counted == ["ab"]
