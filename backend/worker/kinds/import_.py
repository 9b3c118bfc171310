"""Runs an import job: downloads a model at the requested revision, checks it, and leaves it to the supervisor."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend import files, preflight
from backend import settings as configuration
from backend.catalog.remote import packages
from backend.channel import JobChannel
from backend.domain.errors import DownloadFailed, InvalidModel, JobCancelled, NotEnoughDisk
from backend.domain.jobs.jobs import ImportSpec
from backend.domain.model.facts import QuantizedBefore
from backend.worker.progress import ChannelProgress
from backend.worker.resources import PeakMemory

if TYPE_CHECKING:
    from backend.catalog.cards.gguf import Model as GgufModel

SHARED = "Another import fetches the same files: this one waits for it, and takes what it brings."


def run(spec: ImportSpec, channel: JobChannel, memory: PeakMemory) -> dict[str, Any]:
    """Fetch or convert the model into a staging folder and return its card.

    In the result `model` is the card, `path` where the folder will be, and `staged` where it is until then.
    Raises UnknownModel, AccessRefused, SourceUnreachable, InvalidModel, DownloadFailed, NotEnoughDisk, JobCancelled.
    What was fetched stays for the next attempt.
    """
    from backend.catalog.cards.card import read_card
    from backend.catalog.remote import sources as remote

    # 1. Name the model's folder, and the one it is fetched into.
    began = time.monotonic()
    settings = configuration.load()
    models = settings.models
    final = remote.folder(models, spec.source, spec.revision)
    staged = remote.partial(models, spec.source, spec.revision)
    progress = ChannelProgress(channel, 1.0)

    # 2. Fetch or convert; an import of the same model waits for the one that runs.
    with files.exclusive(settings.cache / "imports" / f"{staged.name}.lock", lambda: progress.note(SHARED)):
        if not final.exists():
            fetch = _convert if remote.is_converted(spec.source) else _download
            try:
                fetch(spec, staged, progress)
            except JobCancelled:
                raise JobCancelled(
                    f"The import was cancelled. What was fetched is kept in {staged} for `jobs resume`: delete it to "
                    "free the disk."
                ) from None

    # 3. Check the files before the studio lists them.
    card = read_card(final if final.exists() else staged, as_imported=True)
    inspection = preflight.inspect_in_sandbox(card)
    if inspection.refusal is not None:
        raise InvalidModel(f"{spec.source} was fetched and is not taken. {inspection.refusal}")
    changes = {"path": str(final), "notes": (*card.notes, *inspection.sentences)}
    document = card.model_copy(update=changes).model_dump(mode="json")
    seconds = time.monotonic() - began
    return {"model": document, "path": str(final), "staged": str(staged), "bytes": spec.bytes, "seconds": seconds}


def _download(spec: ImportSpec, staged: Path, progress: ChannelProgress) -> None:
    """Download the model's files into `staged`, as far as they are not there, and write where they came from."""
    from backend.catalog.cards import import_record
    from backend.catalog.cards.card import read_card
    from backend.catalog.remote import selection
    from backend.catalog.remote import sources as remote
    from backend.hardware import probe
    from backend.transfer import download, present

    # 1. Ask for the revision that the person accepted.
    progress.phase("ask", f"Asking for {spec.source}", weight=0.01)
    source = remote.find(spec.source, spec.revision if spec.endpoint else None, endpoint=spec.endpoint)
    if source.revision != spec.revision:
        raise DownloadFailed(f"{spec.source} has changed since this import was requested: import it again.")

    # 2. Check that the files which are still to be fetched fit on the disk.
    sizes = selection.files_to_fetch(source)
    here = present(staged, sizes)
    left = sum(sizes.values()) - here
    free = probe.free_disk(staged)
    if free < left:
        raise NotEnoughDisk(
            f"{left / 1e9:.2f} GB are still to be fetched and {free / 1e9:.2f} GB of disk are free: free some."
        )

    # 3. Download them, and check that they are a model.
    resumed = f"; {here / 1e6:.1f} MB are here already" if here else ""
    progress.phase("download", f"Downloading {left / 1e6:.1f} MB{resumed}", total=left, unit="bytes", weight=0.97)
    download(source, sizes, staged, progress.advance)
    progress.phase("check", "Reading the card", weight=0.02)
    read_card(staged)
    import_record.write(staged, import_record.ImportRecord(**_request_fields(spec), files=sizes))


