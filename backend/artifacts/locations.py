"""The location of an artifact, and that of new ones. A size is written with its unit: `500GB`, `1.5 TiB`, `2000000`."""

from __future__ import annotations

import re

from backend.artifacts.base import ArtifactLocation
from backend.artifacts.bucket import ARTIFACTS, SCHEME, BucketLocation
from backend.artifacts.cache import Cache
from backend.artifacts.disk import FolderLocation
from backend.domain.errors import RequestError
from backend.settings import Settings

CACHE_BYTES = 50_000_000_000
UNITS: dict[str, int] = {unit: 1000**power for power, unit in enumerate(("", "k", "m", "g", "t", "p"))}
UNITS |= {f"{unit}i": 1024**power for power, unit in enumerate(("", "k", "m", "g", "t", "p")) if power}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*((?:[KMGTP]i?)?)B?", re.IGNORECASE)


def location_for_new(settings: Settings) -> ArtifactLocation:
    """Return the location of new artifacts. Raises RequestError if WHETSTONE_ARTIFACTS names no location."""
    address = settings.artifact_store or ""
    return _bucket(settings, address) if address.startswith(SCHEME) else location_of(settings, "")


def location_of(settings: Settings, address: str) -> ArtifactLocation:
    """Return the location of a stored artifact, whatever the settings say now."""
    if address.startswith(SCHEME):
        return _bucket(settings, address.rpartition(f"/{ARTIFACTS}/")[0])
    return FolderLocation(settings.artifacts, settings.cache / "verified")


def _bucket(settings: Settings, address: str) -> BucketLocation:
    most = size(settings.artifacts_cache, "WHETSTONE_ARTIFACTS_CACHE")
    cache = Cache(settings.cache / "artifacts", CACHE_BYTES if most is None else most)
    return BucketLocation(address, cache, settings.cache / "verified")


def quota(settings: Settings) -> int | None:
    """Return the bytes that artifacts may take, or None for no limit. Raises RequestError if WHETSTONE_ARTIFACTS_QUOTA
    is no size."""
    return size(settings.artifacts_quota, "WHETSTONE_ARTIFACTS_QUOTA")


def size(written: str | None, variable: str) -> int | None:
    """Parse a size in bytes; None if nothing is written. Raises RequestError."""
    if not written:
        return None
    match = _SIZE.fullmatch(written.strip())
    if match is None:
        raise RequestError(f"{variable} is `{written[:40]}`: write a size such as 500GB or 1.5 TiB.")
    return int(float(match[1]) * UNITS[match[2].lower()])
