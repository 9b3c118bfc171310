"""Verifies the artifacts that a job serves before anything reads them, and fetches those in a bucket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from backend.artifacts import locations
from backend.domain.evaluation.document import Variant
from backend.domain.jobs.artifact import artifact_of
from backend.domain.jobs.progress import Progress
from backend.settings import Settings


@contextmanager
def local_artifacts(
    variants: Sequence[Variant], settings: Settings, progress: Progress
) -> Iterator[tuple[Variant, ...]]:
    """Yield the variants with their artifacts' paths on this machine, which exist until the block ends.

    Raises ArtifactCorrupt, and what `artifacts.base.Place.use` does.
    """
    with ExitStack() as stack:
        yield tuple(_local_artifact(variant, settings, progress, stack) for variant in variants)


def _local_artifact(variant: Variant, settings: Settings, progress: Progress, stack: ExitStack) -> Variant:
    artifact = artifact_of(variant)
    if artifact is None or variant.model_path is None:
        return variant
    address = variant.stored_at or str(Path(variant.model_path).parent)
    location = locations.location_of(settings, address)
    missing = location.missing(address)
    if missing:
        message = f"Fetching {variant.name} ({missing / 1e6:.1f} MB) from {location.address}"
        progress.phase("fetch", message, total=missing, unit="bytes")
    folder = stack.enter_context(location.use(address, artifact, lambda done, total: progress.advance(done)))
    return _with_folder(variant, folder)


def _with_folder(variant: Variant, folder: Path) -> Variant:
    speculation = variant.speculation
    if speculation is not None and speculation.draft_path is not None:
        speculation = speculation.model_copy(update={"draft_path": str(folder / "draft")})
    cache = str(folder / "compile_cache") if variant.compile_cache else None
    file = None
    if variant.gguf is not None and variant.model_path is not None:
        file = str(folder / Path(variant.gguf).relative_to(Path(variant.model_path).parent))
    moved = {"model_path": str(folder / "model"), "speculation": speculation, "compile_cache": cache, "gguf": file}
    return variant.model_copy(update=moved)
