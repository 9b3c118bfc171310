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
"""On CPU the server's threads spin on every core; whoever measures it must be let in between, or reads its answers
late."""


class VllmServer:
    """One server. `start` and `stop`, or a context manager; `stop` may be called twice. `begin` and `look` are `start`
    in steps.

    `tokens_in_flight` is what the load has under way at once, where that is known; `kv_cache_gib` overrides the size that
    `vllm_options.kv_cache_bytes` makes of it (CPU only; a GPU takes vLLM's own share).
    Each start has a key of its own, which all paths but /health want (`served_keys`).
    `tuning` None is `vllm_options.tuning` (CPU only). `port` None takes a free one. A compile cache of the variant is
    copied under `cache_root`, as artifacts do not change.
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
        self._asked_tuning = tuning
        self._progress = progress or NoProgress()
        self._asked_port = port
        self._ready_s = ready_s
        self._port, self._key = 0, ""
        self._process: ServerProcess | None = None
        self._log_start = StartLog(log, 0)
        self._log_length = 0
        """Of the log, in bytes, when the last attempt to start began."""
        self._tokenizer: Path | None = None
        """The folder of a tokenizer other than transformers builds from the model's own; found when it is started."""
        self._attempts = 0
        """To start that are left."""
        self._began = self._deadline = 0.0
        self._peak = 0
        self.started_seconds = 0.0
        """What the last start took."""
        self.startup: Startup | None = None
        """Its phases; None before the first start."""

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
        """What it wants as a bearer token; another after each start."""
        return self._key

    @property
    def key_file(self) -> Path:
        """Where those who may ask it find its key."""
        return served_keys.file(self._port)

    @property
    def served_name(self) -> str:
        return self._variant.served_name or self._variant.name

    @property
    def pid(self) -> int:
        """Of the process that all others of the server descend from. Raises RuntimeError where it is not started."""
        if self._process is None:
            raise RuntimeError("the server was not started")
        return self._process.pid

    @property
    def peak_rss_bytes(self) -> int:
        """Of all the server's processes together, sampled every second."""
        return max(self._peak, self._process.peak_rss_bytes if self._process else 0)

    def resident_bytes(self) -> int:
        """Memory that it holds now, what it shares with other processes in part: see `processes.proportional_memory`."""
        return processes.proportional_memory(self.pid)

    def start(self) -> float:
        """Start and wait until the server answers; returns the seconds that took.

        Raises PortTaken before anything starts where an asked port is not free, and ServerFailed with one sentence.
        """
        self.launch()
        while not self.check_ready():
            pass
        return self.started_seconds

    def launch(self) -> None:
        """Start, and do not wait: `look` says when it answers. Raises PortTaken before anything starts."""
        if self._asked_port is not None:
            check_port(self._asked_port)
        self._attempts = 1 if self._asked_port is not None else PORT_ATTEMPTS
        self._tokenizer = tokenizers.prepared(
            Path(self._variant.model_path or ""), self._cache_root / vllm_options.TOKENIZERS
        )
        self._began = time.monotonic()
        self._attempt()

    def check_ready(self) -> bool:
        """Wait a moment, and say whether it answers. Raises ServerFailed with one sentence; then nothing of it is
        left."""
        try:
            if not self._is_ready():
                return False
        except ServerFailed:
            self.stop()
            if not self._attempts or not failures.port_was_taken(self.log, self._log_length):
                raise
            self._attempt()
            return False
        except BaseException:
            self.stop()
            raise
        self.started_seconds = time.monotonic() - self._began
        self._progress.note(f"{self._variant.name} answers after {self.started_seconds:.1f} s.")
        if self.startup is not None and self.startup.compiled_again:
            self._progress.warn(f"{self._variant.name} was compiled again at start: {self.startup.compiled_again}.")
        return True

    def _attempt(self) -> None:
        """On a port that was free a moment ago."""
        self._attempts -= 1
        self._port = self._asked_port or free_port()
        self._log_length = self.log.stat().st_size if self.log.exists() else 0
        command, environment = self._command(), self._environment()
        # once nothing stands against the start, so that `stop` takes it away again
        self._key = served_keys.make(self._port)
        keyed = vllm_options.with_key(environment, self._key)
        self._process = ServerProcess(command, log=self.log, environment=keyed, links=self._links())
        self._log_start = StartLog(self.log, self._log_length, shipped=self._variant.compile_cache is not None)
        self._deadline = time.monotonic() + self._ready_s
        try:
            self._process.start()
        except BaseException:
            self.stop()
            raise

    def _is_ready(self) -> bool:
        assert self._process is not None
        code = self._process.wait(POLL_SECONDS)
        if code is not None or time.monotonic() > self._deadline:
            raise ServerFailed(failures.sentence(self.log, code))
        self._log_start.read()
        if self._log_start.abandoned:
            raise ServerFailed(neuron.recompiling_sentence(self._variant, self.log))
        if not self._answers():
            return False
        self._log_start.read()
        self.startup = self._log_start.startup()
        if self._neuron is not None:  # nothing is compiled by a server there
            self.startup = self.startup.model_copy(update={"kind": "cached"})
        return True

    def _answers(self) -> bool:
        """Whether it is this server that answers: on a port that was taken, another's /health would say yes."""
        try:
            if self._ask("/health")[0] != 200:
                return False
            status, body = self._ask("/v1/models")
            return status == 200 and self.served_name in [row["id"] for row in json.loads(body)["data"]]
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
            return False

    def time_first_answer(self) -> float:
        """Ask for one token, which is the first that the server gives where nobody asked before; seconds. Raises
        ServerFailed."""
        began = time.monotonic()
        self.answer("/v1/completions", {"prompt": "a", "max_tokens": 1, "temperature": 0})
        seconds = time.monotonic() - began
        if self.startup is not None:
            self.startup = self.startup.model_copy(update={"first_answer_s": round(seconds, 2)})
        return seconds

    def metrics(self) -> dict[str, float]:
        """Counters since the start, under the names of `domain.load.counters`; those of speculation only where it is
        on.

        Raises ServerFailed when the server does not answer any more.
        """
        try:
            text = self._ask("/metrics")[1].decode()
        except (OSError, http.client.HTTPException):
            raise ServerFailed(failures.died(self.log, self._process.poll() if self._process else None)) from None
        return counters.parse_counters(text)

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """What it answers to a POST of JSON; the model is named here. Raises ServerFailed where it refuses or is
        gone."""
        asked = json.dumps({"model": self.served_name, **body})
        try:
            status, answered = self._ask(path, asked, ANSWER_SECONDS)
        except (OSError, http.client.HTTPException):
            raise ServerFailed(failures.died(self.log, self._process.poll() if self._process else None)) from None
        if status != 200:
            raise ServerFailed(f"{self._variant.name} refused a request: {answered[:200].decode(errors='replace')}")
        found: dict[str, Any] = json.loads(answered)
        return found

    def evidence(self) -> StartEvidence:
        """What this start showed of how it serves, so far; of a server that is gone, what its log holds."""
        with self.log.open("rb") as stream:
            stream.seek(self._log_length)
            lines = stream.read().decode(errors="replace").splitlines()
        try:
            told = self._ask("/metrics")[1].decode()
        except (OSError, http.client.HTTPException):
            told = ""
        return StartEvidence(engine_log.parse_engine_log(lines), engine_log.parse_cache_settings(told), self.startup)

    def stop(self) -> None:
        """SIGTERM, grace, SIGKILL to the whole tree; returns when all of it is gone."""
        if self._process is not None:
            self._process.stop()
            self._peak = self.peak_rss_bytes
            self._process = None
        if self._key:
            served_keys.forget(self._port, self._key)

    def _ask(self, path: str, body: str | None = None, timeout_s: float = 5.0) -> tuple[int, bytes]:
        """GET, or POST of a `body`."""
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
            chosen += self._read_by()
            chosen += neuron.arguments(self._variant, self._neuron, vllm_options.DRAFT_LINK)
            return [str(self._python), "-m", "vllm.entrypoints.openai.api_server", *chosen]
        kv = None
        if is_cpu_build(self._python):
            needed = vllm_options.kv_cache_bytes(self._variant, self._tokens_in_flight)
            kv = int(self._kv_cache_gib * 2**30) if self._kv_cache_gib else needed
        chosen = vllm_options.server_arguments(
            self._variant, port=self._port, served_name=self.served_name, kv_cache_bytes=kv
        )
        chosen += self._read_by()
        yielding = ["/usr/bin/nice", "-n", str(CPU_NICENESS)] if kv is not None else []
        tuned = self._tuning().arguments if kv is not None else ()
        return [
            *yielding,
            str(self._python),
            "-m",
            "vllm.entrypoints.openai.api_server",
            *chosen,
            *vllm_options.GUARD_ARGUMENTS,
            *tuned,
        ]

    def _read_by(self) -> list[str]:
        """By which files it reads the model and its tokenizer, where that is not what vLLM would choose."""
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
        return self._asked_tuning or vllm_options.tuning(self._variant.serving.tensor_parallel)

    def _links(self) -> dict[str, Path]:
        links = {vllm_options.TARGET_LINK: Path(self._variant.model_path or "").resolve()}
        speculation = self._variant.speculation
        if speculation is not None and speculation.draft_path is not None:
            links[vllm_options.DRAFT_LINK] = Path(speculation.draft_path).resolve()
        if self._tokenizer is not None:
            links[vllm_options.TOKENIZER_LINK] = self._tokenizer.resolve()
        return links

    def _cache(self) -> Path:
        """Where vLLM may write: a copy of the variant's compile cache where that is good for this machine."""
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
