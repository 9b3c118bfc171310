"""Serves a variant with vLLM's OpenAI-compatible server."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from backend import files
from backend.domain.errors import ServerFailed
from backend.domain.evaluation import vllm_flags
from backend.domain.evaluation.document import Variant
from backend.domain.evaluation.evidence import engine_log
from backend.domain.evaluation.evidence.lossless import Answer
from backend.domain.evaluation.evidence.served_variant import StartEvidence
from backend.domain.evaluation.startup import Startup
from backend.domain.jobs.progress import Progress
from backend.domain.limits.served_divergence import TokenLogprobs, parse_prompt_logprobs
from backend.domain.load.openai_json import first_choice
from backend.layered import tokenizers
from backend.serving import compile_key, neuron, vllm_options
from backend.serving.installed_packages import is_cpu_build, openmp_library
from backend.serving.model_server import ANSWER_SECONDS, NICE, PROBED_SECONDS, READY_SECONDS, ModelServer
from backend.serving.startup import StartLog
from backend.serving.vllm_options import Tuning
from backend.settings import CHECKOUT

PREPARE = """import sys
from pathlib import Path

from backend.layered import tokenizers

tokenizers.prepared(*map(Path, sys.argv[1:]))
"""
"""The program of the child that prepares a tokenizer: for the model's folder and that of prepared ones."""


