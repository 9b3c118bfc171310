"""Prices by the AWS Pricing API, against a server of its protocol: pages, regions, what is damaged, refusals."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from backend.aws import pricing
from backend.catalog.bundled import instances
from backend.domain.errors import AccessRefused, NotFound, ReadOnly, RequestError, WhetstoneError
from backend.domain.jobs.demonstration import MARK, Demonstration
from backend.domain.machine import price_list
from backend.domain.recipe.recipe import Recipe
from backend.service import Workspace
from backend.service.machines import prices, targets
from backend.service.models import models
from backend.service.plans import auto_target, cases, estimates
from tests.fakes.running import ask, running
from tests.homes import open_home
from tests.pricing import credentials, no_credentials, product, put

pytestmark = pytest.mark.process

KNOWN = [product("ml.g5.xlarge", "1.5000000000"), product("ml.g5.12xlarge", "7.5000000000")]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with running("pricing.py") as url:
        yield url


@pytest.fixture
def api(address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The server with two instances, and credentials for it."""
    credentials(monkeypatch, tmp_path, address)
    put(address, "products", KNOWN)
    return address


def sentence(caught: pytest.ExceptionInfo[WhetstoneError], *words: str) -> None:
    text = str(caught.value)
    assert "\n" not in text and text.endswith(".") and all(word in text for word in words), text


def test_a_price_says_when_where_and_by_whom(api: str) -> None:
    rows = pricing.hosting_prices("us-east-1")
    assert [(one.instance, one.usd_per_hour, one.region) for one in rows.prices] == [
        ("ml.g5.xlarge", 1.5, "us-east-1"),
        ("ml.g5.12xlarge", 7.5, "us-east-1"),
    ]
    assert rows.prices[0].source == "AWS Pricing API, AmazonSageMaker Hosting, list of 2026-11-18"
    (request,) = ask(f"{api}/-/log")
    assert request["asked"]["Filters"] == [
        {"Type": "TERM_MATCH", "Field": "regionCode", "Value": "us-east-1"},
        {"Type": "TERM_MATCH", "Field": "component", "Value": "Hosting"},
    ]


def test_every_page_is_read_and_only_hosting_by_the_hour_in_that_region_counts(api: str) -> None:
    many = [product(f"ml.c5.{number}xlarge", "0.1") for number in range(250)]
    others = [
        product("ml.g5.xlarge", "9.0", component="Training"),
        product("ml.g5.xlarge", "8.0", region="eu-west-1"),
        product("ml.g5.xlarge", "0.14", unit="GB-Mo"),
    ]
    put(api, "products", [*others, *many, *KNOWN])
    rows = pricing.hosting_prices("us-east-1")
    assert len(rows.prices) == 252 and rows.skipped == ()
    assert {one.instance: one.usd_per_hour for one in rows.prices}["ml.g5.xlarge"] == 1.5
    assert len(ask(f"{api}/-/log")) == 3


@pytest.mark.parametrize(
    ("region", "requested"),
    [
        ("us-west-2", "us-east-1"),
        ("sa-east-1", "us-east-1"),
        ("eu-west-1", "eu-central-1"),
        ("ap-northeast-1", "ap-south-1"),
    ],
)
def test_a_region_is_asked_about_where_the_api_is(api: str, region: str, requested: str) -> None:
    put(api, "products", [product("ml.g5.xlarge", "2.0", region=region)])
    assert [one.region for one in pricing.hosting_prices(region).prices] == [region]
    assert f"/{requested}/pricing/aws4_request" in ask(f"{api}/-/log")[0]["authorization"]


def test_the_regions_of_the_api_are_those_that_botocore_names() -> None:
    import boto3

    session = boto3.Session()
    assert {pricing.api_region(region) for region in session.get_available_regions("sagemaker")} == set(
        session.get_available_regions("pricing")
    )


