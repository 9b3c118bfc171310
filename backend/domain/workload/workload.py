"""A workload: the prompts a load is made of, and the one form in which they are kept and sent. Pure.

One JSON object a line. It has a `prompt`, or `turns` of a conversation (with `system` words, if any) whose answers are
the server's own; and optionally `max_tokens`, `kind` and, for a trace, `timestamp` in seconds. `workload_reader` reads
what people bring, and `write_prompts` makes these lines of it, in ASCII and with \\n at the end of each, so that
nothing can take a line for two.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Iterable
from typing import Any

from pydantic import ConfigDict, Field, field_validator

from backend.domain.errors import InvalidWorkload
from backend.domain.frozen import Frozen
from backend.domain.workload.row_report import ReadReport

MOST_LINES, LONGEST_LINE = 100_000, 16_000_000
"""More lines than a load asks in a day; a line's JSON takes up to 25 times its size in memory."""


MOST_TOKENS = 10_000_000
"""Most tokens of an answer."""
LONGEST_KIND = 40
"""Characters."""


class Prompt(Frozen):
    """`prompt` of a conversation is its first turn."""

    model_config = ConfigDict(extra="ignore")

    prompt: str
    max_tokens: int | None = None
    turns: tuple[str, ...] | None = None
    system: str | None = None
    timestamp: float | None = None
    kind: str | None = None
    """Kind of prompt, in the workload's own word; None where the line names none."""

    @field_validator("kind", mode="before")
    @classmethod
    def _word(cls, kind: Any) -> str | None:
        """A foreign file may keep anything under that name."""
        return kind.strip()[:LONGEST_KIND] or None if isinstance(kind, str) else None

    def turn(self, number: int | None) -> str:
        """The user's words of one request, named from the second turn of a conversation on; `number` from 0, None
        outside one."""
        if not self.turns or not number:
            return self.prompt
        return f"Turn {number + 1}: {self.turns[number]}"

    def texts(self) -> tuple[str, ...]:
        """All that is sent at the least, without the answers."""
        return (*((self.system,) if self.system else ()), *(self.turns or (self.prompt,)))


class WorkloadSummary(Frozen):
    """Summary of a workload in an evaluation. The lengths are of a line's first prompt, in characters."""

    name: str
    sha256: str
    prompts: int
    prompt_characters_p50: int
    prompt_characters_max: int
    reading: ReadReport | None = Field(None, exclude_if=lambda value: value is None)
    """Report of how its file was read: rows left out, unit of its times. None for a built-in workload."""


