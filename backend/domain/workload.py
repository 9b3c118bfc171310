"""A workload: the prompts a load is made of. One JSON object a line, `prompt` and optionally `max_tokens`."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel, ConfigDict

from backend.domain.errors import InvalidWorkload


class Prompt(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    prompt: str
    max_tokens: int | None = None


class Workload(BaseModel):
    """`sha256` is over the file's bytes: the same hash is the same prompts in the same order."""

    model_config = ConfigDict(frozen=True)

    name: str
    sha256: str
    prompts: tuple[Prompt, ...]

    def about(self) -> dict[str, Any]:
        """What an evaluation records of it."""
        lengths = sorted(len(prompt.prompt) for prompt in self.prompts)
        return {
            "name": self.name,
            "sha256": self.sha256,
            "prompts": len(self.prompts),
            "prompt_characters_p50": lengths[len(lengths) // 2],
            "prompt_characters_max": lengths[-1],
        }


def parse(name: str, content: bytes) -> Workload:
    """Read JSONL. Raises InvalidWorkload naming the first broken line and what is wrong with it."""
    prompts = [_line(number, line) for number, line in enumerate(content.splitlines(), 1) if line.strip()]
    if not prompts:
        raise InvalidWorkload(f'The workload {name} is empty: give one JSON object a line with a "prompt".')
    return Workload(name=name, sha256=hashlib.sha256(content).hexdigest(), prompts=tuple(prompts))


def _line(number: int, line: bytes) -> Prompt:
    try:
        document = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidWorkload(
            f"Line {number} of the workload is not UTF-8 text (byte {error.start + 1}): convert the file."
        ) from None
    except json.JSONDecodeError as error:
        raise InvalidWorkload(
            f"Line {number} of the workload is not JSON (column {error.colno}: {error.msg}): every line is one JSON object."
        ) from None
    except (ValueError, RecursionError):
        raise InvalidWorkload(f"Line {number} of the workload is not JSON: every line is one JSON object.") from None
    prompt = document.get("prompt") if isinstance(document, dict) else None
    if not isinstance(prompt, str) or not prompt:
        raise InvalidWorkload(f'Line {number} of the workload has no "prompt": every line is an object with that text.')
    if not _is_unicode(prompt):
        raise InvalidWorkload(f"Line {number} of the workload has half a character (a lone surrogate): write the file anew.")
    tokens = document.get("max_tokens")
    if tokens is not None and (not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1):
        raise InvalidWorkload(f'Line {number} of the workload has a wrong "max_tokens": it must be a whole number above 0.')
    return Prompt(prompt=prompt, max_tokens=tokens)


def _is_unicode(words: str) -> bool:
    """JSON can spell half of a surrogate pair, which no server can be sent."""
    try:
        words.encode()
    except UnicodeEncodeError:
        return False
    return True
