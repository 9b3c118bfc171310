"""Serves a GGUF file with OpenVINO GenAI (`whetstone engines install openvino`)."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from backend.domain.errors import RequestError
from backend.domain.evaluation.document import Variant
from backend.domain.evaluation.evidence import engine_log
from backend.domain.evaluation.evidence.openvino_findings import parse_facts
from backend.domain.evaluation.evidence.served_variant import OpenVinoFacts, StartEvidence
from backend.domain.evaluation.startup import Startup
from backend.domain.jobs.progress import Progress
from backend.serving import llama_cpp_options
from backend.serving.model_server import NICE, READY_SECONDS
from backend.serving.openvino import options
from backend.serving.vllm import VllmRoutes


class OpenVinoServer(VllmRoutes):
    """One server of one GGUF file, which is linked into its private folder beside the model's tokenizer.

    `program` is the interpreter of the environment; `tokens_in_flight` and `streams` are the most tokens and requests
    at one time, None where the load is not known.
    """

    title = "OpenVINO GenAI"

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
            raise RequestError(f"{variant.name} has no GGUF file, which OpenVINO reads here: serve it with vLLM.")
        self._program, self._gguf = program, Path(variant.gguf)
        self._tokens_in_flight, self._streams = tokens_in_flight, streams
        self._attempt_began = 0.0
        self._facts = OpenVinoFacts()

    def _command(self) -> list[str]:
        arguments = options.server_arguments(
            self._variant,
            port=self._port,
            served_name=self.served_name,
            tokens_in_flight=self._tokens_in_flight,
            streams=self._streams,
        )
        return [*NICE, str(self._program), *arguments]

    def _environment(self) -> dict[str, str]:
        return options.environment()

    def _with_key(self, environment: Mapping[str, str]) -> dict[str, str]:
        return {**environment, "WHETSTONE_SERVER_KEY": self._key}

    def _links(self) -> dict[str, Path]:
        folder = Path(self._variant.model_path or "").resolve()
        return {**llama_cpp_options.links(self._gguf), options.TOKENIZER_LINK: folder}

    def _begin_start(self) -> None:
        self._attempt_began = time.monotonic()

    def _read_startup(self) -> Startup:
        # What it says of itself, now that it answers; it may have ended when somebody asks for it.
        self._facts = parse_facts(json.loads(self._ask("/v1/models")[1]))
        return Startup(kind="eager", listen_s=round(time.monotonic() - self._attempt_began, 2))

    def _read_evidence(self, lines: Sequence[str], metrics: str) -> StartEvidence:
        return StartEvidence(engine_log.parse_engine_log([]), startup=self.startup, openvino=self._facts)
