"""A process beside the load that reads the answers which become part of a next prompt.

Reading 16,000 events takes a tenth of a second, in which the loop would stamp nothing. So the loop hands the kept bytes
over a pipe and goes on; the text comes back as JSON. Its memory and CPU are not in the audit, which is of the loop's
process. Knows nothing of sessions. It ends when its input does, so that none is left behind by a parent that was
killed.
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
GONE = "The process that reads the answers of sessions ended early: see the load generator's log, then measure again."


class AnswerReader:
    """The loop's end of it: `start`, then `words` as often as needed, one after the other, then `close`."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None and process.stdout is not None
        self._process, self._to, self._from = process, process.stdin, process.stdout
        self._one = asyncio.Lock()

    @classmethod
    async def start(cls) -> AnswerReader:
        """Started and waiting for work. Raises WorkError where it does not come up."""
        reader = cls(await asyncio.create_subprocess_exec(sys.executable, "-m", __name__, stdin=PIPE, stdout=PIPE))
        try:
            await reader._from.readexactly(len(READY))
        except asyncio.IncompleteReadError:
            raise WorkError(GONE) from None
        return reader

    async def words(self, reads: Sequence[bytes]) -> bytes:
        """The text of an answer as a JSON text, empty where the answer is not whole. Raises WorkError."""
        raw = b"".join(reads)
        async with self._one:
            try:
                self._to.write(len(raw).to_bytes(SIZE) + raw)
                await self._to.drain()
                size = int.from_bytes(await self._from.readexactly(SIZE))
                return await self._from.readexactly(size)
            # the last is uvloop's, of a pipe that is closed
            except (asyncio.IncompleteReadError, ConnectionError, RuntimeError):
                raise WorkError(GONE) from None

    async def close(self) -> None:
        self._to.close()
        await self._process.wait()


def words(raw: bytes) -> str:
    """What the assistant says in a whole answer; nothing where it is an error or cut off."""
    return assistant_words(
        Exchange(0, 0, 0, None, False, 0.0, sent=0.0, end=0.0, status="done", times=[0.0], reads=[raw])
    )


def main() -> None:
    with suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # the loop's own priority is for the loop alone
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    sink.write(READY)
    sink.flush()
    while len(size := source.read(SIZE)) == SIZE:
        answer = json.dumps(words(source.read(int.from_bytes(size)))).encode()
        sink.write(len(answer).to_bytes(SIZE) + answer)
        sink.flush()


if __name__ == "__main__":
    main()
