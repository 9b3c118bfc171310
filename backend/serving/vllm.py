"""Starts vLLM's OpenAI-compatible server for a variant on a loopback port, waits until it answers, and stops all of it.

The server runs under the serve environment's interpreter. Knows nothing of load, jobs or the store.
"""

from __future__ import annotations

import http.client
import json
import shutil
import time
from pathlib import Path
from typing import Any

from backend import files, processes, served_keys
from backend.domain.errors import RequestError, ServerFailed
from backend.domain.evaluation.document import Variant
from backend.domain.evaluation.evidence import engine_log
from backend.domain.evaluation.evidence.served_variant import StartEvidence
from backend.domain.evaluation.startup import Startup
from backend.domain.jobs.progress import NoProgress, Progress
from backend.domain.load import counters
from backend.layered import tokenizers
from backend.serving import compile_key, failures, neuron, vllm_options
from backend.serving.installed_packages import is_cpu_build, openmp_library
from backend.serving.process import ServerProcess, check_port, free_port
from backend.serving.startup import StartLog
from backend.serving.vllm_options import Tuning

READY_SECONDS = 900.0
PORT_ATTEMPTS = 3
POLL_SECONDS = 0.1
ANSWER_SECONDS = 120.0
CPU_NICENESS = 5
"""Niceness of a server on a processor: its threads spin on every core, and the load generator must run in between, or
it reads the answers late."""


