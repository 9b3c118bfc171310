"""The load generator as a whole: a real subprocess against a server whose true send times are known."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from backend.domain.errors import InvalidWorkload, WorkError
from backend.domain.evaluation.metrics import steady_window
from backend.domain.load.load import Load
from backend.domain.load.records import LoadPlan
from backend.evaluate.load import read_level, run_level
from backend.settings import CHECKOUT
from tests import live_processes
from tests.fakes.running import ask, running, write_prompts
from tests.homes import eventually, once
from tests.live_processes import command, connections, has_ended

pytestmark = pytest.mark.alone


@pytest.fixture(scope="module")
def exact() -> Iterator[str]:
    with running("exact_server.py", "--rate", 400, "--tokens-per-chunk", 4, "--ttft-ms", 30, "--role-chunk") as url:
        yield url


def plan(url: str, folder: Path, **changed: Any) -> LoadPlan:
    fields = {"model": "exact", "load": Load("closed", 4), "requests": 8, "warmup_requests": 1, "max_tokens": 16}
    return LoadPlan(**({"url": url, "prompts": write_prompts(folder)} | fields | changed))


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_no_chunk_is_seen_before_it_was_sent_and_none_is_missed(exact: str, tmp_path: Path, endpoint: str):
    records, audit = run_level(plan(exact, tmp_path, endpoint=endpoint), tmp_path / "level")
    truth = {row["number"]: row for row in ask(f"{exact}/sent")}
    assert len(records) == 12
    for record in records:
        sent = truth[int(record.text.split(" ")[0][1:])]
        assert record.status == "ok"
        assert record.sent is not None
        assert record.intended <= record.sent <= sent["received"]
        assert len(record.chunk_times) == len(sent["sends"]) == 4
        assert all(observed > left for observed, left in zip(record.chunk_times, sent["sends"], strict=True))
        assert (record.chunk_tokens, record.output_tokens, record.prompt_tokens) == ((4, 8, 12, 16), 16, 7)
    assert audit.usage == "continuous"


def test_each_stream_warms_up_and_goes_on_without_draining(exact: str, tmp_path: Path):
    records, audit = run_level(plan(exact, tmp_path, warmup_requests=2, requests=9), tmp_path / "level")
    assert Counter(record.stream for record in records if record.warm) == dict.fromkeys(range(4), 2)
    assert [record.index for record in records] == list(range(17))
    assert [record.prompt for record in records if not record.warm] == [n % 2 for n in range(9)]
    window = steady_window(records)
    assert window == (audit.steady_start, audit.steady_end)
    assert window is not None
    for stream in range(4):
        own = sorted((record for record in records if record.stream == stream), key=lambda record: record.intended)
        assert [record.warm for record in own] == [True, True] + [False] * (len(own) - 2)
        assert all(later.intended >= earlier.end for earlier, later in pairwise(own))
        assert own[1].end <= window[0]


def test_a_level_by_the_clock_ends_after_its_seconds(exact: str, tmp_path: Path):
    records, _ = run_level(plan(exact, tmp_path, requests=None, seconds=0.5), tmp_path / "level")
    measured = [record for record in records if not record.warm]
    left_warmup = max(min(r.intended for r in measured if r.stream == stream) for stream in range(4))
    assert {record.status for record in records} == {"ok"}
    assert 0 <= max(record.intended for record in measured) - left_warmup < 0.5


def test_the_audit_tells_what_the_run_and_the_reading_cost(exact: str, tmp_path: Path):
    _, audit = run_level(plan(exact, tmp_path, requests=16), tmp_path / "level")
    assert audit.cpu_s > 0
    assert audit.wall_s > 0
    assert audit.parse_cpu_s > 0
    assert 0 <= audit.loop_lag_ms_p50 <= audit.loop_lag_ms_p99 <= audit.loop_lag_ms_max
    assert 0 <= audit.coalesced_share <= 1
    assert audit.versions["uvloop"]


def test_what_is_returned_is_what_is_on_disk(exact: str, tmp_path: Path):
    assert run_level(plan(exact, tmp_path), tmp_path / "level") == read_level(tmp_path / "level")


def children_with(folder: Path) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter()
        if str(folder) in " ".join(command(process)) and not has_ended(process)
    ]


def test_an_exception_in_the_parent_kills_the_subprocess(exact: str, tmp_path: Path):
    class Enough(Exception):
        pass

    def stop(*_: Any) -> None:
        assert children_with(tmp_path / "level")
        raise Enough

    request, before = plan(exact, tmp_path, requests=None, seconds=60), signal.signal(signal.SIGUSR1, stop)
    try:
        with (
            pytest.raises(Enough),
            once(lambda: is_asking(tmp_path / "level"), lambda: os.kill(os.getpid(), signal.SIGUSR1)),
        ):
            run_level(request, tmp_path / "level")
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert children_with(tmp_path / "level") == []
    with pytest.raises(WorkError, match="measure it again"):
        read_level(tmp_path / "level")


def is_asking(folder: Path) -> bool:
    """A level of that folder has a connection to its server."""
    return any(each.status == psutil.CONN_ESTABLISHED for own in children_with(folder) for each in connections(own))


def test_a_killed_parent_leaves_no_load_behind(exact: str, tmp_path: Path):
    text = plan(exact, tmp_path, requests=None, seconds=120).model_dump_json()
    code = (
        "import sys; from pathlib import Path; from backend.domain.load.records import LoadPlan;"
        "from backend.evaluate.load import run_level;"
        "run_level(LoadPlan.model_validate_json(sys.argv[1]), Path(sys.argv[2]))"
    )
    level = tmp_path / "level"
    with subprocess.Popen([sys.executable, "-c", code, text, str(level)], cwd=CHECKOUT) as parent:
        eventually("it asks the server", lambda: is_asking(level))
        os.kill(parent.pid, signal.SIGKILL)
    eventually("the load has ended", lambda: children_with(level) == [])


def test_a_generator_killed_from_outside_is_told_in_one_sentence(exact: str, tmp_path: Path):
    def kill() -> None:
        live_processes.kill(children_with(tmp_path / "level"))

    verdict = plan(exact, tmp_path, requests=None, seconds=60)
    with pytest.raises(WorkError, match="killed by signal 9"), once(lambda: is_asking(tmp_path / "level"), kill):
        run_level(verdict, tmp_path / "level")


def test_a_wrong_workload_is_told_in_one_sentence(exact: str, tmp_path: Path):
    verdict = plan(exact, tmp_path)
    write_prompts(tmp_path, {"no": "prompt"})
    with pytest.raises(InvalidWorkload, match=r'Line 1 of the workload has no "prompt"'):
        run_level(verdict, tmp_path / "level")


def test_an_interpreter_that_is_not_there_is_told(exact: str, tmp_path: Path):
    with pytest.raises(WorkError, match="cannot be started"):
        run_level(plan(exact, tmp_path), tmp_path / "level", python=str(tmp_path / "python"))


def module(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "backend.evaluate.load", *arguments], cwd=CHECKOUT, capture_output=True, text=True
    )


def test_the_module_runs_a_plan_file_by_itself(exact: str, tmp_path: Path):
    (tmp_path / "plan.json").write_text(plan(exact, tmp_path).model_dump_json())
    done = module(str(tmp_path / "plan.json"), str(tmp_path / "out"))
    assert (done.returncode, done.stderr) == (0, "")
    records, _ = read_level(tmp_path / "out")
    assert len(records) == 12


@pytest.mark.parametrize(
    ("document", "code", "words"),
    [
        ({"url": "http://127.0.0.1:1", "unknown": 1}, 2, "unknown"),
        ({"url": "nowhere"}, 2, "url"),
        ({"url": "http://127.0.0.1:1"}, 3, "cannot be reached"),
    ],
)
def test_the_module_says_in_one_sentence_what_is_wrong(tmp_path: Path, document: dict[str, Any], code: int, words: str):
    fields = {"model": "m", "load": {"mode": "closed", "value": 1}, "requests": 1, "prompts": write_prompts(tmp_path)}
    (tmp_path / "plan.json").write_text(json.dumps(fields | document))
    done = module(str(tmp_path / "plan.json"), str(tmp_path / "out"))
    assert done.returncode == code
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_module_without_a_plan_says_how_it_is_used(tmp_path: Path):
    assert (module().returncode, module(str(tmp_path / "none"), "x").returncode) == (2, 2)


def test_a_level_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    openssl = shutil.which("openssl")
    assert openssl, "the TLS test needs the openssl command"
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    options = [
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
        "-addext",
        "subjectAltName=DNS:localhost",
    ]
    subprocess.run([openssl, "req", "-x509", *options, "-keyout", key, "-out", cert], check=True, capture_output=True)
    with running("broken_server.py", "--cert", cert, "--key", key) as url:
        secure = url.replace("http://127.0.0.1", "https://localhost")
        with pytest.raises(WorkError, match="TLS"):
            run_level(plan(secure, tmp_path, model="ok"), tmp_path / "level")
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        records, _ = run_level(plan(secure, tmp_path, model="ok"), tmp_path / "level")
    assert {record.status for record in records} == {"ok"}
    assert {record.text for record in records} == {"the quick brown fox jumps over it all "}
