"""Serves a GGUF file with llama.cpp's own server (`whetstone engines install llama-cpp`)."""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from backend.domain.errors import RequestError
from backend.domain.evaluation import llama_cpp_speculation
from backend.domain.evaluation.evidence import engine_log
from backend.domain.evaluation.evidence.llama_cpp_findings import add_logged_facts, parse_facts
from backend.domain.evaluation.evidence.lossless import Answer
from backend.domain.evaluation.evidence.served_variant import LlamaCppFacts, StartEvidence
from backend.domain.limits.served_divergence import TokenLogprobs, parse_token_probabilities
from backend.domain.load import counters
from backend.serving import llama_cpp_options
from backend.serving.gguf.server import GgufServer, file_links

STRIDE = 4
"""Tokens between two positions of a prompt whose probabilities are asked for: a request takes as long as a token of an
answer, and neighbouring positions of one window tell little more."""

MOST_WAITING = 32
"""Requests that are sent at one time; its slots answer fewer, and each one that waits takes a thread on both sides."""


class LlamaCppServer(GgufServer):
    """A server of llama.cpp; `program` is llama-server. A draft is a GGUF file too."""

    title = "llama.cpp"
    key_variable = "LLAMA_API_KEY"
    write_arguments = staticmethod(llama_cpp_options.server_arguments)

    _draft: Path | None = None
    _facts = LlamaCppFacts()

    def _check_variant(self) -> None:
        super()._check_variant()
        speculation = self._variant.speculation
        draft = speculation.draft_gguf if speculation else None
        if speculation is not None and speculation.draft_path is not None and draft is None:
            raise RequestError(llama_cpp_speculation.unread_draft(Path(speculation.draft_path).name).sentence)
        self._draft = Path(draft) if draft else None

    @property
    def served_name(self) -> str:
        """The model's name; a comma would begin another one (`--alias`)."""
        return super().served_name.replace(",", " ")

    def _environment(self) -> dict[str, str]:
        return llama_cpp_options.environment()

    def _links(self) -> dict[str, Path]:
        draft = file_links(self._draft, llama_cpp_options.DRAFT) if self._draft else {}
        return super()._links() | draft

    def _read_facts(self) -> None:
        models, properties = (self._read_json(path) for path in ("/v1/models", "/props"))
        self._facts = parse_facts(models, properties)

    def _read_json(self, path: str) -> dict[str, Any]:
        """Return the document at a path; empty where there is none."""
        try:
            document = json.loads(self._ask(path)[1])
        except (OSError, http.client.HTTPException, ValueError):
            return {}
        return document if isinstance(document, dict) else {}

    def metrics(self) -> dict[str, float]:
        """Return the counters since the start; where it speculates, those of drafts from 0 on."""
        speculation = self._variant.speculation
        if speculation is None:
            return super().metrics()
        places = [f"{counters.ACCEPTED_AT}{place}" for place in range(speculation.tokens)]
        return dict.fromkeys((*counters.DRAFTING, *places), 0.0) | super().metrics()

    def _read_evidence(self, lines: Sequence[str], metrics: str) -> StartEvidence:
        facts = add_logged_facts(self._facts, lines)
        return StartEvidence(engine_log.parse_engine_log([]), startup=self.startup, llama_cpp=facts)

    def prompt_tokens(self, prompt: str, *, chat: bool) -> list[int]:
        if chat:
            prompt = self.answer("/apply-template", {"messages": [{"role": "user", "content": prompt}]})["prompt"]
        body = {"content": prompt, "add_special": True, "parse_special": chat}
        return [int(token) for token in self.answer("/tokenize", body)["tokens"]]

    def token_answers(self, prompts: Sequence[Sequence[int]], tokens: int, *, samples: int = 0) -> list[Answer]:
        """Send one request for each answer, all at the same time: its route for several prompts takes no samples."""
        body: dict[str, Any] = {"n_predict": tokens, "return_tokens": True, "temperature": 1.0 if samples else 0.0}
        requests = [{**body, "prompt": list(prompt)} for prompt in prompts for _ in range(samples or 1)]
        with ThreadPoolExecutor(min(len(requests), MOST_WAITING)) as threads:
            replies = list(threads.map(lambda request: self.answer("/completion", request), requests))
        return [reply["tokens"] for reply in replies]

    def prompt_logprobs(self, tokens: Sequence[int], most: int) -> list[TokenLogprobs]:
        """Ask for the token after each STRIDE-th beginning of the prompt, since the server reports nothing about the
        prompt itself.

        The slot holds the last beginning already (`cache_prompt`), so a request computes STRIDE tokens. The other
        positions are empty.
        """
        body: dict[str, Any] = {"n_predict": 1, "n_probs": most, "temperature": 0, "cache_prompt": True, "id_slot": 0}
        positions: list[TokenLogprobs] = [{} for _ in tokens]
        for length in range(STRIDE, len(tokens), STRIDE):
            reply = self.answer("/completion", {**body, "prompt": list(tokens[:length])})
            positions[length] = parse_token_probabilities(reply)
        return positions
