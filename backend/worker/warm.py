"""`python -m backend.worker.warm`: has imported what every worker imports, and forks one for each job that it is asked
for.

It is asked over the socket that is its standard input, by `launchers.warm`, and ends when that closes; its forks go on.
A fork is a worker as any other: one job, and a process, a session, a log and a mark of its own. The template has one
thread and holds no library that computes, since those count cores as they are imported, and a job is granted its own.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import selectors
import socket
import sys
from typing import Any, NoReturn

from backend import processes
from backend.worker import __main__ as worker

MODULES = (*worker.MODULES.values(), "backend.engines.environments")
"""With what they import late, where that computes nothing."""
MESSAGE_BYTES = 1 << 16


def main() -> int:
    """Until whoever asks is gone."""
    requests, children = socket.socket(fileno=os.dup(0)), selectors.DefaultSelector()
    for name in MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # what is here already stays in pages that all forks share
    children.register(requests, selectors.EVENT_READ)
    say(requests, ready=True)
    while True:
        for key, _ in children.select():
            if key.fileobj is not requests:
                _reap(requests, children, key)
            elif not _fork(requests, children):
                return 0


def say(requests: socket.socket, **words: Any) -> None:
    requests.send(json.dumps(words).encode())


def _fork(requests: socket.socket, children: selectors.BaseSelector) -> bool:
    """One worker, as asked; False where nobody asks any more."""
    message, given, _, _ = socket.recv_fds(requests, MESSAGE_BYTES, 2)
    if not message:
        return False
    asked = json.loads(message)
    try:
        pid = os.fork()
    except OSError as error:
        say(requests, number=asked["number"], refused=str(error))
    else:
        if pid == 0:
            _work(requests, asked, *given)
        children.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
    for each in given:
        os.close(each)
    return True


def _work(requests: socket.socket, asked: dict[str, Any], log: int, gate: int) -> NoReturn:
    """In the fork. It works once its launcher, which finds it by its mark from here on, has opened the gate; a gate
    that closes unopened ends it."""
    ended = 1
    try:
        os.setsid()
        processes.remark(*asked["mark"])
        say(requests, number=asked["number"], pid=os.getpid(), started=processes.started(os.getpid()))
        requests.close()
        empty = os.open(os.devnull, os.O_RDONLY)
        for source, place in ((empty, 0), (log, 1), (log, 2)):
            os.dup2(source, place)
        for each in (empty, log):
            os.close(each)
        opened = os.read(gate, 1)
        os.close(gate)
        if opened:
            sys.argv = [worker.__file__, asked["address"]]
            ended = worker.main(asked["address"])
            sys.stdout.flush()
            sys.stderr.flush()
    finally:
        os._exit(ended)


def _reap(requests: socket.socket, children: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
    children.unregister(key.fileobj)
    os.close(key.fd)
    _, status = os.waitpid(key.data, 0)
    say(requests, ended=key.data, code=os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    try:
        os._exit(main())
    except ConnectionError:  # whoever asked went in the middle of a word
        os._exit(0)
