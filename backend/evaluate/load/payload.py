"""Prompts file -> request bytes. Everything but the seed is written before the run, so that sending costs next to nothing.

Knows nothing of connections.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from backend.domain.errors import InvalidWorkload
from backend.domain.load import LoadPlan, UsageRung
from backend.evaluate.load.endpoint import Address


class Payloads:
    """The requests of one level: `request(prompt, seed)` is the whole request, head and body."""

    def __init__(
        self, plan: LoadPlan, prompts: list[dict[str, Any]], place: Address, token: str | None, usage: UsageRung
    ) -> None:
        self._bodies = [_body(plan, prompt, usage) for prompt in prompts]
        self._head = _head(place, plan.endpoint, token)
        self.count = len(prompts)

    def request(self, prompt: int, seed: int | None) -> bytes:
        ending = b"}" if seed is None else b',"seed":%d}' % seed
        body = self._bodies[prompt] + ending
        return b"%s%d\r\n\r\n%s" % (self._head, len(body), body)


def read_prompts(path: Path, endpoint: str) -> list[dict[str, Any]]:
    """The prompts, checked. Raises InvalidWorkload naming the first wrong line."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise InvalidWorkload(f"The workload {path} cannot be read ({error.strerror}): give a JSONL file.") from None
    except UnicodeDecodeError:
        raise InvalidWorkload(f"The workload {path} is not UTF-8 text: give a JSONL file.") from None
    prompts = [_prompt(line, f"{path.name}, line {n}", endpoint) for n, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise InvalidWorkload(f'The workload {path} is empty: every line must be a JSON object with a "prompt".')
    return prompts


def _prompt(line: str, where: str, endpoint: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError:
        raise InvalidWorkload(f'{where}: not JSON; every line must be a JSON object with a "prompt".') from None
    if not isinstance(row, dict):
        raise InvalidWorkload(f'{where}: every line must be a JSON object with a "prompt".')
    length = row.get("max_tokens")
    if length is not None and (not isinstance(length, int) or isinstance(length, bool) or length < 1):
        raise InvalidWorkload(f"{where}: max_tokens must be a whole number of at least 1.")
    if isinstance(row.get("prompt"), str) and row["prompt"]:
        return {"prompt": row["prompt"], "max_tokens": length}
    return {"prompt": _token_ids(row.get("prompt_token_ids"), where, endpoint), "max_tokens": length}


def _token_ids(ids: Any, where: str, endpoint: str) -> list[int]:
    if ids is None:
        raise InvalidWorkload(f'{where}: there is no "prompt" with text in it.')
    if endpoint == "chat":
        raise InvalidWorkload(f'{where}: the chat endpoint takes text only; give a "prompt", or use completions.')
    if not isinstance(ids, list) or not ids or not all(type(i) is int and i >= 0 for i in ids):
        raise InvalidWorkload(f"{where}: prompt_token_ids must be a list of whole numbers.")
    return ids


def _body(plan: LoadPlan, prompt: dict[str, Any], usage: UsageRung) -> bytes:
    text = prompt["prompt"]
    document: dict[str, Any] = {"model": plan.model}
    document |= {"messages": [{"role": "user", "content": text}]} if plan.endpoint == "chat" else {"prompt": text}
    document |= {"max_tokens": prompt["max_tokens"] or plan.max_tokens, "temperature": plan.temperature, "stream": True}
    document |= {} if plan.top_p is None else {"top_p": plan.top_p}
    document |= {"ignore_eos": True} if plan.ignore_eos else {}
    if usage != "none":
        extra = {"continuous_usage_stats": True} if usage == "continuous" else {}
        document["stream_options"] = {"include_usage": True, **extra}
    return json.dumps(document, separators=(",", ":")).encode()[:-1]


def _head(place: Address, endpoint: str, token: str | None) -> bytes:
    lines = [
        f"POST {place.path(endpoint)} HTTP/1.1",
        f"Host: {place.authority}",
        "User-Agent: whetstone-load",
        "Accept: text/event-stream, application/json",
        "Content-Type: application/json",
        *([f"Authorization: Bearer {token}"] if token else []),
        "Content-Length: ",
    ]
    return "\r\n".join(lines).encode("ascii")
