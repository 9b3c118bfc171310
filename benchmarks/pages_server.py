"""A real studio server and one session in it, spoken to as the browser speaks: what one run of a page's script takes.

The time of a run is from the request on the websocket to the message that the script has finished, on loopback:
routing, the script, the store, and turning its elements into messages. Drawing in the browser is not in it.
"""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.sync.client import ClientConnection, connect

ROOT = Path(__file__).resolve().parent.parent
START_SECONDS = 60.0
RUN_SECONDS = 60.0


class PageFailed(Exception):
    """A page ended in an exception, or never ended: its time would say nothing."""


class Server:
    """`python -m streamlit run app/web/studio.py` on a home. A context manager."""

    def __init__(self, home: Path, log: Path) -> None:
        self.port = _free_port()
        environment = {**os.environ, "WHETSTONE_HOME": str(home), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "streamlit", "run", "app/web/studio.py", "--server.port", str(self.port)]
        command += ["--server.address", "127.0.0.1", "--server.headless", "true"]
        with log.open("wb") as output:
            self.child = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)
        self.process = psutil.Process(self.child.pid)

    def __enter__(self) -> Server:
        deadline = time.monotonic() + START_SECONDS
        while not self._healthy():
            if self.child.poll() is not None or time.monotonic() > deadline:
                raise PageFailed("the studio did not start")
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        self.child.terminate()
        try:
            self.child.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cpu_s(self) -> float:
        """Processor seconds that the server has used so far, in all its threads."""
        used = self.process.cpu_times()
        return float(used.user + used.system)

    def _healthy(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=2)
        with suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/_stcore/health")
            return connection.getresponse().status == 200
        return False


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Visitor:
    """One session. `visit` opens a page in it, as following a link does."""

    def __init__(self, server: Server) -> None:
        self.socket: ClientConnection = connect(
            f"ws://127.0.0.1:{server.port}/_stcore/stream",
            subprotocols=["streamlit"],
            max_size=None,  # type: ignore[list-item]
        )

    def __enter__(self) -> Visitor:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def visit(self, page: str, query: str) -> float:
        """Seconds of server time. Raises PageFailed where the script ended in an exception."""
        ask = BackMsg()
        ask.rerun_script.page_name = page
        ask.rerun_script.query_string = query
        ask.rerun_script.context_info.timezone = "UTC"
        message = ask.SerializeToString()
        began = time.perf_counter()
        self.socket.send(message)
        while True:
            answer = ForwardMsg()
            answer.ParseFromString(self.socket.recv(timeout=RUN_SECONDS, decode=False))
            kind = answer.WhichOneof("type")
            if kind == "script_finished":
                return time.perf_counter() - began
            if kind == "delta" and answer.delta.new_element.WhichOneof("type") == "exception":
                raise PageFailed(f"{page}?{query}: {answer.delta.new_element.exception.message}")
            if kind == "page_not_found":
                raise PageFailed(f"there is no page {page}")
