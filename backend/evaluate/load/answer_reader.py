"""Reads, in a second process, the answers that become part of a next prompt.

Reading 16,000 events takes a tenth of a second, in which the loop would stamp nothing. So the loop sends the bytes over
a pipe and goes on; the text comes back as JSON. The audit covers only the loop's process, not this one. The process
ends when its input does, so that none is left after its parent was killed. Knows nothing of sessions.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress

from backend.domain.errors import WorkError
from backend.evaluate.load.parse import assistant_words
from backend.evaluate.load.stream import Exchange

SIZE = 8
READY = b"!"
ENDED_EARLY = (
    "The process that reads the answers of sessions ended early: see the load generator's log, then measure again."
)


class AnswerReader:
    """The loop's side: `start`, then `words` as often as needed, one after the other, then `close`."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process, self._to, self._from = process, process.stdin, process.stdout
        self._lock = asyncio.Lock()

    @classmethod
    async def start(cls) -> AnswerReader:
        """Start the process and wait until it is ready. Raises WorkError if it does not start."""
        reader = cls(await asyncio.create_subprocess_exec(sys.executable, "-m", __name__, stdin=PIPE, stdout=PIPE))
        try:
            await reader._from.readexactly(len(READY))
        except asyncio.IncompleteReadError:
            raise WorkError(ENDED_EARLY) from None
        return reader

    async def words(self, reads: Sequence[bytes]) -> bytes:
        """Return the words of an answer as a JSON text, empty if the answer is incomplete. Raises WorkError."""
        raw = b"".join(reads)
        async with self._lock:
            try:
                self._to.write(len(raw).to_bytes(SIZE) + raw)
                await self._to.drain()
                size = int.from_bytes(await self._from.readexactly(SIZE))
                return await self._from.readexactly(size)
            # RuntimeError: uvloop, for a pipe that is closed
            except (asyncio.IncompleteReadError, ConnectionError, RuntimeError):
                raise WorkError(ENDED_EARLY) from None

    async def close(self) -> None:
        self._to.close()
        await self._process.wait()


def words(raw: bytes) -> str:
    """Return what the assistant says in a complete answer; empty if it is an error or cut off."""
    return assistant_words(
        Exchange(0, 0, 0, None, False, 0.0, sent=0.0, end=0.0, status="done", times=[0.0], reads=[raw])
    )


def main() -> None:
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # only the loop needs its high priority
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    sink.write(READY)
    sink.flush()
    while len(size := source.read(SIZE)) == SIZE:
        answer = json.dumps(words(source.read(int.from_bytes(size)))).encode()
        sink.write(len(answer).to_bytes(SIZE) + answer)
        sink.flush()


if __name__ == "__main__":
    main()
