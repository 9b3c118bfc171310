"""A conversation of several turns: each answer becomes part of the next prompt. Knows nothing of connections.

All words are JSON before the run, so that a turn costs the joining of bytes, however long the conversation has become.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

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
    said: bytes = b""
    """Up to the turn that is to be sent now."""

    def __post_init__(self) -> None:
        self.said = self.script.opening + self.script.asks(self.turn)

    def body(self) -> bytes:
        """Of its next request, but for the last brace."""
        return self.said + self.script.closing

    @property
    def goes_on(self) -> bool:
        """Whether there is a turn after the one that is to be sent now."""
        return self.turn + 1 < len(self.script.turns)

    def answered(self, words: bytes) -> bool:
        """Take the answer in, a JSON text; True where there is another turn to send. One without words ends the conversation."""
        if words == NO_WORDS or not self.goes_on:
            return False
        self.turn += 1
        self.said += self.script.answers(words) + self.script.asks(self.turn)
        return True


def script(turns: list[str], system: str | None, settings: dict[str, Any], *, chat: bool) -> Script:
    """`settings` is the request without the words; its first key is the model."""
    model, rest = (encoded(part) for part in (dict([*settings.items()][:1]), dict([*settings.items()][1:])))
    said = tuple(encoded(turn) for turn in turns)
    if chat:
        before = b'{"role":"system","content":%s},' % encoded(system) if system else b""
        return Script(model[:-1] + b',"messages":[' + before, said, b"]," + rest[1:-1], chat)
    before = encoded(system)[1:-1] + b"\\n" if system else b""
    return Script(model[:-1] + b',"prompt":"' + before, said, b'",' + rest[1:-1], chat)


def encoded(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
