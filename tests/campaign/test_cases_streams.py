"""Every way of streaming and every reported result, through the real command: read right, or refused in one
sentence."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from tests.cases.results import READ, refused_files, written
from tests.fakes.running import running
from tests.fakes.streaming_server import HOSTILE, MODES, WORDS
from tests.integration.cli.calling import Answer, one_sentence, whetstone

pytestmark = pytest.mark.campaign
TIMINGS = ("ttft_ms", "tpot_ms", "chunk_gap_ms", "client_latency_ms")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with running("streaming_server.py") as url:
        yield url


class Expected(NamedTuple):
    """What the command says of four requests to a mode: validity, the beginning of the first reason, figures that are
    unknown."""

    valid: str = "yes"
    reason: str = ""
    unknown: frozenset[str] = frozenset()
    errors: Mapping[str, int] = MappingProxyType({})


UNCOUNTED = Expected(
    "in part", "4 of 4 answers came without a token count", frozenset({"tpot_ms", "output_tokens_per_s"})
)
FAILED = frozenset({*TIMINGS, "output_tokens"})


def failed(kind: str) -> Expected:
    """Every request failed in that way."""
    return Expected("no", "4 of 4 requests failed", FAILED, {kind: 4})


REFUSED_HALF = Expected("no", "2 of 4 requests failed", errors={"http_429": 2})
EXPECTED = {
    **dict.fromkeys(MODES, Expected()),
    "nousage": UNCOUNTED,
    "strict422": UNCOUNTED,
    "buffered": Expected("in part", "4 of 4 answers came in one piece", frozenset({"tpot_ms", "chunk_gap_ms"})),
    "empty": Expected("no", "4 of 4 answers were empty", frozenset(TIMINGS)),
    **dict.fromkeys(("busy", "busyfloat", "busydate"), REFUSED_HALF),
    **dict.fromkeys(("errev", "errev2", "errthen"), failed("server_error")),
    **dict.fromkeys(("deep", "oddchoices", "endlesshead"), failed("malformed")),
    **dict.fromkeys(("endless", "endlessline"), failed("too_large")),
    "drip": failed("timeout"),
    "nullchoices": Expected("no", "4 of 4 answers were empty", frozenset(TIMINGS)),
}


def bench(home: Path, server: str, mode: str, *options: object) -> Answer:
    """Four requests over one stream."""
    timeout = {"drip": 1, "endlesshead": 30}.get(mode, 20)
    load = (
        "--concurrency",
        1,
        "--requests",
        4,
        "--warmup",
        0,
        "--max-tokens",
        8,
        "--timeout",
        timeout,
        "--prefix-cache",
        "off",
    )
    return whetstone(home, "bench", f"{server}/{mode}/v1", "--model", "fake", "--chat", *load, *options)


@pytest.mark.parametrize("mode", [*MODES, *HOSTILE])
def test_every_way_of_streaming_is_read_right_or_fails_with_its_reason(server: str, tmp_path: Path, mode: str) -> None:
    expected = EXPECTED[mode]
    done = bench(tmp_path, server, mode, "--json")
    all_failed = sum(expected.errors.values()) == 4
    assert done.returncode == int(all_failed), done.stderr
    assert "Traceback" not in done.stderr

    # 1. What is said of the level.
    level: dict[str, Any]
    (level,) = json.loads(done.stdout)
    assert level["errors"] == expected.errors
    is_late = any(
        "load generator" in reason for reason in level["reasons"]
    )  # beside other tests the load generator may be late too
    assert is_late or (level["valid"], bool(level["reasons"])) == (expected.valid, expected.valid != "yes")
    if expected.valid != "yes":
        assert any(reason.startswith(expected.reason) for reason in level["reasons"])

    # 2. Its figures: unknown, or right.
    for metric in TIMINGS:
        assert (level[metric] is None) is (metric in expected.unknown), metric
    if level["ttft_ms"] is not None:
        assert level["output_tokens"] in {None, len(WORDS)}
        assert level["tpot_ms"] is None or level["tpot_ms"]["p50"] > 3
        assert 0 < level["ttft_ms"]["p50"] < level["client_latency_ms"]["p50"] + 0.001


def test_a_server_without_a_list_of_models_is_told(server: str, tmp_path: Path) -> None:
    done = whetstone(tmp_path, "bench", f"{server}/nomodels/v1")
    assert "not with a list of models" in done.stderr and "--model" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("mode", ["endlessmodels", "deepmodels"])
def test_a_hostile_list_of_models_is_told(server: str, tmp_path: Path, mode: str) -> None:
    done = whetstone(tmp_path, "bench", f"{server}/{mode}/v1")
    assert done.returncode == 1 and done.stderr.count("\n") <= 2 and "Traceback" not in done.stderr


@pytest.mark.parametrize("name", READ)
def test_every_result_that_is_read_has_no_placeholder_for_a_figure(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(written(READ[name]()))
    done = whetstone(tmp_path / "home", "bench", "import", tmp_path / name, "--json")
    assert done.returncode == 0, done.stderr
    (level,) = json.loads(done.stdout)["levels"]
    figures = [level["output_tokens_per_s"], level["requests_per_s"]]
    figures += [figure for metric in TIMINGS if level[metric] for figure in level[metric].values()]
    assert all(figure is None or figure > 0 for figure in figures)


@pytest.mark.parametrize(("name", "content", "sentence"), refused_files())
def test_every_other_result_is_refused_by_name(tmp_path: Path, name: str, content: bytes, sentence: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert f"{name} {sentence}" in one_sentence(whetstone(tmp_path / "home", "bench", "import", tmp_path / name))
