"""What disturbed a measurement: read from the kernel's own counters, and from real work beside this process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from backend.domain.load.records import Disturbance
from backend.worker.measuring import disturbance
from backend.worker.measuring.disturbance import DisturbanceMeter
from tests.homes import eventually

pytestmark = pytest.mark.process

QUIET = Disturbance(seconds=10, cores=4, others=0.1, stolen=0.0, throttled=None)
SPIN = "import os\nif child := os.fork():\n  print(child)\n  raise SystemExit\nos.close(1)\nwhile True: pass"


def like(**changed: float) -> Disturbance:
    return QUIET.model_copy(update=changed)


def test_the_kernels_words_are_read() -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    busy, stolen = disturbance.processor_seconds("cpu  100 20 30 9999 50 4 6 7 11 0\ncpu0 1 2 3\n")
    assert (busy, stolen) == (pytest.approx(160 / ticks), pytest.approx(7 / ticks))


def test_an_old_kernel_without_stolen_time_has_none() -> None:
    assert disturbance.processor_seconds("cpu 1 1 1 1 1 1 1\n")[1] == 0


def test_throttling_is_summed_over_processors_and_unknown_without_counters(tmp_path: Path) -> None:
    assert disturbance.throttles(tmp_path) is None
    for number, count in enumerate((2, 5)):
        folder = tmp_path / f"cpu{number}" / "thermal_throttle"
        folder.mkdir(parents=True)
        (folder / "core_throttle_count").write_text(f"{count}\n")
    assert disturbance.throttles(tmp_path) == 7


def test_a_quiet_machine_says_nothing_and_a_busy_one_what_it_was() -> None:
    assert disturbance.describe(QUIET) is None
    assert disturbance.describe(like(others=1.5)) == "other programs used 1.50 of 4 cores"
    both = disturbance.describe(like(stolen=0.5, throttled=3))
    assert both == "the hypervisor withheld 0.50 of 4 cores and the processor was throttled 3 times for heat"
    assert disturbance.worst([QUIET, like(others=2.0)]) == like(others=2.0)
    assert disturbance.worst([]) is None


def test_work_of_a_process_that_is_not_ours_is_seen_and_our_own_is_not() -> None:
    watch = DisturbanceMeter()
    # reparented away
    spinning = subprocess.run([sys.executable, "-c", SPIN], stdout=subprocess.PIPE, text=True, check=True)
    pid = int(spinning.stdout)
    try:
        eventually("half a second of its work", lambda: _used(pid) > 0.5)
        result = watch.disturbance()
        assert result.others * result.seconds > 0.4
    finally:
        os.kill(pid, 9)


def _used(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
