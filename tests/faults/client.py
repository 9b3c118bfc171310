"""A client that deploys, updates and deletes in processes of its own, of which each can be killed (SIGKILL) at any of
its calls.

`python -m tests.faults.client ADDRESS`: a line of JSON for each command, `{"do": "deploy", "deployment": ..., "folder":
..., "files": {...}, "dies_before": 3}`; the answer is how its process ended: "killed", "done", or what it refused.
Processes are forked from one that has imported everything, which is the only reason for that.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

from botocore.client import BaseClient

from backend.domain.deploy.deployment import Deployment, Rollout
from backend.domain.errors import WhetstoneError
from backend.launchers.deployments import Deployments
from tests.fakes.sagemaker.server import Levers

ROOT = Path(__file__).resolve().parents[2]
SERVICES = ("sagemaker", "application-autoscaling", "cloudwatch")


@contextmanager
def client(address: str) -> Iterator[Popen[str]]:
    """With the environment of this process; `address` is the account's."""
    command = [sys.executable, "-m", "tests.faults.client", address]
    with Popen(
        command, stdin=PIPE, stdout=PIPE, text=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def tell(process: Popen[str], **options: Any) -> str:
    """How the command's process ended."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(options) + "\n")
    process.stdin.flush()
    return str(json.loads(process.stdout.readline()))


def _act(deployments: Deployments, values: dict[str, Any]) -> None:
    """One command, in a process of its own."""
    deployment, folder = Deployment.model_validate(values["deployment"]), Path(values["folder"])
    match values["do"]:
        case "deploy":
            deployments.deploy(deployment, folder, values["files"], _silent)
        case "update":
            deployments.update(deployment, Rollout(), folder, values["files"], _silent)
        case "delete":
            deployments.delete(deployment.id)


def _silent(line: str) -> None:
    """Nobody reads it."""


def _mortal(dies_before: int) -> None:
    """From now on this process is killed where it would make the call of that number (0: never)."""
    plain, calls = BaseClient._make_api_call, 0

    def call(own: BaseClient, operation: str, parameters: dict[str, Any]) -> Any:
        nonlocal calls
        calls += 1
        if calls == dies_before:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(own, operation, parameters)

    BaseClient._make_api_call = call


def _forked(deployments: Deployments, values: dict[str, Any]) -> str:
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        message = "done"
        _mortal(values.get("dies_before", 0))
        try:
            _act(deployments, values)
        except WhetstoneError as error:
            message = f"{type(error).__name__}: {error}"
        os.write(writes, message.encode()[:1000])
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        message = pipe.read()
    return "killed" if os.WIFSIGNALED(os.waitpid(child, 0)[1]) else message


def main() -> None:
    levers = Levers(sys.argv[1])
    deployments = Deployments("us-east-1", sleep=lambda seconds: levers.pull("clock", {"advance": seconds}))
    for name in SERVICES:
        deployments._service(name).client  # noqa: B018 - made once, since it takes longest; nothing is connected yet
    for line in sys.stdin:
        print(json.dumps(_forked(deployments, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
