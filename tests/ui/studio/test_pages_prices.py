"""The instance table and the measured processor on Hardware: filters and discount in the address, a refresh,
refusals."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from app.hardware import instance_rows
from backend.domain.jobs.demonstration import MARK, Demonstration
from backend.domain.jobs.jobs import JobState
from backend.hardware import neuron, probe, processor_speed
from backend.service import Workspace
from backend.service.machines import machine, prices
from tests import studio
from tests.fakes.running import running
from tests.helpers.price_tables import keep, refreshed
from tests.pricing import credentials, no_credentials, product, put


@pytest.fixture(autouse=True)
def anonymous(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without AWS credentials, whatever this machine has."""
    no_credentials(monkeypatch, tmp_path)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with running("pricing.py") as url:
        yield url


def table(at: Any) -> Any:
    return next(one.value for one in at.dataframe if "Instance" in one.value)


def test_every_instance_is_shown_with_its_price_and_where_that_holds(studio_home: Workspace) -> None:
    at = studio.open_page("hardware")
    shown = table(at)
    assert len(shown) == 45
    row = shown.set_index("Instance").loc["ml.g5.12xlarge"]
    assert (row["Accelerators"], row["On demand"], row["After discount"], row["Region"]) == (
        "4 x A10G",
        7.09,
        7.09,
        "us-west-2",
    )
    assert row["Per GiB"] == pytest.approx(7.09 / 89.4)
    assert (row["Price as of"], row["Price is"]) == ("2026", "snapshot of this version") and "Price List API" in row[
        "Source"
    ]
    bare = shown.set_index("Instance").loc["ml.p5.4xlarge"]
    assert bare["Price is"] == "no source found" and bare["On demand"] != bare["On demand"], "no price, not 0"
    text = studio.says(at)
    assert "45 of 45 instances" in text and "no price was found" in text and "AWS_ACCESS_KEY_ID" in text


def test_filters_order_and_discount_come_from_the_address(studio_home: Workspace) -> None:
    at = studio.open_page(
        "hardware",
        hardware_family=["g5", "g6"],
        hardware_words="12XLARGE g",
        hardware_sort="Price per GiB",
        hardware_discount="20",
    )
    shown = table(at)
    assert set(shown["Instance"]) == {"ml.g5.12xlarge", "ml.g6.12xlarge"}
    assert list(shown["Per GiB"]) == sorted(shown["Per GiB"])
    assert all(row["After discount"] == pytest.approx(0.8 * row["On demand"]) for _, row in shown.iterrows())
    assert set(table(studio.open_page("hardware", hardware_accelerator="T4"))["Accelerators"]) == {"1 x T4", "4 x T4"}
    assert "No instance matches" in studio.says(studio.open_page("hardware", hardware_words="nothing like it"))


@pytest.mark.parametrize("required", ["<img src=x onerror=y>", "-1", "1e9", "é" * 500])
def test_odd_words_in_the_address_leave_a_page(studio_home: Workspace, required: str) -> None:
    at = studio.open_page(
        "hardware",
        **dict.fromkeys(
            ("hardware_discount", "hardware_sort", "hardware_family", "hardware_accelerator", "hardware_words"),
            required,
        ),
    )
    assert at.title[0].value == "Hardware" and "<img" not in "".join(
        str(one.value) for one in (*at.markdown, *at.caption)
    )


def test_the_csv_is_what_is_shown_with_units(studio_home: Workspace) -> None:
    rows = prices.listing(studio_home, family="g5", discount=0.25)
    read = list(csv.DictReader(io.StringIO(instance_rows.as_csv(rows, 0.25))))
    assert [row["Instance"] for row in read] == [row.instance for row in rows]
    assert float(read[0]["After discount (USD/h, 25% off)"]) == pytest.approx(
        0.75 * float(read[0]["On demand (USD/h)"])
    )
    assert read[0]["Price as of"] and read[0]["Region"]


