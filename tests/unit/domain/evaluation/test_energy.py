"""Energy by the machine's counters: a made-up powercap tree, a made-up NVML, and what a level makes of them."""

from __future__ import annotations

import csv
import io
import os
import subprocess
from pathlib import Path

import pytest

from backend.domain.evaluation import energy
from backend.domain.evaluation.energy import NONE_REPORTED, total_energy
from backend.domain.evaluation.resource_use import Energy
from backend.evaluate.report.report import render
from backend.hardware import energy as counters
from backend.hardware.energy import Counter
from backend.present.tables import evaluation as charts_table
from tests.helpers.report_page import _Page
from tests.simulated import evaluation, level, result

FAKE = Path(__file__).resolve().parents[4] / "tests" / "fakes" / "nvml.c"
NO_NVML = "libno-such-library.so.1"


def zone(powercap: Path, path: str, name: str, microjoules: int, wraps_at: int = 262_143_328_850) -> Path:
    folder = powercap / path
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{name}\n")
    (folder / "energy_uj").write_text(f"{microjoules}\n")
    (folder / "max_energy_range_uj").write_text(f"{wraps_at}\n")
    return folder


@pytest.fixture
def powercap(tmp_path: Path) -> Path:
    """As the kernel has it: zones side by side, a part named after the zone that it is in."""
    zone(tmp_path, "intel-rapl:0", "package-0", 5_000_000)
    zone(tmp_path, "intel-rapl:0:0", "core", 4_000_000)
    zone(tmp_path, "intel-rapl:0:1", "dram", 1_500_000)
    zone(tmp_path, "intel-rapl:1", "psys", 9_000_000)
    (tmp_path / "intel-rapl").mkdir()
    return tmp_path


def test_packages_and_their_memory_are_counted_and_their_parts_not_twice(powercap: Path) -> None:
    outcome = counters.read_counters(powercap, NO_NVML)
    assert {name: counter.joules for name, counter in outcome.items()} == {
        "package-0 (RAPL)": 5.0,
        "dram of package-0 (RAPL)": 1.5,
    }


def test_a_counter_that_starts_anew_is_counted_over_its_end(powercap: Path) -> None:
    before = counters.read_counters(powercap, NO_NVML)
    (powercap / "intel-rapl:0" / "energy_uj").write_text("1000000")
    (powercap / "intel-rapl:0:1" / "energy_uj").write_text("2500000")
    spent = counters.energy_used(before, counters.read_counters(powercap, NO_NVML))
    assert spent["package-0 (RAPL)"] == pytest.approx(262_143.328850 - 4.0)
    assert spent["dram of package-0 (RAPL)"] == pytest.approx(1.0)


def test_counters_that_may_not_be_read_or_hold_no_number_are_none(powercap: Path) -> None:
    (powercap / "intel-rapl:0" / "energy_uj").unlink()
    (powercap / "intel-rapl:0:1" / "energy_uj").write_text("")
    assert counters.read_counters(powercap, NO_NVML) == {}


def test_a_machine_without_any_reports_none(tmp_path: Path) -> None:
    assert counters.read_counters(tmp_path / "none", NO_NVML) == {}
    assert counters.energy_used({}, {"package-0 (RAPL)": Counter(1.0, None)}) == {}


@pytest.fixture(scope="module")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("nvml") / "libfake.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(FAKE)], check=True)
    return library


def test_gpus_that_count_their_energy_are_read_by_nvml(
    nvml: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = tmp_path / "millijoules"
    counter.write_text("7250000000000")
    monkeypatch.setenv("FAKE_NVML_MILLIJOULES", str(counter))
    before = counters.read_counters(tmp_path / "none", str(nvml))
    assert before == {"GPU 0 (NVML)": Counter(7_250_000_000.0, None)}
    counter.write_text("7250000012500")
    assert counters.energy_used(before, counters.read_counters(tmp_path / "none", str(nvml))) == {"GPU 0 (NVML)": 12.5}


def test_a_library_without_a_driver_gives_none(nvml: Path, tmp_path: Path) -> None:
    os.environ.pop("FAKE_NVML_MILLIJOULES", None)
    other = tmp_path / "libother.so"
    other.write_bytes(nvml.read_bytes())
    assert counters.read_counters(tmp_path / "none", str(other)) == {}


def test_a_level_adds_its_repeats_and_leaves_out_counters_that_one_of_them_lacks() -> None:
    outcome = total_energy([({"a": 10.0, "b": 1.0}, 60), ({"a": 20.0}, 40)])
    assert outcome == Energy(joules={"a": 30.0}, output_tokens=100)
    assert outcome.joules_per_output_token == pytest.approx(0.3)
    assert total_energy([]) is None
    assert total_energy([({}, 60)]) is None
    assert Energy(joules={"a": 1.0}, output_tokens=0).joules_per_output_token is None


def test_it_is_shown_where_it_was_reported_and_else_said_that_it_was_not() -> None:
    silent = _Page(render(evaluation())).text
    assert NONE_REPORTED in silent and "Energy per output token" not in silent
    spent = Energy(joules={"package-0 (RAPL)": 50.0}, output_tokens=200)
    document = evaluation().model_copy(update={"variants": [result("one", [level(4, energy=spent)])], "comparison": []})
    text = _Page(render(document)).text
    assert "Energy per output token (J)" in text and "0.25" in text
    assert "warm-up, load generator and idle power" in text
    assert energy.energy_rows(document)[0]["package-0 (RAPL)"] == 50.0
    row = next(csv.DictReader(io.StringIO(charts_table.csv(document))))
    assert row["Energy per output token (J)"] == "0.25"
