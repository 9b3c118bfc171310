"""Prompts file -> request bytes, also of conversations, in which an answer becomes part of the next prompt. Knows no
connection.

Everything but the seed and the answers is written before the run, as JSON, so that sending a turn costs the joining of
bytes, however long the conversation has become.
"""

from __future__ import annotations

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
    """The requests of one level: `request(prompt, seed)` is the whole request, head and body."""

    def __init__(
        self, plan: LoadPlan, prompts: Sequence[Prompt], place: Address, token: str | None, usage: UsageRung
    ) -> None:
        self._first_seed = plan.seed
        self._prompts = prompts
        self._bodies = [
            _script(plan, prompt, usage) if prompt.turns else _body(plan, prompt, usage) for prompt in prompts
        ]
        self._place, self._path = place, place.path(plan.endpoint, streamed=plan.stream)
        self._head = _head(place, self._path, token)
        self.count = len(prompts)

    @property
    def timestamps(self) -> list[float]:
        """When each line of a trace is due, in seconds from the first."""
        times = [prompt.timestamp or 0.0 for prompt in self._prompts]
        return [time - times[0] for time in times]

    @property
    def has_follow_ups(self) -> bool:
        """Whether any answer becomes part of a next prompt."""
        return any(isinstance(body, ConversationTemplate) and len(body.turns) > 1 for body in self._bodies)

    def request(self, prompt: int, seed: int | None) -> bytes:
        body = self._bodies[prompt]
        assert isinstance(body, bytes)
        return self._whole(body, seed)

    def seed(self, place: int, turn: int) -> int | None:
        """Of what was taken from the prompts as number `place`, from 0, whenever it is sent. None where none is asked
        for."""
        return None if self._first_seed is None else self._first_seed + place + turn * TURN_SEEDS

    def start_conversation(self, line: int, number: int, place: int) -> Conversation | None:
        """A new conversation, where that line is one."""
        found = self._bodies[line]
        return Conversation(number, line, place, found) if isinstance(found, ConversationTemplate) else None

    def next_turn_request(self, talk: Conversation, seed: int | None) -> bytes:
        """The request for its next turn."""
        return self._whole(talk.body(), seed)

    def _whole(self, body: bytes, seed: int | None) -> bytes:
        body += b"}" if seed is None else b',"seed":%d}' % seed
        if self._place.region is not None:  # a signature is of this body, and of now
            return b"%s%s\r\nContent-Length: %d\r\n\r\n%s" % (
                self._head,
                _fields(self._place, self._path, body),
                len(body),
                body,
            )
        return b"%s%d\r\n\r\n%s" % (self._head, len(body), body)


def read_prompts(path: Path, *, trace: bool = False) -> tuple[Prompt, ...]:
    """The prompts of a workload's own lines; those of a trace in order of time. Raises InvalidWorkload."""
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
    """All of a request that is neither the model nor the words."""
    length = prompt.max_tokens or plan.max_tokens
    document: dict[str, Any] = {plan.length_field: length, "temperature": plan.temperature, "stream": plan.stream}
    document |= {} if plan.top_p is None else {"top_p": plan.top_p}
    document |= {"ignore_eos": True} if plan.ignore_eos else {}
    document |= {} if plan.cache_salt is None else {"cache_salt": plan.cache_salt}
    if usage != "none" and plan.stream:
        extra = {"continuous_usage_stats": True} if usage == "continuous" else {}
        document["stream_options"] = {"include_usage": True, **extra}
    return document


def _head(place: Address, path: str, token: str | None) -> bytes:
    """Up to the length of the body; of a place whose requests are signed, up to the fields that the body decides."""
    lines = [
        f"POST {path} HTTP/1.1",
        f"Host: {place.authority}",
        "User-Agent: whetstone-load",
        "Accept: text/event-stream, application/json",
    ]
    if place.region is None:
        lines += [f"{name}: {value}" for name, value in header_fields(place, path, b"", token).items()]
    return "\r\n".join([*lines, "" if place.region is not None else "Content-Length: "]).encode("ascii")


def _fields(place: Address, path: str, body: bytes) -> bytes:
    return "\r\n".join(f"{name}: {value}" for name, value in header_fields(place, path, body).items()).encode("ascii")


NO_WORDS = b'""'


@dataclass(frozen=True, slots=True)
class ConversationTemplate:
    """A session as it is sent: request body = `opening`, what was said so far, `closing`. `turns` are JSON texts."""

    opening: bytes
    turns: tuple[bytes, ...]
    closing: bytes
    chat: bool

    def asks(self, turn: int) -> bytes:
        return b'{"role":"user","content":%s}' % self.turns[turn] if self.chat else self.turns[turn][1:-1]

    def answers(self, words: bytes) -> bytes:
        """Completions get the words alone, in order, each from a new line."""
        return b',{"role":"assistant","content":%s},' % words if self.chat else b"\\n%s\\n" % words[1:-1]


@dataclass(slots=True)
class Conversation:
    """`number` counts the conversations of a level in the order they began, `place` those of warm-up and measured ones
    apart; `line` is the prompts' line from 0, `turn` the next one to be sent."""

    number: int
    line: int
    place: int
    script: ConversationTemplate
    turn: int = 0
    so_far: bytes = b""
    """Up to the turn that is to be sent now."""

    def __post_init__(self) -> None:
        self.so_far = self.script.opening + self.script.asks(self.turn)

    def body(self) -> bytes:
        """Of its next request, but for the last brace."""
        return self.so_far + self.script.closing

    @property
    def has_next_turn(self) -> bool:
        """Whether there is a turn after the one that is to be sent now."""
        return self.turn + 1 < len(self.script.turns)

    def add_answer(self, words: bytes) -> bool:
        """Take the answer in, a JSON text; True where there is another turn to send. One without words ends the
        conversation."""
        if words == NO_WORDS or not self.has_next_turn:
            return False
        self.turn += 1
        self.so_far += self.script.answers(words) + self.script.asks(self.turn)
        return True


def encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
