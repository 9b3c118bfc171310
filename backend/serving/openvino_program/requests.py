"""Reads the bodies of requests to the server, and refuses what it cannot do in OpenAI's shape of an error. Pure.

Fields as of OpenAI's API reference (completions and chat, 2026), with those of vLLM 0.32 that Whetstone sends.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

MOST_CHOICES = 128
MOST_STOPS = 16
MOST_PROMPT_LOGPROBS = 64
NOT_SERVED = frozenset(
    (
        "audio",
        "best_of",
        "echo",
        "function_call",
        "functions",
        "guided_json",
        "logit_bias",
        "modalities",
        "parallel_tool_calls",
    )
    + ("prediction", "reasoning_effort", "response_format", "stop_token_ids", "suffix", "tool_choice", "tools")
    + ("use_beam_search", "verbosity", "web_search_options")
)
"""Fields of others that change an answer, and that this server does not follow."""
WITHOUT_EFFECT = frozenset(
    ("cache_salt", "metadata", "prompt_cache_key", "safety_identifier", "service_tier", "store", "user")
)
"""Fields that change no answer here. A salt separates cached prompts, which are of one person here."""
SHARED = frozenset(
    ("frequency_penalty", "ignore_eos", "max_tokens", "min_p", "min_tokens", "model", "n", "presence_penalty")
    + (
        "repetition_penalty",
        "return_token_ids",
        "seed",
        "stop",
        "stream",
        "stream_options",
        "temperature",
        "top_k",
        "top_p",
    )
)
OWN_FIELDS = {
    False: frozenset(("logprobs", "prompt", "prompt_logprobs")),
    True: frozenset(("add_generation_prompt", "logprobs", "max_completion_tokens", "messages", "top_logprobs")),
}
"""Fields of completions and of chat."""


class Refusal(Exception):
    """A request that is not answered; `field` names what is wrong with it, where one field is."""

    def __init__(self, message: str, field: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.field, self.status = field, status

    def document(self) -> bytes:
        """Return the error in OpenAI's shape."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": str(self), "type": kind, "param": self.field, "code": self.status}
        return json.dumps({"error": error}).encode()


