"""A connection to a Ray cluster, for a studio that has no Ray: `python bridge.py PIPE_FD ADDRESS`, under the ray
environment.

Requests come as (number, operation, arguments) on the pipe and are answered in any order as (number, kind, value). The
kinds: `value`; `gone`, Ray says that this keeper is not there (any more); `failed`, the keeper's method raised; `away`,
Ray or the keeper did not answer, which says nothing about the worker. Number 0 is sent once: it is connected, or why it
is not. The process ends when the pipe's other end is closed.

`wire` has the form of both. Ray itself unpickles what nodes answer, here and not in the studio: this process gets none
of the studio's secrets, and a cluster that others can reach needs Ray's token authentication (docs/team.md).
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any

import keeper
import ray
import wire
from ray import exceptions

NAMESPACE = "whetstone"
REQUESTS = 32
"""At a time."""
KEEPER_ENDED = (exceptions.ActorDiedError, exceptions.ActorUnschedulableError, exceptions.ActorHandleNotFoundError)


class Bridge:
    """The operations, by name; each may be called from any thread."""

    def __init__(self) -> None:
        self._actors: dict[str, Any] = {}
        ray.cloudpickle.register_pickle_by_value(keeper)
        self._keeper = ray.remote(keeper.Keeper)

    def nodes(self) -> list[dict[str, Any]]:
        """Return every node that Ray knows: id, host, address, alive, all resources."""
        return [
            {
                "id": node["NodeID"],
                "host": node["NodeManagerHostname"],
                "address": node["NodeManagerAddress"],
                "alive": node["Alive"],
                "resources": dict(node.get("Resources", {})),
            }
            for node in ray.nodes()
        ]

    def start(self, name: str, arguments: dict[str, Any], request: dict[str, Any]) -> None:
        """Have a keeper of that name made where and when the request can be met; one that exists already counts."""
        options = {"lifetime": "detached", "max_restarts": 0, "get_if_exists": True, "namespace": NAMESPACE, **request}
        self._actors[name] = self._keeper.options(name=name, **options).remote(**arguments)

    def call(self, name: str, method: str, arguments: dict[str, Any], patience_s: float) -> Any:
        """Call the keeper's method and return its answer."""
        return ray.get(getattr(self._actor(name), method).remote(**arguments), timeout=patience_s)

    def end(self, name: str) -> None:
        """End a keeper, wherever it is."""
        actor = self._actor(name)
        self._actors.pop(name, None)
        ray.kill(actor, no_restart=True)

    def named(self) -> list[str]:
        """Return the names of all keepers, placed or not."""
        return [row["name"] for row in ray.util.list_named_actors(all_namespaces=True) if row["namespace"] == NAMESPACE]

    def _actor(self, name: str) -> Any:
        if name not in self._actors:
            try:
                self._actors[name] = ray.get_actor(name, namespace=NAMESPACE)
            except ValueError as error:
                raise exceptions.ActorHandleNotFoundError(str(error)) from None
        return self._actors[name]

    def answer(self, operation: str, arguments: dict[str, Any]) -> tuple[str, Any]:
        """(kind, value) of one request. A broad `except`: whatever Ray raises is an answer here, and decides
        nothing."""
        try:
            return "value", getattr(self, operation)(**arguments)
        except KEEPER_ENDED as error:
            self._actors.pop(arguments.get("name", ""), None)
            return "gone", first_line(error)
        except exceptions.RayTaskError as error:
            return "failed", first_line(error.cause)
        except Exception as error:  # noqa: BLE001
            return "away", first_line(error)


def first_line(error: BaseException) -> str:
    """Return the first line of Ray's message, which goes on for pages."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"


def main(descriptor: int, address: str) -> int:
    """Serves until the pipe is closed. Exits 1 where the cluster could not be joined."""
    pipe, lock = Connection(descriptor), threading.Lock()

    def say(number: int, kind: str, value: Any) -> None:
        with lock:
            try:
                wire.send(pipe, number, kind, value)
            except ValueError as error:
                wire.send(pipe, number, "away", f"its answer cannot be passed on: {error}")

    try:
        ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # noqa: BLE001
        say(0, "away", first_line(error))
        return 1
    bridge = Bridge()

    def reply(number: int, operation: str, arguments: dict[str, Any]) -> None:
        say(number, *bridge.answer(operation, arguments))

    say(0, "value", None)
    with ThreadPoolExecutor(REQUESTS) as pool:
        while True:
            try:
                number, operation, arguments = wire.receive(pipe, 3)
            except EOFError:
                os._exit(0)  # requests may hang in Ray: nobody waits for them any more
            pool.submit(reply, number, operation, arguments)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2]))