class VllmRoutes(ModelServer):
    """Asks for token ids and probabilities by vLLM's routes, which the OpenVINO server has too."""

    def prompt_tokens(self, prompt: str, *, chat: bool) -> list[int]:
        body: dict[str, Any] = {"prompt": prompt}
        if chat:
            body = {"messages": [{"role": "user", "content": prompt}]}
        return [int(token) for token in self.answer("/tokenize", body)["tokens"]]

    def token_answers(self, prompts: Sequence[Sequence[int]], tokens: int, *, samples: int = 0) -> list[Answer]:
        """Send all prompts as one request. Samples have no seed: with one, vLLM 0.32 ends on a processor if a prompt
        is read in parts (`CPU Generator does not use offset`)."""
        sampling: dict[str, Any] = {"temperature": 0}
        if samples:
            sampling = {"n": samples, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
        body = {"prompt": [list(prompt) for prompt in prompts], "max_tokens": tokens, "return_token_ids": True}
        choices = self.answer("/v1/completions", {**body, **sampling})["choices"]
        return [choice["token_ids"] for choice in sorted(choices, key=lambda choice: choice["index"])]

    def prompt_logprobs(self, tokens: Sequence[int], most: int) -> list[TokenLogprobs]:
        body = {"prompt": list(tokens), "max_tokens": 1, "temperature": 0, "prompt_logprobs": most}
        seconds = ANSWER_SECONDS + PROBED_SECONDS * len(tokens)
        return parse_prompt_logprobs(first_choice(self.answer("/v1/completions", body, seconds)))


class VllmServer(VllmRoutes):
    """One vLLM server of one variant, under the serve environment's interpreter.

    A compile cache of the variant is copied under `cache_root`, since artifacts do not change.

    tokens_in_flight: tokens of all requests at one time, if the load is known; sizes the cache (CPU only).
    kv_cache_gib: overrides that size (CPU only; a GPU takes vLLM's own share).
    tuning: None takes `vllm_options.tuning` (CPU only).
    port: None takes a free one.
    """

    title = "vLLM"

    def __init__(
        self,
        variant: Variant,
        *,
        python: Path,
        log: Path,
        cache_root: Path,
        kv_cache_gib: float | None = None,
        tokens_in_flight: int | None = None,
        tuning: Tuning | None = None,
        progress: Progress | None = None,
        port: int | None = None,
        ready_s: float = READY_SECONDS,
    ) -> None:
        super().__init__(variant, log=log, progress=progress, port=port, ready_s=ready_s)
        self._neuron = neuron.compile_plan(variant)
        self._python = python
        self._cache_root = cache_root
        self._kv_cache_gib = kv_cache_gib
        self._tokens_in_flight = tokens_in_flight
        self._given_tuning = tuning
        self._log_start = StartLog(log, 0)
        self._tokenizer: Path | None = None
        """Folder of a tokenizer that replaces the model's own files, or None; set when the server is launched."""

    def _prepare(self) -> None:
        self._tokenizer = tokenizers.prepared(*self._tokenizer_folders())

    def _tokenizer_folders(self) -> tuple[Path, Path]:
        return Path(self._variant.model_path or ""), self._cache_root / vllm_options.TOKENIZERS

    def prepare_apart(self) -> None:
        """Have the tokenizer prepared by a child, which loads transformers. What fails there fails again at the start,
        with its sentence."""
        folders = self._tokenizer_folders()
        if not tokenizers.is_prepared(*folders):
            command = [sys.executable, "-c", PREPARE, *map(str, folders)]
            subprocess.run(command, cwd=CHECKOUT, check=False, capture_output=True)

    def _with_key(self, environment: Mapping[str, str]) -> dict[str, str]:
        return vllm_options.with_key(environment, self._key)

    def _begin_start(self) -> None:
        self._log_start = StartLog(self.log, self._log_length, shipped=self._variant.compile_cache is not None)

    def _check_start(self) -> None:
        """Raise ServerFailed if it compiles again what was compiled for Neuron."""
        self._log_start.read()
        if self._log_start.abandoned:
            raise ServerFailed(neuron.recompiling_sentence(self._variant, self.log))

    def _read_startup(self) -> Startup:
        self._log_start.read()
        startup = self._log_start.startup()
        # A server on Neuron compiles nothing.
        return startup if self._neuron is None else startup.model_copy(update={"kind": "cached"})

    def _read_evidence(self, lines: Sequence[str], metrics: str) -> StartEvidence:
        return StartEvidence(engine_log.parse_engine_log(lines), engine_log.parse_cache_settings(metrics), self.startup)

    def _command(self) -> list[str]:
        if self._neuron is not None:
            chosen = vllm_options.address_arguments(port=self._port, served_name=self.served_name)
            chosen += self._file_options()
            chosen += neuron.arguments(self._variant, self._neuron, vllm_flags.DRAFT_LINK)
            return [str(self._python), "-m", "vllm.entrypoints.openai.api_server", *chosen]
        # On a processor: the size of the cache, a lower priority and tuned options.
        on_processor = is_cpu_build(self._python)
        cache_bytes = None
        if on_processor:
            cache_bytes = vllm_options.kv_cache_bytes(self._variant, self._tokens_in_flight)
            if self._kv_cache_gib:
                cache_bytes = int(self._kv_cache_gib * 2**30)
        chosen = vllm_options.server_arguments(
            self._variant, port=self._port, served_name=self.served_name, kv_cache_bytes=cache_bytes
        )
        chosen += self._file_options()
        nice = NICE if on_processor else ()
        tuned = self._tuning().arguments if on_processor else ()
        return [
            *nice,
            str(self._python),
            "-m",
            "vllm.entrypoints.openai.api_server",
            *chosen,
            *vllm_options.GUARD_ARGUMENTS,
            *tuned,
        ]

    def _file_options(self) -> list[str]:
        """Return options for the files of model and tokenizer, if vLLM would choose others."""
        named = ["--tokenizer", vllm_options.TOKENIZER_LINK] if self._tokenizer else []
        return [*named, *vllm_options.standard_files(self._variant)]

    def _environment(self) -> dict[str, str]:
        if self._neuron is not None:
            folder = neuron.prepare_graphs(self._variant, self._neuron, self._cache_root)
            chosen = vllm_options.environment(self._cache_root, cpu=False, openmp=None)
            return {**chosen, **neuron.environment(self._neuron, folder, self._cache_root)}
        cpu = is_cpu_build(self._python)
        openmp = openmp_library(self._python)
        speculation = self._variant.speculation
        proposers = speculation.proposers if speculation else None
        chosen = vllm_options.environment(self._cache(), cpu=cpu, openmp=openmp, proposers=proposers)
        return {**chosen, **(self._tuning().environment if cpu else {})}

    def _tuning(self) -> Tuning:
        return self._given_tuning or vllm_options.tuning(self._variant.serving.tensor_parallel)

    def _links(self) -> dict[str, Path]:
        links = {vllm_options.TARGET_LINK: Path(self._variant.model_path or "").resolve()}
        speculation = self._variant.speculation
        if speculation is not None and speculation.draft_path is not None:
            links[vllm_flags.DRAFT_LINK] = Path(speculation.draft_path).resolve()
        if self._tokenizer is not None:
            links[vllm_options.TOKENIZER_LINK] = self._tokenizer.resolve()
        return links

    def _cache(self) -> Path:
        """Return the folder that vLLM may write to: a copy of the variant's compile cache if it fits this machine."""
        packed = Path(self._variant.compile_cache) if self._variant.compile_cache else None
        if packed is None:
            return self._cache_root
        refusal = compile_key.refusal(compile_key.read(packed), self._python)
        if refusal is not None:
            self._progress.warn(f"The compile cache of {self._variant.name} is not used: {refusal}.")
            return self._cache_root
        copy = self._cache_root / f"compiled-{compile_key.digest(packed)}"
        if not copy.exists():
            with files.staged_folder(copy) as staging:
                shutil.copytree(packed, staging, symlinks=True, dirs_exist_ok=True)
        return copy
