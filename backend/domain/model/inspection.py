"""The inspection of a model before it is imported, and the licences that a person must accept. Pure."""

from __future__ import annotations

from backend.domain.frozen import Frozen
from backend.domain.model.facts import ModelCard

OPEN_LICENCES = frozenset(
    {
        "0bsd",
        "apache-2.0",
        "artistic-2.0",
        "bsd",
        "bsd-2-clause",
        "bsd-3-clause",
        "bsl-1.0",
        "cc-by-4.0",
        "cc-by-sa-4.0",
        "cc0-1.0",
        "cdla-permissive-2.0",
        "isc",
        "mit",
        "ms-pl",
        "mpl-2.0",
        "ncsa",
        "unlicense",
        "zlib",
    }
)
"""Licences, in the hub's names, that ask no more than naming the authors or sharing alike. Licences with conditions of
use (openrail, llama3, gemma, nc, unknown, other) are not among them."""


class Inspection(Frozen):
    """A model elsewhere, as it was found: its card, and what an import would fetch. `bytes` of all files; 0: not known
    before."""

    card: ModelCard | None
    """The card; None for a package, whose GGUF file is read only after the download."""
    source: str
    revision: str
    endpoint: str | None
    licence: str | None
    gated: bool
    must_accept: bool
    """The licence has to be accepted by hand: it is gated, or not an open one."""
    licence_url: str | None
    files: dict[str, int]
    bytes: int

    @property
    def title(self) -> str:
        return self.card.id if self.card else self.source


def must_accept(licence: str | None, *, gated: bool) -> bool:
    """Tell whether a user must accept terms of a model on a hub: it is gated, or has conditions or no known licence."""
    return gated or (licence or "").lower() not in OPEN_LICENCES
