"""Writes answers as OpenAI's documents: chunks of a stream, or one whole document."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from backend.serving.openvino_program.model_text import AnswerText, ModelText
from backend.serving.openvino_program.pipeline import NewTokens
from backend.serving.openvino_program.requests import Completion


class _Choice:
    """One answer so far."""

    def __init__(self, text: AnswerText) -> None:
        self.text = text
        self.pieces: list[str] = []
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.finish: str | None = None


class AnswerWriter:
    """The answers to one request. `add` takes new tokens and returns a chunk of the stream; `document` is the whole."""

    def __init__(
        self, request: Completion, model: str, number: str, text: ModelText, prompts: Sequence[Sequence[int]]
    ) -> None:
        self.request, self._text = request, text
        self._prompt_tokens = sum(map(len, prompts))
        choices = [text.answer(prompt, request.stops) for prompt in prompts for _ in range(request.choices)]
        self._choices = [_Choice(answer) for answer in choices]
        self.open_choices = set(range(len(choices)))
        """Answers that are not complete."""
        kind = "text_completion"
        if request.chat:
            kind = "chat.completion.chunk" if request.stream else "chat.completion"
        self._head = {
            "id": f"{'chatcmpl' if request.chat else 'cmpl'}-{number}",
            "object": kind,
            "created": int(time.time()),
            "model": model,
        }
        self._opening = b"data: " + json.dumps(self._head).encode()[:-1]
        self._plain = not (request.logprobs or request.token_ids)

    def add(self, tokens: NewTokens) -> bytes:
        """Take new tokens of an answer and return a chunk of the stream; empty where there is nothing to send."""
        # 1. The text that they add.
        choice, request = self._choices[tokens.choice], self.request
        is_first = not choice.ids
        choice.ids += tokens.ids
        choice.logprobs += tokens.logprobs
        piece = choice.text.add(tokens.ids)
        if choice.text.stopped_by is not None:
            choice.finish = "stop"
        elif tokens.finish is not None:
            piece, choice.finish = piece + choice.text.finish(), tokens.finish
        if choice.finish is not None:
            self.open_choices.discard(tokens.choice)
        # 2. Kept for the whole document, or sent.
        if not request.stream:
            choice.pieces.append(piece)
            return b""
        if not (piece or choice.finish or request.usage_in_chunks or not self._plain):
            return b""
        return self._chunk(tokens, piece, choice.finish, is_first=is_first)

    def stopped(self, choice: int) -> bool:
        """Tell whether a stop string ended the answer, of which the engine knows nothing."""
        return self._choices[choice].text.stopped_by is not None

    def ending(self) -> bytes:
        """Return what ends the stream: the usage if it was asked for, then the mark."""
        usage = b""
        if self.request.usage:
            usage = self._opening + b', "choices": [], "usage": ' + json.dumps(self._usage()).encode() + b"}\n\n"
        return usage + b"data: [DONE]\n\n"

    def document(self, prompt_logprobs: list[dict[int, float] | None] | None = None) -> dict[str, Any]:
        """Return the whole answer; `prompt_logprobs` by position of the only prompt."""
        choices = []
        for index, choice in enumerate(self._choices):
            text = "".join(choice.pieces)
            row: dict[str, Any] = {"index": index, "finish_reason": choice.finish}
            row |= {"message": {"role": "assistant", "content": text}} if self.request.chat else {"text": text}
            row["logprobs"] = self._logprobs(choice.ids, choice.logprobs) if self.request.logprobs else None
            row |= {"stop_reason": choice.text.stopped_by}
            row |= {"token_ids": choice.ids} if self.request.token_ids else {}
            if prompt_logprobs is not None:
                row["prompt_logprobs"] = [self._position(entry) for entry in prompt_logprobs]
            choices.append(row)
        return {**self._head, "choices": choices, "usage": self._usage()}

    def _chunk(self, tokens: NewTokens, piece: str, finish: str | None, *, is_first: bool) -> bytes:
        """Return one event. What most tokens need is joined from parts that are written once."""
        if self.request.chat:
            role = b'"role": "assistant", ' if is_first else b""
            content = b'"delta": {' + role + b'"content": ' + json.dumps(piece).encode() + b"}"
        else:
            content = b'"text": ' + json.dumps(piece).encode()
        more = b""
        if self.request.logprobs:
            more += b', "logprobs": ' + json.dumps(self._logprobs(tokens.ids, tokens.logprobs)).encode()
        if self.request.token_ids:
            more += b', "token_ids": ' + json.dumps(tokens.ids).encode()
        reason = b"null" if finish is None else json.dumps(finish).encode()
        usage = b', "usage": ' + json.dumps(self._usage()).encode() if self.request.usage_in_chunks else b""
        choice = b'{"index": %d, ' % tokens.choice + content + more + b', "finish_reason": ' + reason + b"}"
        return self._opening + b', "choices": [' + choice + b"]" + usage + b"}\n\n"

    def _usage(self) -> dict[str, int]:
        generated = sum(len(choice.ids) for choice in self._choices)
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": generated,
            "total_tokens": self._prompt_tokens + generated,
        }

    def _logprobs(self, ids: Sequence[int], values: Sequence[float]) -> dict[str, Any]:
        """Return log-probabilities as completions or chat write them."""
        words = [self._text.word(token) for token in ids]
        if not self.request.chat:
            tops = [{word: value} for word, value in zip(words, values, strict=True)]
            listed = tops if self.request.top_logprobs else None
            return {"tokens": words, "token_logprobs": list(values), "top_logprobs": listed}
        rows = []
        for word, value in zip(words, values, strict=True):
            row = {"token": word, "logprob": value, "bytes": list(word.encode())}
            rows.append({**row, "top_logprobs": [row] if self.request.top_logprobs else []})
        return {"content": rows}

    def _position(self, entry: dict[int, float] | None) -> dict[str, Any] | None:
        """Return one position of a prompt as vLLM writes it."""
        if entry is None:
            return None
        rows = enumerate(entry.items(), 1)
        return {
            str(token): {"logprob": value, "rank": rank, "decoded_token": self._text.word(token)}
            for rank, (token, value) in rows
        }
