"""Serves a GGUF file with llama.cpp's own server (`whetstone engines install llama-cpp`)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from backend.domain.errors import RequestError
from backend.domain.evaluation.document import Variant
from backend.domain.evaluation.evidence import engine_log, llama_cpp_log
from backend.domain.evaluation.evidence.lossless import Answer
from backend.domain.evaluation.evidence.served_variant import StartEvidence
from backend.domain.evaluation.startup import Startup
from backend.domain.jobs.progress import Progress
from backend.domain.limits.served_divergence import TokenLogprobs, parse_token_probabilities
from backend.serving import llama_cpp_options
from backend.serving.model_server import NICE, READY_SECONDS, ModelServer


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
        self._tokens_in_flight, self._streams = tokens_in_flight, streams
        self._attempt_began = 0.0

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
        return llama_cpp_options.links(self._gguf)

    def _begin_start(self) -> None:
        self._attempt_began = time.monotonic()

    def _read_startup(self) -> Startup:
        return Startup(kind="eager", listen_s=round(time.monotonic() - self._attempt_began, 2))

    def _read_evidence(self, lines: Sequence[str], metrics: str) -> StartEvidence:
        settings = llama_cpp_log.parse_settings(lines)
        return StartEvidence(engine_log.parse_engine_log([]), startup=self.startup, llama_cpp=settings)

    def prompt_tokens(self, prompt: str, *, chat: bool) -> list[int]:
        if chat:
            prompt = self.answer("/apply-template", {"messages": [{"role": "user", "content": prompt}]})["prompt"]
        body = {"content": prompt, "add_special": True, "parse_special": chat}
        return [int(token) for token in self.answer("/tokenize", body)["tokens"]]

    def token_answers(self, prompts: Sequence[Sequence[int]], tokens: int, *, samples: int = 0) -> list[Answer]:
        """Send one request for each answer, all at the same time: its route for several prompts takes no samples."""
        body: dict[str, Any] = {"n_predict": tokens, "return_tokens": True, "temperature": 1.0 if samples else 0.0}
        requests = [{**body, "prompt": list(prompt)} for prompt in prompts for _ in range(samples or 1)]
        with ThreadPoolExecutor(len(requests)) as threads:
            replies = list(threads.map(lambda request: self.answer("/completion", request), requests))
        return [reply["tokens"] for reply in replies]

    def prompt_logprobs(self, tokens: Sequence[int], most: int) -> list[TokenLogprobs]:
        """Ask for the token after each beginning of the prompt, since the server reports nothing about prompts.

        The slot holds the beginning already (`cache_prompt`), so each request computes one token.
        """
        body: dict[str, Any] = {"n_predict": 1, "n_probs": most, "temperature": 0, "cache_prompt": True, "id_slot": 0}
        positions: list[TokenLogprobs] = [{}]
        for length in range(1, len(tokens)):
            reply = self.answer("/completion", {**body, "prompt": list(tokens[:length])})
            positions.append(parse_token_probabilities(reply))
        return positions
