"""Reads files that others wrote without risk to the machine: JSON and YAML up to a size here, all else in a limited
child.

A few bytes can stand for gigabytes or hours: aliases, columns of repeated values, normalizers that expand. The child
has so much memory and processor time and no more, and none of the environment's secrets; a library that aborts takes
only the child along.
"""

from __future__ import annotations

import importlib
import json
import math
import os
import pickle
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Hashable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from backend.domain import errors
from backend.domain.errors import TooDemanding, WhetstoneError
from backend.settings import CHECKOUT

T = TypeVar("T")
MEMORY_BYTES = 3 * 2**30
"""Address space, of which libraries reserve more than they use."""
CPU_S, WALL_S = 8, 60
ANSWER_BYTES = 2**28
JSON_BYTES = 16_000_000
"""JSON takes up to 25 times its size in memory."""
FAILED = 3
"""Exit code of a child that answers with one of our errors."""
PASSED_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH")
THREADS = {
    "RAYON_NUM_THREADS": "2",
    "OMP_NUM_THREADS": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "2",
}
"""Every thread takes addresses of its own."""


def run(
    function: Callable[..., T],
    *arguments: Any,
    about: str,
    cpu_s: float | None = None,
    memory_bytes: int = MEMORY_BYTES,
) -> T:
    """Call a module's function in a child process and return its result: bytes, or JSON data (a tuple becomes a list).

    `about` is what the sentence calls the file; `cpu_s` how long it may compute, else CPU_S; `memory_bytes` of
    addresses it may take. Raises what it raises of ours, and TooDemanding where it came to a limit.
    """
    # 1. Pickle the call, and keep the secrets of the environment out of the child.
    cpu_s = cpu_s or CPU_S
    environment = {name: os.environ[name] for name in PASSED_VARIABLES if name in os.environ}
    request = pickle.dumps((cpu_s, memory_bytes, function.__module__, function.__qualname__, arguments))
    # 2. Run it in a child with limits.
    try:
        done = subprocess.run(
            [sys.executable, "-m", "backend.sandbox"],
            input=request,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**environment, **THREADS, "PYTHONPATH": os.pathsep.join([str(CHECKOUT), *filter(None, sys.path)])},
            timeout=WALL_S + cpu_s,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise TooDemanding(
            f"{about} was not read within {late.timeout:.0f} s: this machine is busy, or the file is made to keep it "
            "waiting. Try again when less is running."
        ) from None
    # 3. Raise the child's error, or say that it came to a limit, or return its answer.
    if done.returncode == FAILED:
        raise _rebuilt(json.loads(done.stdout))
    if done.returncode or not done.stdout:
        raise _demanding(about, cpu_s, memory_bytes)
    answer: T = done.stdout[1:] if done.stdout[:1] == b"b" else json.loads(done.stdout[1:])  # type: ignore[assignment]
    return answer


def _demanding(about: str, cpu_s: float, memory_bytes: int) -> TooDemanding:
    return TooDemanding(
        f"{about} cannot be read within {memory_bytes // 2**30} GiB of memory and {cpu_s:.0f} s: it is damaged, too "
        "large, or made to take the machine. Take a sample, or get the file anew."
    )


def _rebuilt(document: dict[str, Any]) -> WhetstoneError:
    kind = getattr(errors, document["type"], errors.RequestError)
    error: WhetstoneError = kind(document["problem"], *document["named"], field=document["field"])
    return error


def main() -> int:
    """The child: one function from standard input, its answer to standard output."""
    cpu_s, memory_bytes, module, name, arguments = pickle.load(sys.stdin.buffer)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    try:
        function = getattr(importlib.import_module(module), name)
        # The imports are ours and take seconds on a slow machine: the limit is for what the function computes.
        until = math.ceil(time.process_time() + cpu_s)
        resource.setrlimit(resource.RLIMIT_CPU, (until, until + 1))
        result = function(*arguments)
    except WhetstoneError as error:
        document = {"type": type(error).__name__, "problem": error.problem, "named": error.named, "field": error.field}
        out.write(json.dumps(document).encode())
        out.flush()
        return FAILED
    answer = b"b" + result if isinstance(result, bytes) else b"j" + json.dumps(result, default=str).encode()
    if len(answer) > ANSWER_BYTES:
        return 1
    out.write(answer)
    out.flush()
    return 0


def read_json(content: bytes, most: int = JSON_BYTES) -> Any:
    """Parse JSON. Raises ValueError if it is none or larger than `most` bytes."""
    if len(content) > most:
        raise ValueError(f"more than {most / 1e6:g} MB")
    try:
        return json.loads(content)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_file(path: Path, most: int = JSON_BYTES) -> bytes:
    """The content of a regular file. Raises ValueError where it is larger, a pipe or a device; OSError."""
    if path.exists() and not path.is_file():
        raise ValueError("no regular file")
    with path.open("rb") as opened:
        content = opened.read(most + 1)
    if len(content) > most:
        raise ValueError(f"more than {most / 1e6:g} MB")
    return content


def read_json_file(path: Path, most: int = JSON_BYTES) -> Any:
    """The JSON of a file of at most so many bytes. Raises ValueError, also where it is larger or no JSON; OSError."""
    return read_json(read_file(path, most), most)


def read_yaml(text: str) -> Any:
    """Safe types, no anchors or aliases, no key twice. Raises yaml.YAMLError, ValueError."""
    import yaml

    try:
        return yaml.load(text, Loader=_strict())
    except (RecursionError, OverflowError):
        raise ValueError("nested too deeply") from None


@cache
def _strict() -> Any:
    """PyYAML's safe loader, without what no file here has a use for. Workers have no PyYAML, so it is not imported
    above."""
    import yaml

    class Strict(yaml.SafeLoader):
        def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
            event = self.peek_event()  # type: ignore[no-untyped-call]
            if getattr(event, "anchor", None) is not None:
                raise yaml.MarkedYAMLError(
                    problem="no anchors (&) or aliases (*) are read here", problem_mark=event.start_mark
                )
            return super().compose_node(parent, index)

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
            keys: set[str] = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.value in keys:
                    raise yaml.MarkedYAMLError(problem=f"`{key.value[:60]}` appears twice", problem_mark=key.start_mark)
                keys.add(str(key.value))
            return super().construct_mapping(node, deep)

    return Strict


def is_ours(path: Path) -> bool:
    """Return whether the file comes with Whetstone."""
    return CHECKOUT / "assets" in path.parents


if __name__ == "__main__":
    sys.exit(main())
