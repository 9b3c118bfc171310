"""What price tests share: the fake Pricing API, its products in the published form, credentials for it."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

SOURCES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_PROFILE",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing that boto3 could find, on any machine."""
    for name in SOURCES:
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str) -> None:
    no_credentials(monkeypatch, tmp_path)
    for name, value in {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_ENDPOINT_URL": url}.items():
        monkeypatch.setenv(name, value)


def put(url: str, what: str, document: Any) -> None:
    body = json.dumps(document).encode()
    urllib.request.urlopen(urllib.request.Request(f"{url}/-/{what}", data=body, method="PUT"), timeout=60).close()


def product(
    instance: str,
    usd: str,
    *,
    region: str = "us-east-1",
    component: str = "Hosting",
    unit: str = "Hrs",
    currency: str = "USD",
) -> dict[str, Any]:
    """As the example of GetProducts in botocore's service model has it, with SageMaker's attributes."""
    sku = f"SKU{abs(hash((instance, region, component))):x}"[:16].upper()
    offer, rate = f"{sku}.JRTCKXETXF", f"{sku}.JRTCKXETXF.6YS6EN2CT7"
    attributes = {
        "servicecode": "AmazonSageMaker",
        "servicename": "Amazon SageMaker",
        "instanceName": instance,
        "instanceType": f"{instance}-{component}",
        "component": component,
        "regionCode": region,
        "locationType": "AWS Region",
        "usagetype": f"USE1-Host:{instance}",
        "operation": "RunInstance",
    }
    dimension = {
        "unit": unit,
        "endRange": "Inf",
        "beginRange": "0",
        "rateCode": rate,
        "appliesTo": [],
        "pricePerUnit": {currency: usd},
        "description": f"${usd} per Hosting {instance} hour",
    }
    return {
        "product": {"productFamily": "ML Instance", "attributes": attributes, "sku": sku},
        "serviceCode": "AmazonSageMaker",
        "terms": {
            "OnDemand": {
                offer: {
                    "priceDimensions": {rate: dimension},
                    "sku": sku,
                    "effectiveDate": "2026-11-01T00:00:00Z",
                    "offerTermCode": "JRTCKXETXF",
                    "termAttributes": {},
                }
            }
        },
        "version": "20261118000000",
        "publicationDate": "2026-11-18T00:00:00Z",
    }
