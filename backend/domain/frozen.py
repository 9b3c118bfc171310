"""The base of every document and view: all fields are known, never change, and hold finite numbers only."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict


class Frozen(BaseModel):
    """A frozen model that refuses unknown fields, and NaN and infinity, which JSON cannot hold."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())


def digest(document: Any) -> str:
    """Return the sha256 in hex over the canonical JSON, which does not depend on the order of fields."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def finite(value: Any) -> Any:
    """Return plain data with None in place of NaN and infinity, which JSON cannot hold."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case dict():
            return {name: finite(item) for name, item in value.items()}
        case list() | tuple():
            return [finite(item) for item in value]
        case _:
            return value


Facts = Annotated[dict[str, Any], BeforeValidator(finite)]
"""Facts of a document whose names are not known here, such as those of a machine."""
