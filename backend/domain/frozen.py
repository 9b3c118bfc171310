"""The one base of every document and view: its fields are all known, never change, and hold finite numbers only."""

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
    """sha256 as hex over the canonical JSON: whatever the order of its fields, the same document has the same one."""
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def finite(value: Any) -> Any:
    """Plain data of our own with None where a figure came to NaN or infinity: it is not known, and JSON has no word for
    it."""
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
