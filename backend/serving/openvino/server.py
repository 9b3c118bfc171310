"""Serves a GGUF file with OpenVINO GenAI (`whetstone engines install openvino`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from backend.domain.evaluation.evidence import engine_log
from backend.domain.evaluation.evidence.lossless import Answer
from backend.domain.evaluation.evidence.openvino_findings import parse_facts
from backend.domain.evaluation.evidence.served_variant import OpenVinoFacts, StartEvidence
from backend.serving.gguf.server import GgufServer
from backend.serving.openvino import options
from backend.serving.vllm import VllmRoutes

SAMPLES_AT_ONCE = 16


class OpenVinoServer(GgufServer, VllmRoutes):
    """A server of OpenVINO GenAI, with the model's tokenizer beside the file; `program` is the interpreter of its
    environment."""

    title = "OpenVINO GenAI"
    key_variable = "WHETSTONE_SERVER_KEY"
    write_arguments = staticmethod(options.server_arguments)
    _facts = OpenVinoFacts()

    def token_answers(self, prompts: Sequence[Sequence[int]], tokens: int, *, samples: int = 0) -> list[Answer]:
        """Ask for samples in parts: GenAI reads the prompt anew for each, so that all at once take minutes."""
        if samples <= SAMPLES_AT_ONCE:
            return super().token_answers(prompts, tokens, samples=samples)
        sizes = [min(SAMPLES_AT_ONCE, samples - start) for start in range(0, samples, SAMPLES_AT_ONCE)]
        ask = super().token_answers
        return list(chain.from_iterable(ask([one], tokens, samples=size) for one in prompts for size in sizes))

    def _environment(self) -> dict[str, str]:
        return options.environment()

    def _links(self) -> dict[str, Path]:
        return {**super()._links(), options.TOKENIZER_LINK: Path(self._variant.model_path or "").resolve()}

    def _read_facts(self) -> None:
        self._facts = parse_facts(json.loads(self._ask("/v1/models")[1]))

    def _read_evidence(self, lines: Sequence[str], metrics: str) -> StartEvidence:
        return StartEvidence(engine_log.parse_engine_log([]), startup=self.startup, openvino=self._facts)
