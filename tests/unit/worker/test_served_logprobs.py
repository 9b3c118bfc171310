"""What a server tells of its probabilities, asked over HTTP in the form of vLLM's `prompt_logprobs`."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from backend.domain.evaluation.document import Variant
from backend.settings import ASSETS
from backend.worker.measuring import served_logprobs
from backend.worker.measuring.server_pool import Endpoint


@contextmanager
def server(share: float | None) -> Iterator[Endpoint]:
    """Says of every position after the first that token 1 has that probability; None: tells nothing."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            parsed = json.loads(self.rfile.read(int(self.headers["content-length"])))
            assert (parsed["prompt_logprobs"], parsed["max_tokens"], parsed["model"]) == (20, 1, "m")
            choice: dict[str, Any] = {"text": "a"}
            if share is not None:
                position = {
                    "1": {"logprob": math.log(share), "rank": 1},
                    "2": {"logprob": math.log(1 - share), "rank": 2},
                }
                choice["prompt_logprobs"] = [None, *[position] * (len(parsed["prompt"]) - 1)]
            body = json.dumps({"choices": [choice]}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    running = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    try:
        yield Endpoint(f"http://127.0.0.1:{running.server_port}/v1", "m", None)
    finally:
        running.shutdown()
        running.server_close()


def test_two_servers_are_compared_on_the_held_out_text() -> None:
    baseline = Variant(name="s", source="starter", kind="model", model_path=str(ASSETS / "starter" / "target"))
    windows = served_logprobs.held_out_windows([baseline], "code")
    assert len(windows) == served_logprobs.WINDOWS and {len(window) for window in windows} == {served_logprobs.LENGTH}
    with server(0.6) as first, server(0.5) as second:
        quality_figures = served_logprobs.quality_figures(
            {
                0: served_logprobs.fetch_logprobs(first, windows, None) or [],
                1: served_logprobs.fetch_logprobs(second, windows, None) or [],
            }
        )
    assert quality_figures[1]["served_kl"] == pytest.approx(
        0.6 * math.log(0.6 / 0.5) + 0.4 * math.log(0.4 / 0.5), rel=1e-4
    )
    assert quality_figures.keys() == {1} and quality_figures[1]["served_same_top"] == 1


def test_a_server_that_tells_nothing_costs_nothing_else() -> None:
    with server(None) as silent:
        assert served_logprobs.fetch_logprobs(silent, [[1, 2, 3]], None) is None
    assert served_logprobs.fetch_logprobs(silent, [[1, 2, 3]], None) is None, "nor one that is gone"
    assert (
        served_logprobs.held_out_windows([Variant(name="u", source="http://a", kind="url", url="http://a")], None) == []
    )
    assert served_logprobs.quality_figures({1: []}) == {}


def test_a_text_of_ones_own_goes_to_no_address(tmp_path: Path) -> None:
    """The bundled text is taken for all variants, so that they are compared on the same one."""
    baseline = Variant(name="s", source="starter", kind="model", model_path=str(ASSETS / "starter" / "target"))
    address = Variant(name="u", source="http://a", kind="url", url="http://a")
    own = tmp_path / "own.txt"
    own.write_text("private words " * 4000)
    assert served_logprobs.held_out_windows([baseline], str(own)) != served_logprobs.held_out_windows([baseline], None)
    assert (
        served_logprobs.held_out_windows([baseline, address], str(own))
        == served_logprobs.held_out_windows([baseline], None)
        != []
    )
    assert served_logprobs.held_out_windows([baseline, address], "prose") == served_logprobs.held_out_windows(
        [baseline], "prose"
    )
