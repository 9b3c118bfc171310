"""The server's routes, as an ASGI application without a framework: a token passes through few lines of Python."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import time
import traceback
import uuid
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from backend.serving.openvino_program.answers import AnswerWriter
from backend.serving.openvino_program.model_text import ModelText
from backend.serving.openvino_program.pipeline import Arrivals, Generation, Pipeline
from backend.serving.openvino_program.requests import Completion, Refusal, parse_body, parse_completion

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
MOST_BODY = 64 * 2**20
"""Bytes of a request's body."""
USUAL_TOKENS = 16
"""Tokens of a completion that states no limit (OpenAI's default)."""
JSON, EVENTS = b"application/json", b"text/event-stream; charset=utf-8"
ENGINE_FAILED = 70
"""Exit code where a step of the engine failed: what it holds cannot be trusted any more."""


class App:
    """One model behind the routes of OpenAI and vLLM that Whetstone asks. All but /health require the key."""

    def __init__(
        self, pipeline: Pipeline, text: ModelText, *, name: str, context: int, key: str, facts: dict[str, Any]
    ) -> None:
        self._pipeline, self._text, self._name, self._context = pipeline, text, name, context
        self._key, self._facts = _digest(key.encode()), facts
        self._began = int(time.time())
        self._counts = {"prompt_tokens": 0, "generation_tokens": 0, "requests": 0}
        self._steps: asyncio.Task[None] | None = None
        self._post = {
            "/v1/completions": self._completions,
            "/v1/chat/completions": self._chat,
            "/tokenize": self._tokenize,
        }

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        if scope["type"] != "http":
            return
        try:
            await self._route(scope, receive, send)
        except Refusal as refusal:
            await _reply(send, refusal.document(), status=refusal.status)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        self._steps = asyncio.create_task(self._pipeline.run())
        self._steps.add_done_callback(_end_if_failed)
        await send({"type": "lifespan.startup.complete"})
        await receive()
        self._steps.cancel()
        await send({"type": "lifespan.shutdown.complete"})

    async def _route(self, scope: Message, receive: Receive, send: Send) -> None:
        # 1. The key.
        path, method = scope["path"], scope["method"]
        if path != "/health" and not self._has_key(scope["headers"]):
            raise Refusal("This server needs its key as a bearer token.", status=401)
        # 2. What is only read.
        pages = {"/health": self._health, "/v1/models": self._models, "/metrics": self._metrics}
        if path in pages and method in {"GET", "HEAD"}:
            body, kind = pages[path]()
            await _reply(send, body, kind=kind)
            return
        # 3. What is asked.
        if path not in self._post and path not in pages:
            raise Refusal(f"There is no {path[:100]} here.", status=404)
        if path not in self._post or method != "POST":
            raise Refusal(f"{path} is not asked by {method}.", status=405)
        await self._post[path](parse_body(await _read_body(receive)), receive, send)

    def _has_key(self, headers: list[tuple[bytes, bytes]]) -> bool:
        """Tell whether the request has the key. Digests are compared, so that the time taken reveals nothing of it."""
        values = [value for name, value in headers if name == b"authorization"]
        kind, _, token = (values[0] if len(values) == 1 else b"").partition(b" ")
        return kind.lower() == b"bearer" and hmac.compare_digest(_digest(token), self._key)

    def _health(self) -> tuple[bytes, bytes]:
        return b"{}", JSON

    def _models(self) -> tuple[bytes, bytes]:
        row = {"id": self._name, "object": "model", "created": self._began, "owned_by": "openvino"}
        row |= {"max_model_len": self._context, "meta": self._facts}
        return json.dumps({"object": "list", "data": [row]}).encode(), JSON

    def _metrics(self) -> tuple[bytes, bytes]:
        """Write the counters in Prometheus' text format."""
        lines = [f"openvino:{name}_total {value}" for name, value in self._counts.items()]
        lines.append(f"openvino:requests_running {self._pipeline.running()}")
        return "\n".join([*lines, ""]).encode(), b"text/plain; version=0.0.4"

    async def _tokenize(self, body: dict[str, Any], receive: Receive, send: Send) -> None:
        chat = "messages" in body
        request = parse_completion(body, chat=chat, model=self._name)
        ids = self._prompt_ids(request)[0]
        document = {"tokens": ids, "count": len(ids), "max_model_len": self._context}
        await _reply(send, json.dumps(document).encode())

    async def _completions(self, body: dict[str, Any], receive: Receive, send: Send) -> None:
        await self._answer(parse_completion(body, chat=False, model=self._name), receive, send)

    async def _chat(self, body: dict[str, Any], receive: Receive, send: Send) -> None:
        await self._answer(parse_completion(body, chat=True, model=self._name), receive, send)

    async def _answer(self, request: Completion, receive: Receive, send: Send) -> None:
        # 1. Everything that can be refused is refused before anything is computed.
        prompts = self._prompt_ids(request)
        lengths = [self._answer_length(request, prompt) for prompt in prompts]
        reported = None
        if request.prompt_logprobs:
            reported = await self._pipeline.most_probable(prompts[0], request.prompt_logprobs)
        # 2. Begin all answers.
        arrivals, generations = Arrivals(), list[Generation]()
        writer = AnswerWriter(request, self._name, f"{uuid.uuid4().hex}", self._text, prompts)
        try:
            for number, prompt in enumerate(prompts):
                for choice in range(request.choices):
                    config = self._pipeline.config(request, lengths[number], self._text.ending_ids, choice)
                    index = number * request.choices + choice
                    generations.append(self._pipeline.add(prompt, config, index, arrivals))
            self._counts["requests"] += 1
            self._counts["prompt_tokens"] += sum(map(len, prompts))
            # 3. Pass them on; a client that leaves ends them.
            leaving = asyncio.ensure_future(receive())
            leaving.add_done_callback(lambda _: arrivals.put_nowait(None))
            try:
                await self._pass_on(writer, arrivals, generations, send, reported)
            finally:
                leaving.cancel()
        finally:
            self._pipeline.cancel(generations)

    async def _pass_on(
        self,
        writer: AnswerWriter,
        arrivals: Arrivals,
        generations: list[Generation],
        send: Send,
        reported: list[dict[int, float] | None] | None,
    ) -> None:
        """Write what comes until all answers are complete or the client has left. Raises Refusal."""
        stream, started = writer.request.stream, False
        while writer.open_choices:
            tokens = await arrivals.get()
            if tokens is None:
                return
            if tokens.choice not in writer.open_choices:
                continue
            # 1. An answer that never fits the cache is refused; a stream has not begun then.
            if tokens.finish == "ignored":
                raise Refusal("The prompt and its answer do not fit the server's cache: send a shorter one.", "prompt")
            self._counts["generation_tokens"] += len(tokens.ids)
            chunk = writer.add(tokens)
            if writer.stopped(tokens.choice):
                self._pipeline.cancel([each for each in generations if each.choice == tokens.choice])
            # 2. A chunk of the stream; the last one ends it.
            if stream and chunk:
                if not started:
                    await _start(send, 200, EVENTS)
                    started = True
                last = not writer.open_choices
                body = chunk + writer.ending() if last else chunk
                await send({"type": "http.response.body", "body": body, "more_body": not last})
        if not stream:
            await _reply(send, json.dumps(writer.document(reported)).encode())

    def _prompt_ids(self, request: Completion) -> list[list[int]]:
        """Return the token ids of every prompt. Raises Refusal."""
        if request.chat:
            return [self._text.encode_messages(request.prompts[0], generation_prompt=request.generation_prompt)]
        prompts = [self._text.encode(each) if isinstance(each, str) else each for each in request.prompts]
        if not all(prompts):
            raise Refusal("The prompt has no tokens.", "prompt")
        for prompt in prompts:
            self._text.check_known(prompt)
        return prompts

    def _answer_length(self, request: Completion, prompt: list[int]) -> int:
        """Return the most tokens of an answer. Raises Refusal where prompt and answer are beyond the context."""
        room = self._context - len(prompt)
        length = request.most_tokens or (room if request.chat else min(USUAL_TOKENS, room))
        if room < 1 or length > room:
            raise Refusal(
                f"The maximum context length is {self._context} tokens, and {len(prompt)} of the prompt with "
                f"{max(1, length)} of the answer are more: shorten one of them.",
                "prompt",
            )
        return length


def _end_if_failed(steps: asyncio.Task[None]) -> None:
    """End the server where the engine's steps ended by an error: it would answer nobody any more."""
    if not steps.cancelled() and (error := steps.exception()) is not None:
        traceback.print_exception(error)
        os._exit(ENGINE_FAILED)


async def _read_body(receive: Receive) -> bytes:
    """Return a request's body. Raises Refusal where it is too large or its client has left."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refusal("The client has left.")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MOST_BODY:
            raise Refusal(f"The body has more than {MOST_BODY // 2**20} MiB.", status=413)
        if not message.get("more_body"):
            return b"".join(parts)


async def _start(send: Send, status: int, kind: bytes) -> None:
    headers = [(b"content-type", kind)]
    headers += [(b"www-authenticate", b"Bearer")] if status == 401 else []
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _reply(send: Send, body: bytes, *, status: int = 200, kind: bytes = JSON) -> None:
    await _start(send, status, kind)
    await send({"type": "http.response.body", "body": body})


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
