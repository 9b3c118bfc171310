"""Short names of models and variants: what screens, charts and tables show in place of a path, an address or a
revision."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from backend.domain.model.path_names import path_name

REVISION = re.compile(r"@[0-9a-f]{7,64}$")
"""The revision behind the name of an imported model."""
ENDPOINT = re.compile(r"sagemaker:(?://[^/]+/)?(?P<name>[^@#/]+)")
EVALUATE = re.compile(r"(?:Demo: e|E)valuate (?P<names>.+?)(?P<end>: [\d,]+ more blocks?)?")
"""The title that an evaluation gets: its variants, the baseline first, and what was added to an earlier one."""
PATHS = ("/", "~", "./", "../", "s3://")
"""Beginnings of a path or a prefix; all else is a name already."""


def short_name(source: str) -> str:
    """Return the name of a source: the model and the host of an address, the name of a SageMaker endpoint, the last
    part of a path; any other name without its revision."""
    if source.startswith(("http://", "https://")):
        return _address_name(source)
    if endpoint := ENDPOINT.match(source):
        return endpoint["name"]
    if source.startswith(PATHS) and (name := path_name(PurePosixPath(source))):
        return REVISION.sub("", name)
    return REVISION.sub("", source)


def recorded_names(model_id: str) -> list[str]:
    """Return the names that a model has as a variant of evaluations: its short name, and in older ones its whole id."""
    return list(dict.fromkeys([short_name(model_id), model_id]))


def _address_name(source: str) -> str:
    """Return `MODEL at HOST:PORT`, or `HOST:PORT` where no model is named; the path only if it is not just /v1."""
    try:
        parts = urlsplit(source)
    except ValueError:  # an address that is none: it is shown as it was typed
        return source
    host = parts.netloc.rpartition("@")[2] + parts.path.rstrip("/").removesuffix("/v1")
    return f"{short_name(unquote(parts.fragment))} at {host}" if parts.fragment else host


def distinct_labels(names: Mapping[str, str]) -> dict[str, str]:
    """Return a label for each source (source -> name): its name, with the folder around it where two share a name, and
    with the whole source where that is not enough."""
    shared = Counter(names.values())
    labels = {
        source: f"{name} (in {PurePosixPath(source).parent.name})"
        if shared[name] > 1 and source.startswith("/")
        else name
        for source, name in names.items()
    }
    shared = Counter(labels.values())
    return {source: f"{names[source]} ({source})" if shared[label] > 1 else label for source, label in labels.items()}


def evaluation_name(title: str) -> str:
    """Return a short name of an evaluation: `starter vs w8a8`, `starter vs 3 variants`; a title that a person chose as
    it is."""
    listed = EVALUATE.fullmatch(title)
    if listed is None:
        return title
    baseline, *others = (short_name(name) for name in listed["names"].split(", "))
    compared = f"{len(others)} variants" if len(others) > 1 else "".join(others)
    return f"{baseline}{f' vs {compared}' if others else ''}{listed['end'] or ''}"