def _request_fields(spec: ImportSpec) -> dict[str, Any]:
    return spec.model_dump(include={"source", "revision", "endpoint", "licence", "accepted", "name"})


def _convert(spec: ImportSpec, staged: Path, progress: ChannelProgress) -> None:
    """Make a model in 16 bits from a GGUF file; a package's wheel stays in `staged` for the next attempt until then."""
    from backend.catalog.cards import gguf as heads
    from backend.catalog.cards import import_record
    from backend.catalog.cards.card import read_card
    from backend.engines.gguf import convert
    from backend.hardware import probe

    # 1. Find the file, and check that it is the one that the person accepted.
    work = staged / "work"
    work.mkdir(parents=True, exist_ok=True)
    source = _fetch_package(spec, work, progress) if packages.is_package(spec.source) else Path(spec.source)
    model = heads.read_model(source)
    if source.parent != work and model.sha256 != spec.revision:
        raise DownloadFailed(f"{source.name} has changed since this import was requested: import it again.")
    # The file itself stays too, since llama.cpp serves it as it came.
    copied = 0 if source.parent == work else model.bytes
    needed = 2 * model.parameters + copied
    if needed > probe.free_disk(staged):
        raise NotEnoughDisk(f"The 16-bit weights and the file itself need {needed / 1e9:.2f} GB of disk: free some.")

    # 2. Convert the weights, and compare the result with the file's own tensors.
    before = model.quantized_before
    title = f"Converting {source.name} ({before.format if before else '16 bits'}) to bfloat16, and checking the result"
    progress.phase("convert", title, weight=0.5)
    apart = convert.convert([part.path for part in model.parts], staged, model.conversion, probe.free_memory())
    progress.note(f"Every layer was computed from the file's own tensors too: they differ by at most {apart:.1e}.")

    # 3. Write the files beside the weights: README, licence, and the record of the import.
    progress.phase("check", "Reading the card", weight=0.02)
    name = spec.name or heads.name_of(source)
    licence = spec.licence or model.licence
    files.write(staged / "README.md", _readme(spec, source.name, licence, before))
    if (work / "LICENSE").is_file():
        (work / "LICENSE").replace(staged / "LICENSE")
    _keep_original(model, staged / heads.ORIGINAL, moved=source.parent == work)
    shutil.rmtree(work)
    written = [path for path in sorted(staged.rglob("*")) if path.is_file()]
    sizes = {path.relative_to(staged).as_posix(): path.stat().st_size for path in written}
    known = _request_fields(spec) | {"name": name, "licence": licence}
    import_record.write(staged, import_record.ImportRecord(**known, quantized_before=before, files=sizes))
    read_card(staged)


def _keep_original(model: GgufModel, folder: Path, *, moved: bool) -> None:
    """Put the GGUF file with all its parts into the folder: a download is moved, a person's own file copied."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for part in model.parts:
        if moved:
            part.path.replace(folder / part.path.name)
        else:
            shutil.copyfile(part.path, folder / part.path.name)


def _fetch_package(spec: ImportSpec, work: Path, progress: ChannelProgress) -> Path:
    """Download a package, unpack it in `work` and return its GGUF file."""
    package = packages.Package(spec.source.removeprefix(packages.SCHEME), spec.revision, spec.licence)
    progress.phase("download", f"Downloading {package.requirement} from the package index", unit="bytes", weight=0.47)
    return packages.unpack(packages.download(package, work, lambda size: None), work)


def _readme(spec: ImportSpec, file: str, licence: str | None, before: QuantizedBefore | None) -> str:
    """Return the text of the model's README: its licence, which other programs read there, and its origin."""
    head = f"---\nlicense: {licence.lower()}\n---\n" if licence else ""
    origin = spec.source if packages.is_package(spec.source) else file
    return f"{head}Converted by Whetstone from {file} of {origin}. {before.sentence if before else ''}".rstrip() + "\n"