def test_prices_are_refreshed_by_a_click(
    studio_home: Workspace, address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    credentials(monkeypatch, tmp_path, address)
    put(address, "products", [product("ml.g5.12xlarge", "8.0", region="eu-west-1")])
    at = studio.open_page("hardware")
    at.text_input(key="hardware_region").set_value("eu-west-1")
    at.button(key="hardware_ask-aws").click().run()
    studio.check(at)
    row = table(at).set_index("Instance").loc["ml.g5.12xlarge"]
    assert (row["On demand"], row["Region"], row["Price is"]) == (8.0, "eu-west-1", "refreshed from AWS")
    assert "1 prices of eu-west-1" in studio.says(at) and "44 instances have no price there" in studio.says(at)
    put(address, "fault", {"code": "AccessDeniedException", "status": 400, "times": 1})
    at.button(key="hardware_ask-aws").click().run()
    studio.check(at)
    assert "GetProducts" in at.error[0].value
    assert table(at).set_index("Instance").loc["ml.g5.12xlarge"]["On demand"] == 8.0, "what there was stays"


def test_the_processor_is_measured_by_a_click_and_says_when(
    studio_home: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processor_speed, "MOST_BYTES", 32 << 20)  # what it comes to is not what is tested
    at = studio.open_page("hardware")
    assert "is not measured yet" in studio.says(at) and at.button(key="hardware_measure").label == "Measure it"
    at.button(key="hardware_measure").click().run()
    studio.check(at)
    text = studio.says(at)
    assert "Memory bandwidth" in text and "GB/s" in text and "measured here on 20" in text and "best of 3" in text
    assert at.button(key="hardware_measure").label == "Measure again"


def test_nothing_is_measured_while_a_job_runs(studio_home: Workspace) -> None:
    studio.install_job(studio_home, JobState.RUNNING)
    at = studio.open_page("hardware")
    at.button(key="hardware_measure").click().run()
    studio.check(at)
    assert "would disturb both" in at.error[0].value and machine.show(studio_home).speed is None


def test_a_demonstration_measures_and_asks_nothing(
    studio_home: Workspace, address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    credentials(monkeypatch, tmp_path, address)
    mark = Demonstration(hardware={"cpu": "c", "cores": 2}, versions={}, measured_at="2026-11-21T00:00:00Z")
    (studio_home.settings.home / MARK).write_text(mark.model_dump_json())
    at = studio.open_page("hardware")
    assert (
        at.button(key="hardware_measure").disabled
        and at.button(key="hardware_ask-aws").disabled
        and len(table(at)) == 45
    )


def test_what_an_earlier_version_measured_otherwise_is_not_shown(studio_home: Workspace) -> None:
    facts = probe.probe()
    rows = [{"bandwidth": 50e9, "flops": 1e12}]
    studio_home.settings.cache.mkdir(parents=True, exist_ok=True)
    (studio_home.settings.cache / processor_speed.FILE).write_text(
        json.dumps({"processor": f"{facts['cpu']}, {facts['cores']} cores", "attempts": rows})
    )
    assert machine.show(studio_home).speed is None


def test_neuron_devices_have_a_table_of_their_own(
    studio_home: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tool = tmp_path / "bin" / "neuron-ls"
    tool.parent.mkdir()
    rows = [{"neuron_device": 0, "bdf": "00:1f.0", "connected_to": None, "nc_count": 2, "memory_size": 34359738368}]
    tool.write_text(f"#!/bin/sh\necho '{json.dumps(rows)}'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")
    neuron.list_devices.cache_clear()
    try:
        at = studio.open_page("hardware")
    finally:
        neuron.list_devices.cache_clear()
    (shown,) = [one.value for one in at.dataframe if "Neuron device" in one.value]
    assert list(shown["NeuronCores"]) == [2] and list(shown["Memory"]) == ["34.4 GB"]
    assert "2 NeuronCores" in studio.says(at)


def test_what_changed_between_refreshes_stands_under_the_table(studio_home: Workspace) -> None:
    for day, dollars in ((1, 7.0), (8, 8.4)):
        keep(studio_home, refreshed(datetime(2026, 11, day, tzinfo=UTC), "eu-west-1", ml_g5_12xlarge=dollars))
    at = studio.open_page("hardware")
    (row,) = next(one.value for one in at.dataframe if "Was (USD per hour)" in one.value).to_dict("records")
    assert [row[name] for name in ("Instance", "Was (USD per hour)", "Change")] == ["ml.g5.12xlarge", 7.0, "+20.0%"]
