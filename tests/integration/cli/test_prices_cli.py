"""`whetstone prices` as a user meets it: the snapshot labelled so, a refresh, and what to set without credentials."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fakes.running import running
from tests.integration.cli.calling import one_sentence, whetstone
from tests.pricing import credentials, no_credentials, product, put


def test_prices_are_listed_refreshed_and_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    no_credentials(monkeypatch, tmp_path)
    home = tmp_path / "home"
    assert "AWS_ACCESS_KEY_ID" in one_sentence(whetstone(home, "prices", "refresh"))
    listed = whetstone(home, "prices", "list", "--family", "g5", "--discount", "0.2")
    assert "snapshot: price-list-us-west-2" in listed.stdout and "5.6720" in listed.stdout
    with running("pricing.py") as url:
        credentials(monkeypatch, tmp_path, url)
        put(
            url,
            "products",
            [product("ml.g5.12xlarge", "8.0", region="eu-west-1"), product("ml.g5.xlarge", "x", region="eu-west-1")],
        )
        refreshed = whetstone(home, "prices", "refresh", "--region", "eu-west-1")
    assert refreshed.returncode == 0 and "1 prices of eu-west-1" in refreshed.stdout
    assert "Left out: the price of ml.g5.xlarge, 'x', is not a number." in refreshed.stdout
    (row,) = json.loads(whetstone(home, "prices", "list", "--instance", "ml.g5.12xlarge", "--json").stdout)
    assert (row["usd_per_hour"], row["region"], row["refreshed"]) == (8.0, "eu-west-1", True)
    assert "AWS Pricing API" in row["source"] and row["as_of"].startswith("20")
