"""Turns the prompts file into request bytes, also for conversations, whose answers become part of the next prompt.

Everything but the seed and the answers is encoded as JSON before the run, so that sending a turn only joins bytes,
however long the conversation is. Knows no connection.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.address import Address
from backend.domain.errors import InvalidWorkload
from backend.domain.load.records import TURN_SEEDS, LoadPlan, UsageRung
from backend.domain.workload.workload import Prompt, parse_workload, require_times
from backend.endpoint import header_fields


class Payloads:
    """The encoded requests of one level, head and body."""

    def __init__(
        self, plan: LoadPlan, prompts: Sequence[Prompt], address: Address, token: str | None, usage: UsageRung
    ) -> None:
        self._first_seed = plan.seed
        self._prompts = prompts
        self._bodies = [
            _script(plan, prompt, usage) if prompt.turns else _body(plan, prompt, usage) for prompt in prompts
        ]
        self._address, self._path = address, address.path(plan.endpoint, streamed=plan.stream)
        self._head = _head(address, self._path, token)
        self.count = len(prompts)

    def with_seed(self, seed: int | None) -> Payloads:
        """Return the same requests with another first seed."""
        payloads = copy.copy(self)
        payloads._first_seed = seed
        return payloads

    @property
    def timestamps(self) -> list[float]:
        """Return when each line of a trace is due, in seconds from the first."""
        times = [prompt.timestamp or 0.0 for prompt in self._prompts]
        return [time - times[0] for time in times]

    @property
    def has_follow_ups(self) -> bool:
        """Tell whether any answer becomes part of a next prompt."""
        return any(isinstance(body, ConversationTemplate) and len(body.turns) > 1 for body in self._bodies)

    def request(self, prompt: int, seed: int | None) -> bytes:
        body = self._bodies[prompt]
        assert isinstance(body, bytes)
        return self._complete(body, seed)

    def seed(self, position: int, turn: int) -> int | None:
        """Return the seed of a turn of the prompt used as number `position`, from 0, whenever it is sent.

        None if the plan has no seed.
        """
        return None if self._first_seed is None else self._first_seed + position + turn * TURN_SEEDS

    def start_conversation(self, line: int, number: int, position: int) -> Conversation | None:
        """Start a new conversation with that line; None if the line is a single prompt."""
        template = self._bodies[line]
        if not isinstance(template, ConversationTemplate):
            return None
        return Conversation(number, line, position, template)

    def next_turn_request(self, conversation: Conversation, seed: int | None) -> bytes:
        """Return the request for the next turn of a conversation."""
        return self._complete(conversation.body(), seed)

    def _complete(self, body: bytes, seed: int | None) -> bytes:
        body += b"}" if seed is None else b',"seed":%d}' % seed
        if self._address.region is not None:  # a signature is of this body, and of now
            return b"%s%s\r\nContent-Length: %d\r\n\r\n%s" % (
                self._head,
                _fields(self._address, self._path, body),
                len(body),
                body,
            )
        return b"%s%d\r\n\r\n%s" % (self._head, len(body), body)


def read_prompts(path: Path, *, trace: bool = False) -> tuple[Prompt, ...]:
    """Return the prompts of a workload's lines, those of a trace in order of time. Raises InvalidWorkload."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidWorkload(f"The workload {path} cannot be read ({error.strerror}): give a JSONL file.") from None
    workload = parse_workload(path.name, content)
    if not trace:
        return workload.prompts
    require_times(workload)
    return workload.in_order


def _body(plan: LoadPlan, prompt: Prompt, usage: UsageRung) -> bytes:
    document: dict[str, Any] = {"model": plan.model}
    if plan.endpoint == "chat":
        document["messages"] = [{"role": "user", "content": prompt.prompt}]
    else:
        document["prompt"] = prompt.prompt
    return encode(document | _settings(plan, prompt, usage))[:-1]


