"""A conversation of several turns: each answer becomes part of the next prompt. Knows nothing of connections."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Talk:
    """`number` counts the conversations of a level in the order they began, `place` those of warm-up and measured ones apart;
    `line` is the prompts' line from 0, `turn` the next one to be sent."""

    number: int
    line: int
    place: int
    turns: tuple[str, ...]
    max_tokens: int
    turn: int = 0
    messages: list[dict[str, str]] = field(default_factory=list)
    """What was said so far, the system's words first where there are any."""

    def prompt(self) -> list[dict[str, str]]:
        """All that was said, and the turn that is to be sent now."""
        return [*self.messages, {"role": "user", "content": self.turns[self.turn]}]

    def answered(self, words: str) -> bool:
        """Take the answer in; True where there is another turn to send. An answer without words ends the conversation."""
        self.messages = [*self.prompt(), {"role": "assistant", "content": words}]
        self.turn += 1
        return bool(words) and self.turn < len(self.turns)
