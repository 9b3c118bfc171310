"""Runs the worker of an endpoint: an address that stays, before a server that comes and goes.

The worker itself listens (`gateway.held`), so that a request finds somebody whether the server is loaded or not. The
supervisor starts another worker if this one dies.
"""

from __future__ import annotations

import errno
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from backend import served_keys
from backend import settings as configuration
from backend.channel import JobChannel
from backend.domain.errors import JobCancelled, NotFound, PortTaken
from backend.domain.evaluation.document import Variant
from backend.domain.figures import counted
from backend.domain.jobs.jobs import EndpointSpec
from backend.domain.jobs.progress import NoProgress
from backend.gateway import server as http_server
from backend.gateway.held.held_gateway import HeldGateway, ServerFigures
from backend.gateway.held.server_state import ServerState
from backend.gateway.options import GatewayOptions
from backend.gateway.refusals import try_later
from backend.gateway.request_log import RequestLog
from backend.gateway.routes import Upstream
from backend.hardware import engine_status
from backend.serving.model_server import ModelServer
from backend.serving.servers import make_server
from backend.settings import Settings
from backend.worker.endpoint.memory_room import FOLDER, MemoryRoom
from backend.worker.endpoint.server_owner import ServerOwner
from backend.worker.measuring.artifact_copies import local_artifacts
from backend.worker.progress import ChannelProgress
from backend.worker.resources import PeakMemory

DRAIN_S, CLOSE_S = 5.0, 8.0
"""Seconds that requests under way have when the endpoint stops, and after which the listener is left behind."""
BACK_S = 5.0


def run(spec: EndpointSpec, channel: JobChannel, memory: PeakMemory) -> dict[str, Any]:
    """Answer at the endpoint's address until the worker is asked to stop, which raises JobCancelled.

    Raises PortTaken, NotFound where the files are gone, EngineMissing, ArtifactCorrupt, and ServerFailed where the
    server does not load or crashes too often.
    """
    settings = configuration.load()
    progress = ChannelProgress(channel, 1.0)
    # 1. The files, the engine and the address must be there.
    folder = spec.variants[0].model_path
    if not (Path(folder or "") / "config.json").is_file() and spec.variants[0].stored_at is None:
        raise NotFound(f"The files of {spec.variants[0].source} are no longer at {folder}: remove the endpoint.")
    with local_artifacts(spec.variants, settings, progress) as (variant,), _listen(spec.port) as listening:
        program = engine_status.server_program(settings, variant)
        # 2. Answer, and load the server when it is asked for.
        state, figures = ServerState(keep_loaded=spec.keep_loaded), ServerFigures(spec.memory_bytes)
        room = MemoryRoom(settings.home, spec.port)

        def new_server() -> ModelServer:
            return _make_server(variant, program, settings, channel)

        owner = ServerOwner(spec, state, figures, room, channel, new_server)
        try:
            with _answering(spec, channel, settings, state, figures, listening), room.announced():
                owner.serve()
        except JobCancelled:
            counts = state.counts
            raise JobCancelled(f"Stopped on request after {counted(counts.requests, 'request')}.") from None
        finally:
            owner.close()
    raise AssertionError("an endpoint serves until it is stopped")


def _make_server(variant: Variant, program: Path, settings: Settings, channel: JobChannel) -> ModelServer:
    log, cache = channel.side_log("server-0"), settings.cache / "vllm"
    server = make_server(variant, program=program, log=log, cache_root=cache, progress=NoProgress())
    server.prepare_apart()  # this process stays small: it may live for months, mostly idle
    return server


@contextmanager
def _listen(port: int) -> Iterator[socket.socket]:
    """Yield the listening socket of the endpoint's address. Raises PortTaken."""
    try:
        listening = http_server.listen("127.0.0.1", port)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise PortTaken(f"Port {port} is in use by another program: stop that, then start the endpoint.") from None
    with closing(listening):
        yield listening


@contextmanager
def _answering(
    spec: EndpointSpec,
    channel: JobChannel,
    settings: Settings,
    state: ServerState,
    figures: ServerFigures,
    listening: socket.socket,
) -> Iterator[None]:
    """Answer requests in a thread meanwhile; at the end those under way have DRAIN_S."""
    # 1. Start.
    named = Upstream(
        name=spec.endpoint,
        source=spec.variants[0].source,
        served_name=spec.endpoint,
        base=f"http://127.0.0.1:{spec.port}",
        job=channel.job,
    )
    token = served_keys.find_or_make(spec.port)
    http_server.log_defects_only()
    with closing(RequestLog(settings.home / FOLDER / f"{spec.endpoint}.log")) as log:
        gateway = HeldGateway(state, figures, named, token, GatewayOptions(drain_s=DRAIN_S), log)
        server = http_server.GatewayServer(gateway, logging.info)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True, name="requests")
        thread.start()
        try:
            yield
        except JobCancelled:
            served_keys.forget(spec.port, token)
            raise
        finally:
            # 2. Stop: those who wait are told, those under way have a moment.
            sentence = f"The endpoint {spec.endpoint} stops or is started again: try again in {BACK_S:.0f} s."
            state.refuse(try_later(sentence, kind="endpoint_stopping", after_s=BACK_S), lasting=True)
            server.should_exit = True
            thread.join(CLOSE_S)
