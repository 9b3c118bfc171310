"""Published on-demand prices of SageMaker hosting instances, by the AWS Pricing API. Failures come back as sentences.

An answer is a page of products, each one JSON document as text (botocore, pricing/2017-10-15, GetProducts):
`product.attributes` says which instance and what for, `terms.OnDemand` what an hour costs. Credentials are found by
boto3 and kept nowhere. Knows nothing of the bundled snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

from backend.aws.s3 import BAD_KEYS, CONNECT_SECONDS, CREDENTIALS, READ_SECONDS
from backend.domain.errors import AccessRefused, RequestError, WhetstoneError, WorkError
from backend.domain.machine.price_list import InstancePrice, PriceList
from backend.domain.similar_names import nearest

SERVICE, COMPONENT = "AmazonSageMaker", "Hosting"
"""The component of SageMaker that serves; training and notebooks have other prices."""
HOURS = frozenset({"Hrs", "Hours"})
MOST_PAGES = 200
DEFAULT_REGION = "us-east-1"
BUSY = frozenset(
    {"ThrottlingException", "TooManyRequestsException", "InternalErrorException", "ServiceUnavailable", "503", "500"}
)
REFUSED = frozenset({"AccessDeniedException", "AccessDenied", "UnauthorizedOperation", "OptInRequired"})
UNKNOWN_KEYS = BAD_KEYS | {
    "UnrecognizedClientException",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "ExpiredTokenException",
}


class PricesUnavailable(WorkError):
    """The AWS Pricing API gave no prices; the prices there are stay. Try again in a minute."""


class UnknownRegion(RequestError):
    """There is no such AWS region with SageMaker; give one such as us-east-1."""


class _Product(NamedTuple):
    instance: str
    usd_per_hour: float
    published: str


def hosting_prices(region: str | None = None) -> PriceList:
    """Every instance's hosting price in the region; None: the region of the environment, else us-east-1.

    Raises UnknownRegion, AccessRefused (no credentials, or they may not), PricesUnavailable (away, busy, or nothing
    usable).
    """
    with _explained():
        client, region = _client(region)
        texts = list(_texts(client, region))
    products, skipped = _products(texts)
    if not products:
        why = f"; {skipped[0]}" if skipped else ""
        raise PricesUnavailable(
            f"The AWS Pricing API names no hosting price in {region}{why}: the prices there are stay."
        )
    now = datetime.now(UTC)
    prices = tuple(_price(product, region, now) for product in products)
    return PriceList(region, prices, tuple(skipped))


def _price(product: _Product, region: str, now: datetime) -> InstancePrice:
    published = f", list of {product.published}" if product.published else ""
    return InstancePrice(
        instance=product.instance,
        region=region,
        usd_per_hour=product.usd_per_hour,
        as_of=now,
        source=f"AWS Pricing API, {SERVICE} {COMPONENT}{published}",
    )


def _client(region: str | None) -> tuple[Any, str]:
    from boto3 import Session
    from botocore.config import Config

    session = Session()
    chosen = region or session.region_name or DEFAULT_REGION
    known = session.get_available_regions("sagemaker")
    if chosen not in known:
        near = ", ".join(nearest(chosen, ["us-east-1", *known]))
        raise UnknownRegion(
            f"There is no AWS region {chosen[:40]!r} with SageMaker prices in USD: the nearest are {near}."
        )
    retries = {"max_attempts": 3, "mode": "standard"}
    config = Config(connect_timeout=CONNECT_SECONDS, read_timeout=READ_SECONDS, retries=retries)
    return session.client("pricing", region_name=api_region(chosen), config=config), chosen


def api_region(region: str) -> str:
    """The Pricing API answers for every region, but only in three (botocore, endpoints.json: api.pricing): the
    nearest."""
    if region.startswith("ap-"):
        return "ap-south-1"
    return "eu-central-1" if region.startswith(("eu-", "af-", "me-", "il-")) else "us-east-1"


def _texts(client: Any, region: str) -> Iterator[object]:
    query = {"regionCode": region, "component": COMPONENT}
    filters = [{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in query.items()]
    pages = client.get_paginator("get_products").paginate(ServiceCode=SERVICE, Filters=filters, FormatVersion="aws_v1")
    for number, page in enumerate(pages):
        if number == MOST_PAGES:
            raise PricesUnavailable(
                f"The AWS Pricing API's answer has more than {MOST_PAGES} pages: the prices there are stay."
            )
        yield from page.get("PriceList", [])


def _products(texts: list[object]) -> tuple[list[_Product], list[str]]:
    """Return one product per instance type. Damaged rows, and those with two prices, are left out and reported."""
    products: dict[str, _Product] = {}
    skipped: list[str] = []
    twice: set[str] = set()
    for text in texts:
        try:
            product = parse(text)
        except ValueError as error:
            skipped.append(str(error))
            continue
        if product is None:
            continue
        # Of two prices, nobody knows which is right: leave the instance out.
        before = products.setdefault(product.instance, product)
        if before.usd_per_hour != product.usd_per_hour and product.instance not in twice:
            twice.add(product.instance)
            skipped.append(
                f"{product.instance} has two prices, {before.usd_per_hour:g} and {product.usd_per_hour:g} USD per hour"
            )
    return [product for name, product in products.items() if name not in twice], skipped


def parse(text: object) -> _Product | None:
    """The price of one product; None for what is no hosting instance by the hour. Raises ValueError with a sentence's
    words."""
    try:
        document: Any = json.loads(str(text))
        attributes = document["product"]["attributes"]
        name = attributes.get("instanceName") or str(attributes.get("instanceType", "")).removesuffix(f"-{COMPONENT}")
        dimensions = [
            dimension
            for offer in document["terms"]["OnDemand"].values()
            for dimension in offer["priceDimensions"].values()
        ]
        prices = {str(one["pricePerUnit"]["USD"]) for one in dimensions if one.get("unit") in HOURS}
        published = str(document.get("publicationDate") or "")[:10]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError("a product was not in the published form") from None
    if not name.startswith("ml.") or attributes.get("component", COMPONENT) != COMPONENT or not prices:
        return None
    return _Product(name, _usd(name, prices), published)


def _usd(name: str, prices: set[str]) -> float:
    if len(prices) > 1:
        raise ValueError(f"{name} has {len(prices)} prices per hour")
    (text,) = prices
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"the price of {name}, {text[:40]!r}, is not a number") from None
    if not 0 < value < float("inf"):
        raise ValueError(f"the price of {name}, {text[:40]!r}, is not above 0")
    return value


@contextmanager
def _explained() -> Iterator[None]:
    from botocore import exceptions

    try:
        yield
    except exceptions.ClientError as error:
        raise _sentence(str(error.response.get("Error", {}).get("Code", ""))) from None
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.CredentialRetrievalError):
        raise AccessRefused(f"There are no AWS credentials to ask for prices with: {CREDENTIALS}.") from None
    except exceptions.ProfileNotFound:
        raise AccessRefused("AWS_PROFILE names a profile that does not exist: correct or unset it.") from None
    except (
        exceptions.HTTPClientError,
        exceptions.ConnectionError,
    ) as error:  # no connection, a broken one, and one that takes too long
        where = error.kwargs.get("endpoint_url", "the AWS Pricing API")
        raise PricesUnavailable(f"{where} does not answer: check the network; the prices there are stay.") from None
    except (exceptions.BotoCoreError, ValueError) as error:
        raise PricesUnavailable(f"The AWS Pricing API cannot be asked ({error}): check the AWS settings.") from None


def _sentence(code: str) -> WhetstoneError:
    if code in REFUSED:
        return AccessRefused("AWS refuses to tell you prices: the credentials in use need pricing:GetProducts.")
    if code in UNKNOWN_KEYS:
        return AccessRefused(f"AWS does not accept the credentials in use ({code}): {CREDENTIALS}.")
    if code in BUSY:
        return PricesUnavailable(
            f"The AWS Pricing API is busy ({code}): try again in a minute; the prices there are stay."
        )
    return PricesUnavailable(f"The AWS Pricing API answered {code or 'with an error'}: the prices there are stay.")
