"""The base of servers that read one GGUF file: which files they find, their command, and their start."""

from __future__ import annotations

import re
import time
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Protocol

from backend.domain.errors import RequestError
from backend.domain.evaluation.document import Variant
from backend.domain.evaluation.startup import Startup
from backend.domain.jobs.progress import Progress
from backend.serving.model_server import NICE, READY_SECONDS, ModelServer

_PART = re.compile(r"-(\d{5})-of-(\d{5})(?=\.gguf$)", re.IGNORECASE)


class ArgumentWriter(Protocol):
    """Writes the arguments of the server's program."""

    def __call__(
        self, variant: Variant, *, port: int, served_name: str, tokens_in_flight: int | None, streams: int | None
    ) -> list[str]: ...


class GgufServer(ModelServer):
    """One server of one GGUF file, which is linked into its private folder under its own name.

    `program` is what runs; `tokens_in_flight` and `streams` are the most tokens and requests at one time, None where
    the load is not known. Raises RequestError for a variant without a GGUF file.
    """

    key_variable: ClassVar[str]
    """The environment variable from which the program reads its key."""
    write_arguments: ClassVar[ArgumentWriter]

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
        self._check_variant()
        self._program, self._gguf = program, Path(variant.gguf or "")
        self._tokens_in_flight, self._streams = tokens_in_flight, streams
        self._attempt_began = 0.0

    def _check_variant(self) -> None:
        """Raise RequestError for a variant whose files the engine cannot read."""
        if self._variant.gguf is None:
            raise RequestError(
                f"{self._variant.name} has no GGUF file, and {self.title} reads nothing else here: serve it with vLLM."
            )

    def _command(self) -> list[str]:
        arguments = self.write_arguments(
            self._variant,
            port=self._port,
            served_name=self.served_name,
            tokens_in_flight=self._tokens_in_flight,
            streams=self._streams,
        )
        return [*NICE, str(self._program), *arguments]

    def _with_key(self, environment: Mapping[str, str]) -> dict[str, str]:
        return {**environment, self.key_variable: self._key}

    def _links(self) -> dict[str, Path]:
        return file_links(self._gguf)

    def _begin_start(self) -> None:
        self._attempt_began = time.monotonic()

    def _read_startup(self) -> Startup:
        startup = Startup(kind="eager", listen_s=round(time.monotonic() - self._attempt_began, 2))
        self._read_facts()
        return startup

    @abstractmethod
    def _read_facts(self) -> None:
        """Keep what the server says of itself now that it answers: it may have ended when somebody asks for it."""


def file_links(gguf: Path, prefix: str = "") -> dict[str, Path]:
    """Return the file under its own name, with the other parts of a model that was split."""
    match = _PART.search(gguf.name)
    if match is None:
        return {f"{prefix}{gguf.name}": gguf.resolve()}
    head = gguf.name[: match.start()]
    names = [f"{head}-{number:05d}-of-{match[2]}.gguf" for number in range(1, int(match[2]) + 1)]
    return {f"{prefix}{name}": (gguf.parent / name).resolve() for name in names}
