"""A chat session whose model says a script: replies as text, at a pace, with the real engine in between."""

import threading
import time
from collections.abc import Sequence

from fakes import ChatBytes
from sessions import CancelAfter
from tiny_model import CHATML, CONTROLS

from turbospark_chat.chat.chat_model import ChatModel
from turbospark_chat.chat.chat_session import ChatSession
from turbospark_chat.chat.options import ChatOptions
from turbospark_chat.chat.reasoning import ReasoningTags
from turbospark_chat.chat.template import ChatTemplate
from turbospark_chat.chat.turn_result import TurnEventSink, TurnResult
from turbospark_chat.engine.producer import Logits, ScriptedProducer

THINK = ReasoningTags("<think>", "</think>")


class PacedProducer(ScriptedProducer):
    """A ScriptedProducer whose forward passes take `seconds_per_pass`, so that there is time to interrupt them."""

    seconds_per_pass = 0.0

    def produce_chunk(self, tokens: Sequence[int], position: int, *, need_logits: bool) -> Logits | None:
        time.sleep(self.seconds_per_pass)
        return super().produce_chunk(tokens, position, need_logits=need_logits)


def make_producer(*replies: str, seconds_per_pass: float = 0.0) -> PacedProducer:
    """Return a producer that says these replies, a byte a token, and then nothing."""
    tokenizer = ChatBytes(CONTROLS)
    end_id = tokenizer.control_ids["<|im_end|>"]
    script = [tokenizer.encode(reply) for reply in replies]
    producer = PacedProducer(script, vocab_size=tokenizer.n_tokens, end_id=end_id)
    producer.seconds_per_pass = seconds_per_pass
    return producer


def make_session(
    *replies: str,
    producer: PacedProducer | None = None,
    context_length: int = 4096,
    system: str | None = None,
    options: ChatOptions | None = None,
) -> ChatSession:
    """Return a ChatML session over such a producer; its thinking stands in `<think>` tags."""
    template = ChatTemplate(CHATML, bos_token=None, eos_token="<|im_end|>", control_spellings=CONTROLS)
    model = ChatModel(
        producer=producer or make_producer(*replies),
        tokenizer=ChatBytes(CONTROLS),
        template=template,
        stop_ids={},
        context_length=context_length,
        reasoning_tags=THINK,
    )
    return ChatSession(model, system=system, options=options)


def send(session: ChatSession, message: str, on_event: TurnEventSink = lambda event: None) -> TurnResult:
    """Take a turn to its end."""
    return session.send(message, cancel=threading.Event(), on_event=on_event)


def send_and_stop(session: ChatSession, message: str, *, n_looks: int) -> TurnResult:
    """Take a turn that is cancelled at the engine's look at the flag after `n_looks` others."""
    return session.send(message, cancel=CancelAfter(n_looks), on_event=lambda event: None)
