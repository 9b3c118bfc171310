"""Today's prices of the bundled instances, where AWS publishes them. Knows nothing of the store."""

from __future__ import annotations

import os
from pathlib import Path

from backend.aws import pricing
from backend.aws.s3 import CREDENTIALS
from backend.catalog.bundled import instances
from backend.domain.machine.price_list import PriceList

SAID_BY = (
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


def fetch(region: str | None = None) -> PriceList:
    """Fetch today's prices of the bundled instances. Raises what `aws.pricing.hosting_prices` does."""
    price_list = pricing.hosting_prices(region)
    known = instances.load().instances
    return price_list._replace(prices=tuple(price for price in price_list.prices if price.instance in known))


def missing_credentials() -> str | None:
    """Return a sentence that says what to set, or None if the environment or the usual files have credentials. Nothing
    is asked of the network for this."""
    if any(os.environ.get(name) for name in SAID_BY):
        return None
    named = (
        os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials",
        os.environ.get("AWS_CONFIG_FILE") or "~/.aws/config",
    )
    return None if any(Path(path).expanduser().is_file() for path in named) else CREDENTIALS