def _script(plan: LoadPlan, prompt: Prompt, usage: UsageRung) -> ConversationTemplate:
    model, rest = encode({"model": plan.model}), encode(_settings(plan, prompt, usage))
    turns, system = tuple(encode(turn) for turn in prompt.turns or ()), prompt.system
    if plan.endpoint == "chat":
        before = b'{"role":"system","content":%s},' % encode(system) if system else b""
        return ConversationTemplate(model[:-1] + b',"messages":[' + before, turns, b"]," + rest[1:-1], chat=True)
    before = encode(system)[1:-1] + b"\\n" if system else b""
    return ConversationTemplate(model[:-1] + b',"prompt":"' + before, turns, b'",' + rest[1:-1], chat=False)


def _settings(plan: LoadPlan, prompt: Prompt, usage: UsageRung) -> dict[str, Any]:
    """Return all fields of a request except the model and the prompt."""
    length = prompt.max_tokens or plan.max_tokens
    document: dict[str, Any] = {plan.length_field: length, "temperature": plan.temperature, "stream": plan.stream}
    document |= {} if plan.top_p is None else {"top_p": plan.top_p}
    document |= {"ignore_eos": True} if plan.ignore_eos else {}
    document |= {} if plan.cache_salt is None else {"cache_salt": plan.cache_salt}
    if usage != "none" and plan.stream:
        extra = {"continuous_usage_stats": True} if usage == "continuous" else {}
        document["stream_options"] = {"include_usage": True, **extra}
    return document


def _head(address: Address, path: str, token: str | None) -> bytes:
    """Return the head up to the length of the body; for signed requests, up to the fields that depend on the body."""
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: {address.authority}",
        "User-Agent: whetstone-load",
        "Accept: text/event-stream, application/json",
    ]
    if address.region is None:
        lines += [f"{name}: {value}" for name, value in header_fields(address, path, b"", token).items()]
    return "\r\n".join([*lines, "" if address.region is not None else "Content-Length: "]).encode("ascii")


def _fields(address: Address, path: str, body: bytes) -> bytes:
    return "\r\n".join(f"{name}: {value}" for name, value in header_fields(address, path, body).items()).encode("ascii")


NO_WORDS = b'""'


@dataclass(frozen=True, slots=True)
class ConversationTemplate:
    """The fixed parts of a conversation's requests: body = `opening`, what was said so far, `closing`.

    `turns` are JSON texts.
    """

    opening: bytes
    turns: tuple[bytes, ...]
    closing: bytes
    chat: bool

    def user_turn(self, turn: int) -> bytes:
        return b'{"role":"user","content":%s}' % self.turns[turn] if self.chat else self.turns[turn][1:-1]

    def assistant_turn(self, words: bytes) -> bytes:
        """Return an answer as part of the next prompt; completions get the words alone, on a line of their own."""
        return b',{"role":"assistant","content":%s},' % words if self.chat else b"\\n%s\\n" % words[1:-1]


@dataclass(slots=True)
class Conversation:
    """A conversation under way."""

    number: int
    """Counts the conversations of a level in the order they began."""
    line: int
    """The prompts' line, from 0."""
    position: int
    """Counts the prompts used, those of warm-up and measured ones apart."""
    template: ConversationTemplate
    turn: int = 0
    """The turn to be sent next."""
    so_far: bytes = b""
    """Everything said up to and with that turn."""

    def __post_init__(self) -> None:
        self.so_far = self.template.opening + self.template.user_turn(self.turn)

    def body(self) -> bytes:
        """Return the body of the next request without its last brace."""
        return self.so_far + self.template.closing

    @property
    def has_next_turn(self) -> bool:
        """Tell whether there is a turn after the one to be sent next."""
        return self.turn + 1 < len(self.template.turns)

    def add_answer(self, words: bytes) -> bool:
        """Add the answer, a JSON text; return whether there is another turn to send.

        An answer without words ends the conversation.
        """
        if words == NO_WORDS or not self.has_next_turn:
            return False
        self.turn += 1
        self.so_far += self.template.assistant_turn(words) + self.template.user_turn(self.turn)
        return True


def encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
