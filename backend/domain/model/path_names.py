"""The name of a model by the path of its files."""

from __future__ import annotations

import re
from pathlib import PurePath

HUB_CACHE = re.compile(r"models--(.+)/snapshots/[^/]+")
"""The end of the path of a snapshot in the cache that huggingface_hub keeps."""


def path_name(path: PurePath) -> str:
    """Return the last part of a path; of a snapshot in a hub's cache (models--ORG--NAME/snapshots/REVISION) the model's
    id, ORG/NAME."""
    cached = HUB_CACHE.fullmatch("/".join(path.parts[-3:]))
    return cached[1].replace("--", "/", 1) if cached else path.name