class Sampling(NamedTuple):
    """Chooses tokens by these values; the defaults change no probability."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None


class Completion(NamedTuple):
    """A request for answers. `prompts` holds texts or token ids, of chat the messages as one entry."""

    chat: bool
    prompts: tuple[Any, ...]
    most_tokens: int | None
    """None where nobody said: 16 of a completion (OpenAI's default), of chat what the context leaves."""
    least_tokens: int
    ignore_eos: bool
    sampling: Sampling
    choices: int
    stops: tuple[str, ...]
    stream: bool
    usage: bool
    """A last chunk says the usage."""
    usage_in_chunks: bool
    logprobs: bool
    top_logprobs: int
    """Most probable tokens that a position lists: the chosen one or none."""
    prompt_logprobs: int
    token_ids: bool
    generation_prompt: bool


def parse_body(body: bytes) -> dict[str, Any]:
    """Return a request's JSON object. Raises Refusal."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise Refusal("The body is not JSON.") from None
    if not isinstance(document, dict):
        raise Refusal("The body is not a JSON object.")
    return document


def parse_completion(body: Mapping[str, Any], *, chat: bool, model: str) -> Completion:
    """Return a request for answers. Raises Refusal with the field that is wrong."""
    # 1. Fields that are not known, or not followed; null is as if it was not there.
    fields = {name: value for name, value in body.items() if value is not None}
    _check_names(fields, chat=chat)
    if fields.get("model", model) != model:
        raise Refusal(f"This server has the model {model} only.", "model", 404)
    # 2. The prompt and its length.
    prompts = (_messages(fields),) if chat else _prompts(fields)
    most = _whole(fields, "max_completion_tokens", 1) or _whole(fields, "max_tokens", 1)
    least = _whole(fields, "min_tokens", 0) or 0
    if most is not None and least > most:
        raise Refusal(f"min_tokens {least} is above max_tokens {most}.", "min_tokens")
    # 3. What is reported beside the text.
    stream, options = _flag(fields, "stream"), _stream_options(fields)
    logprobs, top = _logprobs(fields, chat=chat)
    prompt_logprobs = _whole(fields, "prompt_logprobs", 0, MOST_PROMPT_LOGPROBS) or 0
    choices = _whole(fields, "n", 1, MOST_CHOICES) or 1
    if prompt_logprobs and (stream or len(prompts) > 1 or choices > 1):
        raise Refusal("prompt_logprobs goes with one prompt, n=1 and no stream.", "prompt_logprobs")
    return Completion(
        chat=chat,
        prompts=prompts,
        most_tokens=most,
        least_tokens=least,
        ignore_eos=_flag(fields, "ignore_eos"),
        sampling=_sampling(fields),
        choices=choices,
        stops=_stops(fields),
        stream=stream,
        usage=options["include_usage"],
        usage_in_chunks=options["continuous_usage_stats"],
        logprobs=logprobs,
        top_logprobs=top,
        prompt_logprobs=prompt_logprobs,
        token_ids=_flag(fields, "return_token_ids"),
        generation_prompt=_flag(fields, "add_generation_prompt", default=True),
    )


def _check_names(fields: Mapping[str, Any], *, chat: bool) -> None:
    for name, value in fields.items():
        is_text_format = name == "response_format" and value == {"type": "text"}
        is_no_tool = name in {"tool_choice", "tools", "functions"} and value in ([], "none")
        if name in SHARED | OWN_FIELDS[chat] | WITHOUT_EFFECT or is_text_format or is_no_tool:
            continue
        if name in NOT_SERVED:
            raise Refusal(f"This server does not follow `{name}`: leave it out.", name)
        raise Refusal(f"There is no field `{name[:60]}` here: leave it out.", name[:60])


def _messages(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the messages with their content as text. Raises Refusal."""
    messages = fields.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Refusal("messages must be a list with at least one message.", "messages")
    return [_message(message) for message in messages]


def _message(message: Any) -> dict[str, Any]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise Refusal("Each message must be an object with a role.", "messages")
    content = message.get("content")
    if isinstance(content, list):
        texts = [
            part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in content
        ]
        content = None if None in texts else "\n".join(map(str, texts))
    if not isinstance(content, str):
        raise Refusal("The content of a message must be text: this server reads nothing else.", "messages")
    return {**message, "content": content}


def _prompts(fields: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return prompts, each a text or a list of token ids. Raises Refusal."""
    prompt = fields.get("prompt")
    if isinstance(prompt, str) or _is_token_ids(prompt):
        return (prompt,)
    if isinstance(prompt, list) and prompt and all(isinstance(each, str) or _is_token_ids(each) for each in prompt):
        return tuple(prompt)
    raise Refusal("prompt must be a text, a list of token ids, or a list of those.", "prompt")


def _is_token_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int and token >= 0 for token in value)


def _sampling(fields: Mapping[str, Any]) -> Sampling:
    top_k = _whole(fields, "top_k", -1)
    return Sampling(
        temperature=_number(fields, "temperature", 1.0, 0.0, 100.0),
        top_p=_number(fields, "top_p", 1.0, 1e-6, 1.0),
        top_k=max(0, top_k or 0),
        min_p=_number(fields, "min_p", 0.0, 0.0, 0.999999),
        repetition_penalty=_number(fields, "repetition_penalty", 1.0, 1e-6, 100.0),
        presence_penalty=_number(fields, "presence_penalty", 0.0, -2.0, 2.0),
        frequency_penalty=_number(fields, "frequency_penalty", 0.0, -2.0, 2.0),
        seed=_whole(fields, "seed", 0, 2**64 - 1),
    )


def _stops(fields: Mapping[str, Any]) -> tuple[str, ...]:
    value = fields.get("stop", [])
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MOST_STOPS or not all(isinstance(s, str) and s for s in stops):
        raise Refusal(f"stop must be a text, or a list of at most {MOST_STOPS} texts that are not empty.", "stop")
    return tuple(stops)


def _stream_options(fields: Mapping[str, Any]) -> dict[str, bool]:
    options = fields.get("stream_options", {})
    if not isinstance(options, dict) or not options.keys() <= {"include_usage", "continuous_usage_stats"}:
        raise Refusal("stream_options may have include_usage and continuous_usage_stats.", "stream_options")
    if options and not fields.get("stream"):
        raise Refusal("stream_options goes with `stream: true`.", "stream_options")
    return {name: _flag(options, name) for name in ("include_usage", "continuous_usage_stats")}


def _logprobs(fields: Mapping[str, Any], *, chat: bool) -> tuple[bool, int]:
    """Return whether log-probabilities are reported, and of how many tokens a position lists them."""
    if chat:
        chosen = _flag(fields, "logprobs")
        top = _whole(fields, "top_logprobs", 0) or 0
        if top and not chosen:
            raise Refusal("top_logprobs goes with `logprobs: true`.", "top_logprobs")
    else:
        top = _whole(fields, "logprobs", 0) or 0
        chosen = "logprobs" in fields
    if top > 1:
        message = "OpenVINO GenAI reports the log-probability of the chosen token only: ask for at most 1."
        raise Refusal(message, "top_logprobs" if chat else "logprobs")
    return chosen, top


def _flag(fields: Mapping[str, Any], name: str, *, default: bool = False) -> bool:
    value = fields.get(name, default)
    if not isinstance(value, bool):
        raise Refusal(f"{name} must be true or false.", name)
    return value


def _whole(fields: Mapping[str, Any], name: str, least: int, most: int = 2**31) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if type(value) is not int or not least <= value <= most:
        raise Refusal(f"{name} must be a whole number from {least} to {most}.", name)
    return value


def _number(fields: Mapping[str, Any], name: str, default: float, least: float, most: float) -> float:
    value = fields.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise Refusal(f"{name} must be a number.", name)
    if not least <= value <= most:
        raise Refusal(f"{name} must be from {least:g} to {most:g}.", name)
    return float(value)