class VllmServer:
    """One server of one variant. Use `start` and `stop`, or a context manager; `stop` may be called twice.

    `launch` and `check_ready` are the two steps of `start`. Each start has a key of its own, which all paths except
    /health require (`served_keys`). A compile cache of the variant is copied under `cache_root`, since artifacts do not
    change.

    tokens_in_flight: tokens of all requests at one time, if the load is known; sizes the cache (CPU only).
    kv_cache_gib: overrides that size (CPU only; a GPU takes vLLM's own share).
    tuning: None takes `vllm_options.tuning` (CPU only).
    port: None takes a free one.
    """

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
        if variant.model_path is None:
            raise RequestError(f"{variant.name} has no model folder to serve: give a model, a folder or an artifact.")
        self._variant = variant
        self._neuron = neuron.compile_plan(variant)
        self._python = python
        self.log = log
        self._cache_root = cache_root
        self._kv_cache_gib = kv_cache_gib
        self._tokens_in_flight = tokens_in_flight
        self._given_tuning = tuning
        self._progress = progress or NoProgress()
        self._given_port = port
        self._ready_s = ready_s
        self._port, self._key = 0, ""
        self._process: ServerProcess | None = None
        self._log_start = StartLog(log, 0)
        self._log_length = 0
        """Bytes of the log when the last attempt to start began."""
        self._tokenizer: Path | None = None
        """Folder of a tokenizer that replaces the model's own files, or None; set when the server is launched."""
        self._attempts_left = 0
        """Attempts to start that are left."""
        self._began = self._deadline = 0.0
        self._peak = 0
        self.started_seconds = 0.0
        """Duration of the last start."""
        self.startup: Startup | None = None
        """Phases of the last start; None before the first."""

    def __enter__(self) -> VllmServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def key(self) -> str:
        """The bearer token that the server requires; a new one after each start."""
        return self._key

    @property
    def key_file(self) -> Path:
        """The file in which those who may ask the server find its key."""
        return served_keys.file(self._port)

    @property
    def served_name(self) -> str:
        return self._variant.served_name or self._variant.name

    @property
    def pid(self) -> int:
        """The process that all others of the server descend from. Raises RuntimeError if it is not started."""
        if self._process is None:
            raise RuntimeError("the server was not started")
        return self._process.pid

    @property
    def peak_rss_bytes(self) -> int:
        """The most memory that all processes of the server used together, sampled every second."""
        return max(self._peak, self._process.peak_rss_bytes if self._process else 0)

    def resident_bytes(self) -> int:
        """Return the memory in use now; shared memory counts in part (`processes.proportional_memory`)."""
        return processes.proportional_memory(self.pid)

    def start(self) -> float:
        """Start, wait until the server answers, and return the seconds that took.

        Raises PortTaken before anything starts if the given port is not free, and ServerFailed with one sentence.
        """
        self.launch()
        while not self.check_ready():
            pass
        return self.started_seconds

    def launch(self) -> None:
        """Start without waiting; `check_ready` says when it answers. Raises PortTaken before anything starts."""
        if self._given_port is not None:
            check_port(self._given_port)
        self._attempts_left = 1 if self._given_port is not None else PORT_ATTEMPTS
        self._tokenizer = tokenizers.prepared(
            Path(self._variant.model_path or ""), self._cache_root / vllm_options.TOKENIZERS
        )
        self._began = time.monotonic()
        self._start_attempt()

    def check_ready(self) -> bool:
        """Wait a moment and say whether the server answers.

        Raises ServerFailed with one sentence; then nothing of the server is left.
        """
        # 1. Not ready: wait on. Failed: try again if another process took the port.
        try:
            if not self._is_ready():
                return False
        except ServerFailed:
            self.stop()
            if not self._attempts_left or not failures.port_was_taken(self.log, self._log_length):
                raise
            self._start_attempt()
            return False
        except BaseException:
            self.stop()
            raise

        # 2. Ready: report how long it took.
        self.started_seconds = time.monotonic() - self._began
        self._progress.note(f"{self._variant.name} answers after {self.started_seconds:.1f} s.")
        if self.startup is not None and self.startup.compiled_again:
            self._progress.warn(f"{self._variant.name} was compiled again at start: {self.startup.compiled_again}.")
        return True

    def _start_attempt(self) -> None:
        """Start the process on the given port, or on one that was free a moment ago."""
        # 1. Choose the port and build the command.
        self._attempts_left -= 1
        self._port = self._given_port or free_port()
        self._log_length = self.log.stat().st_size if self.log.exists() else 0
        command, environment = self._command(), self._environment()

        # 2. Make the key last, so that it exists only for a process that `stop` also removes it for.
        self._key = served_keys.make(self._port)
        environment = vllm_options.with_key(environment, self._key)
        self._process = ServerProcess(command, log=self.log, environment=environment, links=self._links())
        self._log_start = StartLog(self.log, self._log_length, shipped=self._variant.compile_cache is not None)
        self._deadline = time.monotonic() + self._ready_s

        # 3. Start it.
        try:
            self._process.start()
        except BaseException:
            self.stop()
            raise

    def _is_ready(self) -> bool:
        assert self._process is not None
        # 1. Has it ended, or is its time up?
        code = self._process.wait(POLL_SECONDS)
        if code is not None or time.monotonic() > self._deadline:
            raise ServerFailed(failures.sentence(self.log, code))

        # 2. Does it compile again what was compiled for Neuron?
        self._log_start.read()
        if self._log_start.abandoned:
            raise ServerFailed(neuron.recompiling_sentence(self._variant, self.log))

        # 3. Does it answer? Then its log has all phases of the start.
        if not self._answers():
            return False
        self._log_start.read()
        self.startup = self._log_start.startup()
        if self._neuron is not None:  # a server on Neuron compiles nothing
            self.startup = self.startup.model_copy(update={"kind": "cached"})
        return True

    def _answers(self) -> bool:
        """Tell whether this very server answers: if the port was taken, another server's /health would answer too."""
        try:
            if self._ask("/health")[0] != 200:
                return False
            status, body = self._ask("/v1/models")
            return status == 200 and self.served_name in [row["id"] for row in json.loads(body)["data"]]
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
            return False

    def time_first_answer(self) -> float:
        """Ask for one token and return the seconds until it came. Raises ServerFailed."""
        began = time.monotonic()
        self.answer("/v1/completions", {"prompt": "a", "max_tokens": 1, "temperature": 0})
        seconds = time.monotonic() - began
        if self.startup is not None:
            self.startup = self.startup.model_copy(update={"first_answer_s": round(seconds, 2)})
        return seconds

    def metrics(self) -> dict[str, float]:
        """Return the counters since the start, named as in `domain.load.counters`.

        Those of speculation exist only if it is on. Raises ServerFailed if the server does not answer any more.
        """
        try:
            text = self._ask("/metrics")[1].decode()
        except (OSError, http.client.HTTPException):
            raise ServerFailed(failures.died(self.log, self._process.poll() if self._process else None)) from None
        return counters.parse_counters(text)

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """POST a JSON body, with the model's name added, and return the answer.

        Raises ServerFailed if the server refuses or does not answer any more.
        """
        request = json.dumps({"model": self.served_name, **body})
        try:
            status, reply = self._ask(path, request, ANSWER_SECONDS)
        except (OSError, http.client.HTTPException):
            raise ServerFailed(failures.died(self.log, self._process.poll() if self._process else None)) from None
        if status != 200:
            raise ServerFailed(f"{self._variant.name} refused a request: {reply[:200].decode(errors='replace')}")
        document: dict[str, Any] = json.loads(reply)
        return document

    def evidence(self) -> StartEvidence:
        """Return what this start has shown of how it serves; if the server has ended, only what its log says."""
        with self.log.open("rb") as stream:
            stream.seek(self._log_length)
            lines = stream.read().decode(errors="replace").splitlines()
        try:
            metrics = self._ask("/metrics")[1].decode()
        except (OSError, http.client.HTTPException):
            metrics = ""
        return StartEvidence(engine_log.parse_engine_log(lines), engine_log.parse_cache_settings(metrics), self.startup)

    def stop(self) -> None:
        """End the whole tree with SIGTERM, then SIGKILL after a grace; return when all of it has ended."""
        if self._process is not None:
            self._process.stop()
            self._peak = self.peak_rss_bytes
            self._process = None
        if self._key:
            served_keys.forget(self._port, self._key)

    def _ask(self, path: str, body: str | None = None, timeout_s: float = 5.0) -> tuple[int, bytes]:
        """Send a GET, or a POST if there is a body; return status and body of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=timeout_s)
        try:
            headers = {"Authorization": f"Bearer {self._key}"} | ({"Content-Type": "application/json"} if body else {})
            connection.request("POST" if body else "GET", path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def _command(self) -> list[str]:
        if self._neuron is not None:
            chosen = vllm_options.address_arguments(port=self._port, served_name=self.served_name)
            chosen += self._file_options()
            chosen += neuron.arguments(self._variant, self._neuron, vllm_options.DRAFT_LINK)
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
        nice = ["/usr/bin/nice", "-n", str(CPU_NICENESS)] if on_processor else []
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
            links[vllm_options.DRAFT_LINK] = Path(speculation.draft_path).resolve()
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
