"""The base of all servers: one process that serves one variant on a loopback port, whatever engine it is.

An engine says how the process is started, when it is ready, and how its log and its routes are read. Ports, keys, the
wait until it answers, and its end with nothing left behind are the same for all. Knows nothing of load, jobs or the
store.
"""

from __future__ import annotations

import http.client
import json
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from backend import processes, served_keys
from backend.domain.errors import RequestError, ServerFailed
from backend.domain.evaluation.document import Variant
from backend.domain.evaluation.evidence.lossless import Answer
from backend.domain.evaluation.evidence.served_variant import StartEvidence
from backend.domain.evaluation.startup import Startup
from backend.domain.jobs.progress import NoProgress, Progress
from backend.domain.limits.served_divergence import TokenLogprobs
from backend.domain.load import counters
from backend.serving import failures
from backend.serving.process import ServerProcess, check_port, free_port

READY_SECONDS = 900.0
PORT_ATTEMPTS = 3
POLL_SECONDS = 0.1
ANSWER_SECONDS = 120.0
PROBED_SECONDS = 0.25
"""Seconds more for each token whose probabilities are asked for: OpenVINO computes several beams over all before it."""
CPU_NICENESS = 5
"""Niceness of a server on a processor: its threads spin on every core, and the load generator must run in between, or
it reads the answers late."""
NICE = ("/usr/bin/nice", "-n", str(CPU_NICENESS))


class ModelServer(ABC):
    """One server of one variant. Use `start` and `stop`, or a context manager; `stop` may be called twice.

    `launch` and `check_ready` are the two steps of `start`. Each start has a key of its own, which all paths except
    /health require (`served_keys`). `port` None takes a free one.
    """

    title: ClassVar[str]
    """The engine in words."""

    def __init__(
        self,
        variant: Variant,
        *,
        log: Path,
        progress: Progress | None = None,
        port: int | None = None,
        ready_s: float = READY_SECONDS,
    ) -> None:
        if variant.model_path is None:
            raise RequestError(f"{variant.name} has no model folder to serve: give a model, a folder or an artifact.")
        self._variant = variant
        self.log = log
        self._progress = progress or NoProgress()
        self._given_port = port
        self._ready_s = ready_s
        self._port, self._key = 0, ""
        self._process: ServerProcess | None = None
        self._log_length = 0
        """Bytes of the log when the last attempt to start began."""
        self._attempts_left = 0
        """Attempts to start that are left."""
        self._began = self._deadline = 0.0
        self._peak = 0
        self.started_seconds = 0.0
        """Duration of the last start."""
        self.startup: Startup | None = None
        """Phases of the last start; None before the first."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # What an engine says of itself.

    def _prepare(self) -> None:  # noqa: B027
        """Do what is needed once before the first attempt to start."""

    def prepare_apart(self) -> None:  # noqa: B027
        """Do in a process of its own what is needed once and takes large libraries, so that they take no memory in this
        one."""

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the command that serves the variant at `self._port`."""

    @abstractmethod
    def _environment(self) -> dict[str, str]:
        """Return the whole environment of the process, without the key."""

    @abstractmethod
    def _with_key(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a server that requires `self._key`."""

    @abstractmethod
    def _links(self) -> dict[str, Path]:
        """Return the symbolic links in the server's working directory, by name."""

    def _begin_start(self) -> None:  # noqa: B027
        """Prepare to watch an attempt to start, whose log begins at byte `self._log_length`."""

    def _check_start(self) -> None:  # noqa: B027
        """Look at an attempt that is under way. Raises ServerFailed where it cannot end well."""

    @abstractmethod
    def _read_startup(self) -> Startup:
        """Return the phases of a start that has just ended."""

    @abstractmethod
    def _read_evidence(self, lines: Sequence[str], metrics: str) -> StartEvidence:
        """Return what the log's lines since the start and the text at /metrics show of how the variant is served."""

    @abstractmethod
    def prompt_tokens(self, prompt: str, *, chat: bool) -> list[int]:
        """Return the prompt's token ids as a load sends it: in the chat template if `chat`. Raises ServerFailed."""

    @abstractmethod
    def token_answers(self, prompts: Sequence[Sequence[int]], tokens: int, *, samples: int = 0) -> list[Answer]:
        """Return the token ids of the answers to all prompts in their order, which are sent at the same time.

        Greedy; with `samples` so many answers to each prompt, sampled at temperature 1 without a seed. Raises
        ServerFailed.
        """

    @abstractmethod
    def prompt_logprobs(self, tokens: Sequence[int], most: int) -> list[TokenLogprobs]:
        """Return the `most` probable tokens at each position of the prompt, given those before it; empty for the first.

        Raises ServerFailed.
        """

    # What is the same for all.

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
    def has_ended(self) -> bool:
        """Tell whether its process has ended, whoever ended it."""
        return self._process is None or self._process.poll() is not None

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
        self._prepare()
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
        environment = self._with_key(environment)
        self._process = ServerProcess(command, log=self.log, environment=environment, links=self._links())
        self._begin_start()
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

        # 2. Can it still end well?
        self._check_start()

        # 3. Does it answer? Then its log has all phases of the start.
        if not self._answers():
            return False
        self.startup = self._read_startup()
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

    def answer(self, path: str, body: dict[str, Any], seconds: float = ANSWER_SECONDS) -> dict[str, Any]:
        """POST a JSON body, with the model's name added, and return the answer, which may take so many seconds.

        Raises ServerFailed if the server refuses, answers something else than JSON, or does not answer any more.
        """
        request = json.dumps({"model": self.served_name, **body})
        try:
            status, reply = self._ask(path, request, seconds)
        except (OSError, http.client.HTTPException):
            raise ServerFailed(failures.died(self.log, self._process.poll() if self._process else None)) from None
        if status != 200:
            raise ServerFailed(f"{self._variant.name} refused a request: {reply[:200].decode(errors='replace')}")
        try:
            document = json.loads(reply)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise ServerFailed(f"{self._variant.name} answered {path} with something else than JSON; see {self.log}.")
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
        return self._read_evidence(lines, metrics)

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
