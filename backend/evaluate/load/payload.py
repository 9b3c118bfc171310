"""Prompts file -> request bytes, also of conversations, in which an answer becomes part of the next prompt. Knows no connection.

Everything but the seed and the answers is written before the run, as JSON, so that sending a turn costs the joining of bytes,
however long the conversation has become.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.domain.errors import InvalidWorkload
from backend.domain.load.records import TURN_SEEDS, LoadPlan, UsageRung
from backend.endpoint import fields
from backend.place import Address


class Payloads:
    """The requests of one level: `request(prompt, seed)` is the whole request, head and body."""

    def __init__(
        self, plan: LoadPlan, prompts: list[dict[str, Any]], place: Address, token: str | None, usage: UsageRung
    ) -> None:
        self._first_seed = plan.seed
        self._prompts = prompts
        self._bodies = [_script(plan, prompt, usage) if "turns" in prompt else _body(plan, prompt, usage) for prompt in prompts]
        self._place, self._path = place, place.path(plan.endpoint, streamed=plan.stream)
        self._head = _head(place, self._path, token)
        self.count = len(prompts)

    @property
    def timestamps(self) -> list[float]:
        """When each line of a trace is due, in seconds from the first."""
        times = [float(prompt["timestamp"]) for prompt in self._prompts]
        return [time - times[0] for time in times]

    @property
    def follow_up(self) -> bool:
        """Whether any answer becomes part of a next prompt."""
        return any(isinstance(body, Script) and len(body.turns) > 1 for body in self._bodies)

    def request(self, prompt: int, seed: int | None) -> bytes:
        body = self._bodies[prompt]
        assert isinstance(body, bytes)
        return self._whole(body, seed)

    def seed(self, place: int, turn: int) -> int | None:
        """Of what was taken from the prompts as number `place`, from 0, whenever it is sent. None where none is asked for."""
        return None if self._first_seed is None else self._first_seed + place + turn * TURN_SEEDS

    def talk(self, line: int, number: int, place: int) -> Talk | None:
        """A new conversation, where that line is one."""
        found = self._bodies[line]
        return Talk(number, line, place, found) if isinstance(found, Script) else None

    def conversation(self, talk: Talk, seed: int | None) -> bytes:
        """The request for its next turn."""
        return self._whole(talk.body(), seed)

    def _whole(self, body: bytes, seed: int | None) -> bytes:
        body += b"}" if seed is None else b',"seed":%d}' % seed
        if self._place.region is not None:  # a signature is of this body, and of now
            return b"%s%s\r\nContent-Length: %d\r\n\r\n%s" % (self._head, _fields(self._place, self._path, body), len(body), body)
        return b"%s%d\r\n\r\n%s" % (self._head, len(body), body)


def read_prompts(path: Path, endpoint: str, *, trace: bool = False) -> list[dict[str, Any]]:
    """The prompts, checked; those of a trace in order of time. Raises InvalidWorkload naming the first wrong line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InvalidWorkload(f"The workload {path} cannot be read ({error.strerror}): give a JSONL file.") from None
    except UnicodeDecodeError:
        raise InvalidWorkload(f"The workload {path} is not UTF-8 text: give a JSONL file.") from None
    prompts = [_prompt(line, f"{path.name}, line {n}", endpoint, trace) for n, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise InvalidWorkload(f'The workload {path} is empty: every line must be a JSON object with a "prompt".')
    return sorted(prompts, key=lambda prompt: prompt["timestamp"]) if trace else prompts


def _prompt(line: str, where: str, endpoint: str, trace: bool) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError:
        raise InvalidWorkload(f'{where}: not JSON; every line must be a JSON object with a "prompt".') from None
    if not isinstance(row, dict):
        raise InvalidWorkload(f'{where}: every line must be a JSON object with a "prompt".')
    length = row.get("max_tokens")
    if length is not None and (not isinstance(length, int) or isinstance(length, bool) or length < 1):
        raise InvalidWorkload(f"{where}: max_tokens must be a whole number of at least 1.")
    return _words(row, where, endpoint) | {"max_tokens": length} | (_time(row, where) if trace else {})


def _words(row: dict[str, Any], where: str, endpoint: str) -> dict[str, Any]:
    """What is asked: `turns` of a session, `messages`, or a `prompt`."""
    if row.get("turns"):
        return _turns(row["turns"], row.get("system"), where)
    if row.get("messages"):
        if endpoint != "chat":
            raise InvalidWorkload(f"{where}: messages are for the chat endpoint; choose it with {{}}.", "endpoint")
        return {"messages": _messages(row["messages"], where)}
    if isinstance(row.get("prompt"), str) and row["prompt"]:
        return {"prompt": row["prompt"]}
    return {"prompt": _token_ids(row.get("prompt_token_ids"), where, endpoint)}


def _turns(turns: Any, system: Any, where: str) -> dict[str, Any]:
    if not isinstance(turns, list) or not all(isinstance(turn, str) and turn for turn in turns):
        raise InvalidWorkload(f'{where}: "turns" must be a list of texts, one for each turn of the conversation.')
    if system is not None and not isinstance(system, str):
        raise InvalidWorkload(f'{where}: "system" must be a text.')
    return {"turns": turns, "system": system}


def _messages(messages: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(messages, list) or not all(isinstance(m, dict) and m.get("role") and m.get("content") for m in messages):
        raise InvalidWorkload(f'{where}: "messages" must be a list of objects, each with a role and content.')
    return messages


def _time(row: dict[str, Any], where: str) -> dict[str, float]:
    found = row.get("timestamp")
    if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
        raise InvalidWorkload(f'{where}: a trace needs a "timestamp" in seconds on every line.')
    return {"timestamp": float(found)}


def _token_ids(ids: Any, where: str, endpoint: str) -> list[int]:
    if ids is None:
        raise InvalidWorkload(f'{where}: there is no "prompt" with text in it.')
    if endpoint == "chat":
        raise InvalidWorkload(f'{where}: the chat endpoint takes text only; give a "prompt", or use completions.')
    if not isinstance(ids, list) or not ids or not all(type(i) is int and i >= 0 for i in ids):
        raise InvalidWorkload(f"{where}: prompt_token_ids must be a list of whole numbers.")
    return ids


def _body(plan: LoadPlan, prompt: dict[str, Any], usage: UsageRung) -> bytes:
    document: dict[str, Any] = {"model": plan.model}
    if plan.endpoint == "chat":
        document["messages"] = prompt.get("messages") or [{"role": "user", "content": prompt["prompt"]}]
    else:
        document["prompt"] = prompt["prompt"]
    return encoded(document | _settings(plan, prompt, usage))[:-1]


def _script(plan: LoadPlan, prompt: dict[str, Any], usage: UsageRung) -> Script:
    model, rest = encoded({"model": plan.model}), encoded(_settings(plan, prompt, usage))
    turns, system = tuple(encoded(turn) for turn in prompt["turns"]), prompt["system"]
    if plan.endpoint == "chat":
        before = b'{"role":"system","content":%s},' % encoded(system) if system else b""
        return Script(model[:-1] + b',"messages":[' + before, turns, b"]," + rest[1:-1], chat=True)
    before = encoded(system)[1:-1] + b"\\n" if system else b""
    return Script(model[:-1] + b',"prompt":"' + before, turns, b'",' + rest[1:-1], chat=False)


def _settings(plan: LoadPlan, prompt: dict[str, Any], usage: UsageRung) -> dict[str, Any]:
    """All of a request that is neither the model nor the words."""
    length = prompt["max_tokens"] or plan.max_tokens
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
        lines += [f"{name}: {value}" for name, value in fields(place, path, b"", token).items()]
    return "\r\n".join([*lines, "" if place.region is not None else "Content-Length: "]).encode("ascii")


def _fields(place: Address, path: str, body: bytes) -> bytes:
    return "\r\n".join(f"{name}: {value}" for name, value in fields(place, path, body).items()).encode("ascii")


NO_WORDS = b'""'


@dataclass(frozen=True, slots=True)
class Script:
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
class Talk:
    """`number` counts the conversations of a level in the order they began, `place` those of warm-up and measured ones apart;
    `line` is the prompts' line from 0, `turn` the next one to be sent."""

    number: int
    line: int
    place: int
    script: Script
    turn: int = 0
    so_far: bytes = b""
    """Up to the turn that is to be sent now."""

    def __post_init__(self) -> None:
        self.so_far = self.script.opening + self.script.asks(self.turn)

    def body(self) -> bytes:
        """Of its next request, but for the last brace."""
        return self.so_far + self.script.closing

    @property
    def goes_on(self) -> bool:
        """Whether there is a turn after the one that is to be sent now."""
        return self.turn + 1 < len(self.script.turns)

    def answered(self, words: bytes) -> bool:
        """Take the answer in, a JSON text; True where there is another turn to send. One without words ends the conversation."""
        if words == NO_WORDS or not self.goes_on:
            return False
        self.turn += 1
        self.so_far += self.script.answers(words) + self.script.asks(self.turn)
        return True


def encoded(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
