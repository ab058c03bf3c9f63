"""The conversation that is measured: what a person says, how long replies are, and how a pasted text is read over."""

from collections.abc import Sequence
from typing import Final

REPLY_TOKENS = 40  # of each reply, at most
N_POSITIONS = 4096  # that the whole conversation needs, amply
READ_OVER_MS = 2000  # from pasting a message to sending it
PAUSE_MS = 300  # without a key, before a draft is read ahead: as the screen waits

LONG_MESSAGE: Final = """Please read this note and tell me in two sentences what we should do first.

The pump in the lower greenhouse stopped twice last week, on Tuesday at 04:10 and on Friday at 22:35. Both times the \
pressure had fallen from 2.4 bar to less than 0.9 within ten minutes, the float switch reported an empty tank, and the \
controller turned the motor off to keep it from running dry. When Maria came in the morning the tank was full again, \
so the water had come back by itself, but nobody knows when. The filter before the pump was cleaned in March; since \
then we have used about 310 cubic metres, a third more than in the same time of the year before, because the tomatoes \
were planted earlier and the spring was dry. The spare filter that we ordered is of the wrong size: its thread is \
three quarters of an inch, ours is a full inch.

There are three opinions. Jonas thinks that the filter is blocked and wants to change it at once, which costs 85 euros \
and half a day without water. Maria thinks that the float switch hangs, since it is nine years old and its cable was \
repaired with tape; a new one is 40 euros and can be put in within an hour, while the pump runs. Our neighbour had the \
same trouble two summers ago, and with him it was the well: in a dry spring its level sinks by night, when all farms \
along the road water their fields at the same time. If that is so, neither filter nor switch will help, and we would \
have to pump by day, with a timer, into a larger tank. He still has one of 2,000 litres that he would lend us.

The weather report says that it will stay dry for at least twelve days. If the pump stops for a whole day, we lose the \
seedlings in the upper rows, which is most of what we want to sell in June. We can spend 150 euros this month.
"""

MESSAGES: Final[Sequence[str]] = (
    "Hello. I would like to talk about a few things, one after the other. Is that all right?",
    "What is the capital of Iceland, and how many people live there?",
    "Write a Python function that adds up the even numbers of a list.",
    "Now explain this one:\n\n```python\ndef fold(xs, f, start=0):\n    total = start\n    for x in xs:\n"
    "        total = f(total, x)\n    return total\n```\n",
    "And what does `fold([1, 2, 3], lambda a, b: a * b, 1)` return?",
    "I planted tomatoes today 🍅🌱 and it made me happy 😀. Which emoji would you send back?",
    "日本の首都はどこですか。短く答えてください。",
    LONG_MESSAGE,
    "Who was it that thought the float switch was to blame?",
    "Multiply 12,345 by 678, then divide 1,000,000 by 37. Show the digits.",
    "Give me a list of five rivers,  with   their lengths in km.\n",
    "Сколько будет дважды два? Answer in Russian, then in English.",
    "Make a table of three fruits in Markdown: | name | colour | price |",
    "Say something in Chinese about tea: 茶很好喝 🍵, and translate it.",
    "Rewrite this as JSON: name=Ada, born=1815, languages=English and French",
    "Write one line of C that prints the sum of x and y, and no more.",
    "What comes next: 1, 1, 2, 3, 5, 8, 13, 21, …?",
    "Family emoji are strange: 👩‍👩‍👧‍👦 and 🏳️‍🌈. How many code points has the first?",
    'Quote me a proverb, "like this", and tell me where it is from.',
    "Thank you, that was all. Sum up what we talked about in one sentence.",
)
