"""The phases of a start, from lines that vLLM 0.32 wrote on a processor."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.serving.startup import OTHER_SETTINGS, StartLog

LOADING = """(Worker pid=1) INFO 11-23 00:04:06 [cpu_model_runner.py:68] Starting to load model target-model...
(Worker pid=1) INFO 11-23 00:04:07 [default_loader.py:501] Loading weights took 0.64 seconds
(Worker pid=1) INFO 11-23 00:04:08 [cpu_model_runner.py:87] Warming up model for the compilation...
"""
LOADED = (
    "(Worker pid=1) INFO 11-23 00:04:17 [decorators.py:319] [backbone] Directly load AOT compilation from path "
    "/c/model\n"
)
FAILED = (
    "(Worker pid=1) WARNING 11-23 00:04:17 [decorators.py:327] [backbone] Compiling model again due to a load failure "
    "from "
    "/c/rank_0_0/model, reason: 'function' object has no attribute 'finalize_loading'\n"
)
SAVED = (
    "(Worker pid=1) INFO 11-23 00:04:57 [decorators.py:743] [backbone] saved AOT compiled function to "
    "/c/rank_0_0/model\n"
)
READY = (
    "(EngineCore pid=2) INFO 11-23 00:04:25 [core.py:402] init engine (profile, create kv cache, warmup model) took "
    "16.65 s\n"
)


def read(tmp_path: Path, *parts: str, shipped: bool = False) -> StartLog:
    """The log as it grows, a part at a time."""
    log = tmp_path / "server.log"
    log.write_text("Of an earlier start: " + SAVED)
    start_log = StartLog(log, log.stat().st_size, shipped=shipped)
    for part in parts:
        with log.open("a") as stream:
            stream.write(part)
        start_log.read()
    return start_log


@pytest.mark.parametrize("cut", [1, 40, 200])
def test_a_start_that_loads_what_was_compiled_is_cached_however_its_lines_arrive(tmp_path: Path, cut: int) -> None:
    text = LOADING + LOADED + READY
    startup = read(tmp_path, *(text[at : at + cut] for at in range(0, len(text), cut)), shipped=True).startup()
    assert startup.kind == "cached"
    assert startup.compiled_again is None
    assert None not in (startup.processes_s, startup.weights_s, startup.compile_s, startup.warm_up_s, startup.listen_s)


def test_a_cache_that_vllm_refuses_is_a_cold_start_with_its_reason(tmp_path: Path) -> None:
    startup = read(tmp_path, LOADING, FAILED + SAVED, READY, shipped=True).startup()
    assert (startup.kind, startup.compiled_again) == ("cold", "'function' object has no attribute 'finalize_loading'")


def test_a_shipped_cache_that_vllm_does_not_look_at_is_told(tmp_path: Path) -> None:
    assert read(tmp_path, LOADING + SAVED + READY, shipped=True).startup().compiled_again == OTHER_SETTINGS


def test_a_first_start_is_cold_and_an_eager_one_compiles_nothing(tmp_path: Path) -> None:
    first = read(tmp_path, LOADING + SAVED + READY).startup()
    assert (first.kind, first.compiled_again) == ("cold", None)
    eager = read(tmp_path, LOADING + READY).startup()
    assert (eager.kind, eager.compile_s) == ("eager", None)
    assert eager.ready_s >= 0
