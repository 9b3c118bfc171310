"""Preflight results of models, cached in the home until the files change."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from threading import Lock

from pydantic import ValidationError

from backend import files, preflight, sandbox
from backend.catalog.bundled import models
from backend.catalog.bundled.models import Stamp
from backend.domain.errors import DiskFull, InvalidModel
from backend.domain.evaluation.document import Variant
from backend.domain.model.facts import ModelCard, ModelFacts
from backend.domain.model.preflight import Preflight

NOTHING = Preflight()
ANSWERS_CACHED = 64
"""Results cached by one process."""
_one_at_a_time = Lock()
"""A sandbox may need much memory, and concurrent callers mostly ask about the same model."""


def run_preflight(cache: Path, model: ModelFacts) -> Preflight:
    """Run the preflight once, which takes seconds. A bundled model, or one without files here, has an empty result.

    `cache` is the home's. Raises TooDemanding.
    """
    if not isinstance(model, ModelCard) or model.head_of is not None:
        return NOTHING
    config = Path(model.path) / "config.json"
    if sandbox.is_ours(config) or not config.is_file():
        return NOTHING
    with _one_at_a_time:
        return _cached_preflight(model, models.stamp(Path(model.path)), cache / "preflight")


def check(cache: Path, model: ModelFacts) -> Preflight:
    """Run the preflight. Raises InvalidModel if the files are not a sound model, TooDemanding."""
    result = run_preflight(cache, model)
    if result.refusal is not None:
        raise InvalidModel(result.refusal)
    return result


def with_notes(cache: Path, card: ModelCard) -> ModelCard:
    """Return the card with the preflight's sentences as notes. Raises as `check`."""
    return card.model_copy(update={"notes": (*card.notes, *check(cache, card).sentences)})


def check_variants(cache: Path, variants: Iterable[Variant], *, scored: bool) -> None:
    """Check unmodified models: their files must be sound and, if scored, buildable by transformers. Raises as
    `check`."""
    for variant in variants:
        if variant.kind != "model" or variant.model_path is None:
            continue
        result = check(cache, models.folder_card(variant.model_path))
        if scored and result.unbuilt is not None:
            raise InvalidModel(
                f"{variant.name} cannot be scored. {result.unbuilt} Or measure its speed alone, without quality."
            )


def why_no_chat(cache: Path, variants: Iterable[Variant]) -> str | None:
    """Return why one of the variants cannot chat, by its original model; None if all can or it is unknown."""
    for variant in variants:
        folder = variant.original_path or variant.model_path
        if variant.kind == "url" or folder is None or not (Path(folder) / "config.json").is_file():
            continue
        why = run_preflight(cache, models.folder_card(folder)).no_chat
        if why is not None:
            return f"{variant.name}: {why}"
    return None


@lru_cache(maxsize=ANSWERS_CACHED)
def _cached_preflight(card: ModelCard, _stamp: Stamp, folder: Path) -> Preflight:
    cache_file = folder / f"{preflight.cache_key(card)}.json"
    try:
        return Preflight.model_validate_json(cache_file.read_bytes())
    except (OSError, ValidationError):
        pass
    result = preflight.inspect_in_sandbox(card)
    with suppress(OSError, DiskFull):  # it is only kept for the next time
        folder.mkdir(parents=True, exist_ok=True)
        files.write(cache_file, result.model_dump_json())
    return result
