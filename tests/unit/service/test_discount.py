"""A Savings Plan's discount of the settings: off every price of an instance, and said beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend import settings as configuration
from backend.domain.machine import price_list
from backend.service.machines import prices, targets
from tests.homes import open_home

NAME = "ml.g5.12xlarge"


def test_it_is_off_every_price_and_stands_beside_it(tmp_path: Path) -> None:
    plain, home = open_home(tmp_path), open_home(tmp_path, discount=0.2)
    full, row = (targets.hardwares(each).instances[NAME] for each in (plain, home))
    assert full.sagemaker_usd_per_hour and row.sagemaker_usd_per_hour == pytest.approx(
        0.8 * full.sagemaker_usd_per_hour
    )
    assert targets.find(home, f"sagemaker:{NAME}").price_per_hour == row.sagemaker_usd_per_hour
    assert "on demand (20% off), us-west-2" in (price_list.price_note(row) or "") and "off" not in (
        price_list.price_note(full) or ""
    )
    (listed,) = prices.listing(home, instance=NAME)
    assert (listed.usd_per_hour, listed.discounted_usd_per_hour) == (
        full.sagemaker_usd_per_hour,
        row.sagemaker_usd_per_hour,
    )
    (request,) = prices.listing(home, instance=NAME, discount=0.0)
    assert request.discounted_usd_per_hour == full.sagemaker_usd_per_hour


@pytest.mark.parametrize(("written", "share"), [("20", 0.2), ("", 0.0), ("much", 0.0), ("-5", 0.0), ("250", 0.99)])
def test_it_is_written_in_percent(written: str, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHETSTONE_DISCOUNT", written)
    assert configuration.load().discount == share
