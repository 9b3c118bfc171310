"""Serves a GGUF file with llama.cpp's own server (`whetstone engines install llama-cpp`)."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from backend.domain.errors import RequestError
from backend.domain.evaluation import llama_cpp_speculation
from backend.domain.evaluation.document import Variant
from backend.domain.evaluation.evidence import engine_log
from backend.domain.evaluation.evidence.llama_cpp_findings import add_logged_facts, parse_facts
from backend.domain.evaluation.evidence.lossless import Answer
from backend.domain.evaluation.evidence.served_variant import LlamaCppFacts, StartEvidence
from backend.domain.evaluation.startup import Startup
from backend.domain.jobs.progress import Progress
from backend.domain.limits.served_divergence import TokenLogprobs, parse_token_probabilities
from backend.domain.load import counters
from backend.serving import llama_cpp_options
from backend.serving.model_server import NICE, READY_SECONDS, ModelServer

STRIDE = 4
"""Tokens between two positions of a prompt whose probabilities are asked for: a request takes as long as a token of an
answer, and neighbouring positions of one window tell little more."""

MOST_WAITING = 32
"""Requests that are sent at one time; its slots answer fewer, and each one that waits takes a thread on both sides."""


class LlamaCppServer(ModelServer):
    """One server of one GGUF file, which is linked into its private folder under its own name.

    `program` is llama-server; `tokens_in_flight` and `streams` are the most tokens and requests at one time, None where
    the load is not known.
    """

    title = "llama.cpp"

    def __init__(
        self,
        variant: Variant,
        *,
        program: Path,
        log: Path,
        tokens_in_flight: int | None = None,
        streams: int | None = None,
        progress: Progress | None = None,
        port: int | None = None,
        ready_s: float = READY_SECONDS,
    ) -> None:
        super().__init__(variant, log=log, progress=progress, port=port, ready_s=ready_s)
        if variant.gguf is None:
            raise RequestError(
                f"{variant.name} has no GGUF file, and llama.cpp reads nothing else: serve it with vLLM."
            )
        self._program = program
        self._gguf = Path(variant.gguf)
        draft = variant.speculation.draft_gguf if variant.speculation else None
        if variant.speculation is not None and variant.speculation.draft_path is not None and draft is None:
            raise RequestError(llama_cpp_speculation.unread_draft(Path(variant.speculation.draft_path).name).sentence)
        self._draft = Path(draft) if draft else None
        self._tokens_in_flight, self._streams = tokens_in_flight, streams
        self._attempt_began = 0.0
        self._facts = LlamaCppFacts()

    @property
    def served_name(self) -> str:
        """The model's name; a comma would begin another one (`--alias`)."""
        return super().served_name.replace(",", " ")

    def _command(self) -> list[str]:
        arguments = llama_cpp_options.server_arguments(
            self._variant,
            port=self._port,
            served_name=self.served_name,
            tokens_in_flight=self._tokens_in_flight,
            streams=self._streams,
        )
        return [*NICE, str(self._program), *arguments]

    def _environment(self) -> dict[str, str]:
        return llama_cpp_options.environment()

    def _with_key(self, environment: Mapping[str, str]) -> dict[str, str]:
        return {**environment, "LLAMA_API_KEY": self._key}

    def _links(self) -> dict[str, Path]:
        draft = llama_cpp_options.links(self._draft, llama_cpp_options.DRAFT) if self._draft else {}
        return llama_cpp_options.links(self._gguf) | draft

    def _begin_start(self) -> None:
        self._attempt_began = time.monotonic()

    def _read_startup(self) -> Startup:
        startup = Startup(kind="eager", listen_s=round(time.monotonic() - self._attempt_began, 2))
        # What it says of itself, now that it answers; it may have ended when somebody asks for it.
        models, properties = (self._read_json(path) for path in ("/v1/models", "/props"))
        self._facts = parse_facts(models, properties)
        return startup

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
