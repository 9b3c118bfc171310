"""The bundled accelerators and instances with their prices, checked against each other. Prices are a snapshot: show its
date."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from backend.catalog.bundled import toml_tables
from backend.domain.errors import InvalidCatalog
from backend.domain.machine.device import Accelerator, Instance
from backend.domain.machine.targets import HardwareTables
from backend.settings import ASSETS

PATH = ASSETS / "catalog" / "instances.toml"


@lru_cache(maxsize=4)
def load(path: Path = PATH) -> HardwareTables:
    """Load accelerators and instances. Raises InvalidCatalog with one sentence that names the row."""
    cards = {row.name: row for row in toml_tables.read(path, "accelerators", Accelerator, "name")}
    instances = {row.name: row for row in toml_tables.read(path, "instances", Instance, "name")}
    sources = toml_tables.document(path).get("sources", {})
    for instance in instances.values():
        if instance.accelerator not in cards:
            raise InvalidCatalog(
                f"{path.name}, row `{instance.name}`: there is no accelerator `{instance.accelerator}`; add its row."
            )
        if instance.sagemaker_usd_per_hour is not None and instance.price_source not in sources:
            raise InvalidCatalog(f"{path.name}, row `{instance.name}`: its price has no source in [sources]; name one.")
    return HardwareTables(cards, instances)


@lru_cache(maxsize=4)
def sources(path: Path = PATH) -> dict[str, str]:
    """Return the description of each source key of the file."""
    return dict(toml_tables.document(path).get("sources", {}))
