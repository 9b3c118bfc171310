"""An import job: downloads a model at the revision that was asked for, checks it, and leaves it for the supervisor to publish."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from backend import settings as configuration
from backend.channel import JobChannel
from backend.domain.errors import DownloadFailed, JobCancelled, NotEnoughDisk
from backend.domain.jobs.jobs import ImportSpec
from backend.worker.progress import ChannelProgress


def run(spec: ImportSpec, channel: JobChannel) -> dict[str, Any]:
    """`model` is the card, `path` where the folder will lie, `staged` where it lies until then.

    Raises UnknownModel, AccessRefused, SourceUnreachable, InvalidModel, DownloadFailed, NotEnoughDisk, JobCancelled. What
    was fetched stays for the next attempt.
    """
    from backend.catalog.cards.card import read_card
    from backend.catalog.remote import sources as remote

    began = time.monotonic()
    models = configuration.load().models
    final = remote.folder(models, spec.source, spec.revision)
    staged = remote.partial(models, spec.source, spec.revision)
    if not final.exists():
        progress = ChannelProgress(channel, 1.0)
        try:
            _gather(spec, staged, progress)
        except JobCancelled:
            raise JobCancelled(
                f"The import was cancelled. What was fetched is kept in {staged} for `jobs resume`: delete it to free the disk."
            ) from None
    card = read_card(final if final.exists() else staged)
    document = card.model_copy(update={"path": str(final)}).model_dump(mode="json")
    seconds = time.monotonic() - began
    return {"model": document, "path": str(final), "staged": str(staged), "bytes": spec.bytes, "seconds": seconds}


def _gather(spec: ImportSpec, staged: Path, progress: ChannelProgress) -> None:
    from backend.catalog.cards import record
    from backend.catalog.cards.card import read_card
    from backend.catalog.remote import selection
    from backend.catalog.remote import sources as remote
    from backend.catalog.remote.transfer import download, present
    from backend.hardware import probe

    progress.phase("ask", f"Asking for {spec.source}", weight=0.01)
    source = remote.find(spec.source, spec.revision if spec.endpoint else None, endpoint=spec.endpoint)
    if source.revision != spec.revision:
        raise DownloadFailed(f"{spec.source} was changed since this import was asked for: import it again.")
    files = selection.wanted(source)
    here = present(staged, files)
    left = sum(files.values()) - here
    free = probe.free_disk(staged)
    if free < left:
        raise NotEnoughDisk(f"{left / 1e9:.2f} GB are still to be fetched and {free / 1e9:.2f} GB of disk are free: free some.")
    kept = f"; {here / 1e6:.1f} MB are here already" if here else ""
    progress.phase("download", f"Downloading {left / 1e6:.1f} MB{kept}", total=left, unit="bytes", weight=0.97)
    download(source, files, staged, progress.advance)
    progress.phase("check", "Reading the card", weight=0.02)
    read_card(staged)
    asked = spec.model_dump(include={"source", "revision", "endpoint", "licence", "accepted"})
    record.write(staged, record.ImportRecord(**asked, files=files))