class Workload(Frozen):
    """`sha256` is over the file's bytes: the same hash is the same prompts in the same order."""

    name: str
    sha256: str
    prompts: tuple[Prompt, ...]

    @property
    def in_order(self) -> tuple[Prompt, ...]:
        """Sorted by their times, as a trace is sent; those of the same time in the file's order."""
        return tuple(sorted(self.prompts, key=lambda prompt: prompt.timestamp or 0.0))

    @property
    def least_turns(self) -> int:
        """Turns of its shortest conversation; 1 where a line is a single prompt."""
        return min((len(prompt.turns or ("",)) for prompt in self.prompts), default=1)

    def about(self, reading: ReadReport | None = None) -> WorkloadSummary:
        lengths = sorted(len(prompt.prompt) for prompt in self.prompts)
        return WorkloadSummary(
            name=self.name,
            sha256=self.sha256,
            prompts=len(self.prompts),
            prompt_characters_p50=lengths[len(lengths) // 2],
            prompt_characters_max=lengths[-1],
            reading=reading,
        )


def parse_workload(name: str, content: bytes) -> Workload:
    """Read JSONL. Raises InvalidWorkload naming the first broken line and what is wrong with it."""
    prompts = [_prompt(f"Line {number}", row) for number, row in parse_lines(content)]
    if not prompts:
        raise InvalidWorkload(f'The workload {name} is empty: give one JSON object a line with a "prompt".')
    return Workload(name=name, sha256=hashlib.sha256(content).hexdigest(), prompts=tuple(prompts))


def write_prompts(prompts: Iterable[Prompt]) -> bytes:
    """The lines that `parse_workload` reads: ASCII, one JSON object a line, without what a prompt does not have."""
    return "".join(json.dumps(_document_of(prompt)) + "\n" for prompt in prompts).encode("ascii")


def _document_of(prompt: Prompt) -> dict[str, Any]:
    words = {"prompt": prompt.prompt} if prompt.turns is None else {"turns": prompt.turns, "system": prompt.system}
    document = {**words, "max_tokens": prompt.max_tokens, "timestamp": prompt.timestamp, "kind": prompt.kind}
    return {name: value for name, value in document.items() if value is not None}


def parse_lines(content: bytes) -> list[tuple[int, Any]]:
    """(line number from 1, document) of each line that is not blank. Raises InvalidWorkload."""
    documents = []
    for number, line in enumerate(io.BytesIO(content), 1):
        if number > MOST_LINES or len(line) > LONGEST_LINE:
            raise InvalidWorkload(
                f"The workload has more than {MOST_LINES:,} lines, or one of more than {LONGEST_LINE // 1_000_000} MB: "
                "take a sample."
            )
        if line.strip():
            documents.append((number, _document(number, line)))
    return documents


def require_times(workload: Workload) -> None:
    """Raises InvalidWorkload where a prompt has no time."""
    without = [number for number, prompt in enumerate(workload.prompts, 1) if prompt.timestamp is None]
    if without:
        raise InvalidWorkload(
            f'{len(without):,} of {len(workload.prompts):,} prompts of the trace have no "timestamp", the first is '
            f"number {without[0]:,}: give each its time."
        )


def _document(number: int, line: bytes) -> Any:
    try:
        return json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidWorkload(
            f"Line {number} of the workload is not UTF-8 text (byte {error.start + 1}): convert the file."
        ) from None
    except json.JSONDecodeError as error:
        raise InvalidWorkload(
            f"Line {number} of the workload is not JSON (column {error.colno}: {error.msg}): every line is one JSON "
            "object."
        ) from None
    except (ValueError, RecursionError):
        raise InvalidWorkload(f"Line {number} of the workload is not JSON: every line is one JSON object.") from None


def _prompt(where: str, document: Any) -> Prompt:
    """`where` is "Line 7" or the like."""
    # 1. The text: of one turn, or of the first of several.
    turns = document.get("turns") if isinstance(document, dict) else None
    if turns is not None:
        _check_turns(where, turns, document.get("system"))
    text = document.get("prompt") if isinstance(document, dict) else None
    if turns:
        text = turns[0]
    if not isinstance(text, str) or not text:
        raise InvalidWorkload(f'{where} of the workload has no "prompt": every line is an object with that text.')
    # 2. What else the line says.
    tokens, time = document.get("max_tokens"), document.get("timestamp")
    prompt = Prompt(
        prompt=text,
        turns=tuple(turns) if turns else None,
        system=document.get("system") if turns else None,
        max_tokens=_tokens(where, tokens),
        timestamp=_time(where, time),
        kind=prompt_kind(document),
    )
    # 3. Text that can be sent.
    if not all(is_unicode(part) for part in prompt.texts()):
        raise InvalidWorkload(f"{where} of the workload has half a character (a lone surrogate): write the file anew.")
    return prompt


def prompt_kind(document: dict[str, Any]) -> Any:
    """Under its own name or that of MT-bench's lines; what is no word is left out later."""
    return document.get("kind") or document.get("category")


def _check_turns(where: str, turns: Any, system: Any) -> None:
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn for turn in turns):
        raise InvalidWorkload(f'{where} of the workload has wrong "turns": they are a list of texts, one each.')
    if system is not None and not isinstance(system, str):
        raise InvalidWorkload(f'{where} of the workload has a wrong "system": it must be a text.')


def _tokens(where: str, tokens: Any) -> int | None:
    if tokens is not None and (
        not isinstance(tokens, int) or isinstance(tokens, bool) or not 1 <= tokens <= MOST_TOKENS
    ):
        raise InvalidWorkload(f'{where} of the workload has a wrong "max_tokens": it must be a whole number above 0.')
    return tokens


def _time(where: str, time: Any) -> float | None:
    if time is not None and (isinstance(time, bool) or not isinstance(time, int | float) or not math.isfinite(time)):
        raise InvalidWorkload(f'{where} of the workload has a wrong "timestamp": it must be a number of seconds.')
    return time


def is_unicode(words: str) -> bool:
    """JSON can spell half of a surrogate pair, which no server can be sent."""
    try:
        words.encode()
    except UnicodeEncodeError:
        return False
    return True
