"""Prices of several refreshes: the last one counts, the earlier ones stay and say what changed."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from backend.domain.machine import price_list
from backend.service.machines import prices, targets
from tests.helpers.price_tables import keep, refreshed
from tests.homes import open_home

DAYS = [datetime(2026, 11, day, tzinfo=UTC) for day in (1, 8, 15)]


def test_the_last_refresh_counts_and_what_changed_is_kept(tmp_path: Path) -> None:
    home = open_home(tmp_path)
    assert prices.list_changes(home) == []
    keep(home, refreshed(DAYS[0], "eu-west-1", ml_g5_12xlarge=7.0, ml_g6_xlarge=1.0))
    keep(home, refreshed(DAYS[1], "eu-west-1", ml_g5_12xlarge=7.0, ml_g6_xlarge=0.9))
    keep(home, refreshed(DAYS[2], "eu-west-1", ml_g5_12xlarge=8.4))
    rows = targets.hardwares(home).instances
    assert rows["ml.g5.12xlarge"].sagemaker_usd_per_hour == 8.4
    assert not rows["ml.g6.xlarge"].price_refreshed, "the last refresh had none of it: the snapshot's counts"
    large, small = prices.list_changes(home)
    assert (large.instance, large.before, large.after) == ("ml.g5.12xlarge", 7.0, 8.4)
    assert (large.before_as_of, large.as_of) == (DAYS[1], DAYS[2]) and f"{large.share:+.0%}" == "+20%"
    assert (small.instance, small.before, small.after) == ("ml.g6.xlarge", 1.0, 0.9)


def test_the_prices_of_one_region_are_its_last_refresh_and_no_others(tmp_path: Path) -> None:
    home = open_home(tmp_path)
    assert prices.list_regions(home) == ("us-west-2",)
    keep(home, refreshed(DAYS[0], "eu-west-1", ml_g5_12xlarge=7.0, ml_g6_xlarge=1.0))
    keep(home, refreshed(DAYS[1], "eu-west-1", ml_g5_12xlarge=7.5))
    keep(home, refreshed(DAYS[2], "us-east-1", ml_g5_12xlarge=6.0))
    assert prices.list_regions(home) == ("eu-west-1", "us-east-1", "us-west-2")
    for region, price in (("eu-west-1", 7.5), ("us-east-1", 6.0), ("us-west-2", 7.09)):
        rows = targets.hardwares(home.in_region(region)).instances
        row, none = rows["ml.g5.12xlarge"], [each for each in rows.values() if each.sagemaker_usd_per_hour is None]
        assert (row.sagemaker_usd_per_hour, row.price_region) == (price, region)
        assert {each.price_region for each in rows.values()} == {region} and none
        assert price_list.missing_note(none[0]) == f"none is known in {region}"
        assert price_list.price_note(none[0]) is None
    cheaper = targets.hardwares(home.in_region("eu-west-1").at_discount(0.5)).instances["ml.g5.12xlarge"]
    assert cheaper.sagemaker_usd_per_hour == 3.75


def test_prices_of_two_regions_are_not_compared(tmp_path: Path) -> None:
    home = open_home(tmp_path)
    keep(home, refreshed(DAYS[0], "eu-west-1", ml_g5_12xlarge=7.0))
    keep(home, refreshed(DAYS[1], "us-east-1", ml_g5_12xlarge=6.0))
    assert prices.list_changes(home) == []