def test_without_a_region_the_environments_is_asked(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put(api, "products", [product("ml.g5.xlarge", "2.0", region="eu-west-1")])
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert pricing.hosting_prices().region == "eu-west-1"


@pytest.mark.parametrize("region", ["moon-1", "cn-north-1", "us-east-1\n"])
def test_an_unknown_region_is_refused_before_anything_is_asked(api: str, region: str) -> None:
    with pytest.raises(pricing.UnknownRegion) as caught:
        pricing.hosting_prices(region)
    sentence(caught, "the nearest are")
    assert ask(f"{api}/-/log") == []


def test_without_credentials_it_says_what_to_set(api: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert prices.missing_credentials() is None
    no_credentials(monkeypatch, tmp_path)
    monkeypatch.setenv("AWS_ENDPOINT_URL", api)
    with pytest.raises(AccessRefused) as caught:
        pricing.hosting_prices()
    sentence(caught, "AWS_ACCESS_KEY_ID", "AWS_PROFILE")
    assert prices.missing_credentials() is not None and "AWS_ACCESS_KEY_ID" in str(prices.missing_credentials())


def test_a_profile_that_is_none_is_a_sentence(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(AccessRefused) as caught:
        pricing.hosting_prices()
    sentence(caught, "AWS_PROFILE")


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        ("AccessDeniedException", AccessRefused, "pricing:GetProducts"),
        ("UnrecognizedClientException", AccessRefused, "does not accept the credentials"),
        ("ExpiredNextTokenException", pricing.PricesUnavailable, "ExpiredNextTokenException"),
        ("ThrottlingException", pricing.PricesUnavailable, "try again in a minute"),
    ],
)
def test_a_refusal_is_one_sentence(api: str, code: str, kind: type[WhetstoneError], words: str) -> None:
    put(api, "fault", {"code": code, "status": 400, "times": 9})
    with pytest.raises(kind) as caught:
        pricing.hosting_prices()
    sentence(caught, words)


def test_throttled_once_is_asked_again(api: str) -> None:
    put(api, "fault", {"code": "ThrottlingException", "status": 400, "times": 1})
    assert len(pricing.hosting_prices().prices) == 2


def test_a_network_that_is_away_is_one_sentence(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(pricing.PricesUnavailable) as caught:
            pricing.hosting_prices()
    sentence(caught, "does not answer", "check the network")


def damaged(**changes: Any) -> dict[str, Any]:
    return {**product("ml.p5.48xlarge", "60"), **changes}


@pytest.mark.parametrize(
    ("one", "words"),
    [
        ("no JSON", "published form"),
        ("[]", "published form"),
        (damaged(terms={}), "published form"),
        (damaged(terms={"OnDemand": {"a": {"priceDimensions": {"b": None}}}}), "published form"),
        (product("ml.p5.48xlarge", "a lot"), "'a lot', is not a number"),
        (product("ml.p5.48xlarge", "0.0000000000"), "is not above 0"),
        (product("ml.p5.48xlarge", "nan"), "is not above 0"),
        (product("ml.p5.48xlarge", "60", currency="CNY"), "published form"),
        (product("ml.g5.xlarge", "1.6"), "ml.g5.xlarge has two prices, 1.5 and 1.6"),
    ],
)
def test_a_damaged_product_is_left_out_and_told(api: str, one: Any, words: str) -> None:
    put(api, "products", [*KNOWN, one])
    rows = pricing.hosting_prices()
    assert "ml.g5.12xlarge" in {price.instance for price in rows.prices}
    assert "ml.p5.48xlarge" not in {price.instance for price in rows.prices}
    assert len(rows.skipped) == 1 and words in rows.skipped[0]
    assert "ml.g5.xlarge" not in {price.instance for price in rows.prices} or "two prices" not in words


def test_an_answer_without_one_usable_price_is_refused_and_changes_nothing(api: str, home: Workspace) -> None:
    prices.refresh(home)
    put(api, "products", ["no JSON"])
    with pytest.raises(pricing.PricesUnavailable) as caught:
        prices.refresh(home)
    sentence(caught, "no hosting price in us-east-1")
    assert prices.listing(home, instance="ml.g5.xlarge")[0].usd_per_hour == 1.5


def test_refreshed_prices_lie_over_the_snapshot_which_stays_for_the_others(api: str, home: Workspace) -> None:
    before = {row.instance: row for row in prices.listing(home)}
    assert len(before) == 45 and not any(row.refreshed for row in before.values())
    put(api, "products", [*KNOWN, product("ml.unheard.xlarge", "3")])
    done = prices.refresh(home, "us-east-1")
    assert done.prices == 2 and len(done.missing) == 43 and "ml.unheard.xlarge" not in done.missing
    after = {row.instance: row for row in prices.listing(home, discount=0.2)}
    mine = after["ml.g5.12xlarge"]
    assert (mine.usd_per_hour, mine.region, mine.as_of, mine.refreshed) == (7.5, "us-east-1", done.as_of, True)
    assert mine.discounted_usd_per_hour == pytest.approx(6.0)
    assert mine.usd_per_hour_per_gib == pytest.approx(
        6.0 / instances.load().instances["ml.g5.12xlarge"].memory_gib_total
    )
    remaining = after["ml.g5.48xlarge"]
    assert (remaining.usd_per_hour, remaining.source, remaining.refreshed) == (
        before[remaining.instance].usd_per_hour,
        "price-list-us-west-2",
        False,
    )


def test_the_region_that_was_asked_for_last_is_the_one_that_is_shown(api: str, home: Workspace) -> None:
    put(api, "products", [*KNOWN, product("ml.g5.xlarge", "2.2", region="eu-west-1")])
    prices.refresh(home, "us-east-1")
    prices.refresh(home, "eu-west-1")
    shown = {row.instance: row for row in prices.listing(home, family="g5")}
    assert (shown["ml.g5.xlarge"].usd_per_hour, shown["ml.g5.xlarge"].region) == (2.2, "eu-west-1")
    assert not shown["ml.g5.12xlarge"].refreshed, "another region's price is not mixed in"
    prices.refresh(home, "us-east-1")
    assert prices.listing(home, instance="ml.g5.xlarge")[0].usd_per_hour == 1.5


def test_the_planner_uses_and_names_the_refreshed_price(api: str, home: Workspace) -> None:
    model = models.resolve(home, "starter")
    before = estimates.estimate_one(home, cases.resolve(home, model, Recipe(), "ml.g5.12xlarge"))
    assert before.price_per_hour == 7.09 and "bundled snapshot" in str(before.price_note)
    prices.refresh(home)
    after = estimates.estimate_one(home, cases.resolve(home, model, Recipe(), "ml.g5.12xlarge"))
    assert after.price_per_hour == 7.5
    assert str(after.price_note).startswith("on demand, us-east-1, as of 20") and "AWS Pricing API" in str(
        after.price_note
    )
    put(api, "products", [product("ml.p4d.24xlarge", "0.01")])
    prices.refresh(home)
    assert auto_target.choose_target(home, model, Recipe()).winner is not None
    assert cases.resolve(home, model, Recipe(), "ml.p4d.24xlarge").works
    assert targets.find(home, "ml.p4d.24xlarge").price_per_hour == 0.01


def test_no_note_without_a_price() -> None:
    assert (
        price_list.price_note(None) is None
        and price_list.price_note(instances.load().instances["ml.p5.4xlarge"]) is None
    )


@pytest.mark.parametrize("discount", [-0.1, 1.0, 20, float("nan")])
def test_a_discount_that_is_none_is_refused(home: Workspace, discount: float) -> None:
    with pytest.raises(RequestError, match="share from 0"):
        prices.listing(home, discount=discount)


def test_an_unknown_instance_or_family_names_the_nearest(home: Workspace) -> None:
    with pytest.raises(NotFound, match=r"no instance `ml\.g5\.13xlarge`.*`ml\.g5\.12xlarge`"):
        prices.listing(home, instance="ml.g5.13xlarge")
    with pytest.raises(NotFound, match=r"no instance family `g55`.*`g5`"):
        prices.listing(home, family="g55")


def test_a_demonstration_keeps_its_prices(api: str, home: Workspace) -> None:
    mark = Demonstration(hardware={"cpu": "c", "cores": 2}, versions={}, measured_at="2026-11-21T00:00:00Z")
    (home.settings.home / MARK).write_text(mark.model_dump_json())
    shown = open_home(home.settings.home)
    with pytest.raises(ReadOnly):
        prices.refresh(shown)
    assert ask(f"{api}/-/log") == [] and len(prices.listing(shown)) == 45
