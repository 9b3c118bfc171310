"""Workloads: bundled by name, uploaded into the home, or a JSONL file. A file is read once for as long as it stays the same."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from backend.catalog import token_lengths as tokenizers
from backend.domain import workload
from backend.domain.errors import InvalidWorkload, WhetstoneError
from backend.domain.order_statistics import percentile
from backend.domain.workload import Prompt, Workload
from backend.service import paths, variants
from backend.service.workspace import Workspace
from backend.settings import ASSETS

MAX_BYTES = 200_000_000
MAX_SHOWN = 200
PREVIEWED = 20
COUNTED_PROMPTS, COUNTED_CHARACTERS = 500, 1_000_000
"""Most prompts whose tokens are counted for a preview, and most text of them."""
_FOLDER = ASSETS / "workloads"


class WorkloadFacts(BaseModel):
    """What a screen says of a workload, without all its prompts. `first`: to be shown; `sample`: to count tokens of."""

    model_config = ConfigDict(frozen=True)

    name: str
    sha256: str
    prompts: int
    characters_p50: int
    characters_max: int
    first: tuple[Prompt, ...]
    sample: tuple[str, ...]


class TokenLengths(BaseModel):
    """Tokens of the first prompts by the tokenizer of `model`; `counted` of them were counted."""

    model_config = ConfigDict(frozen=True)

    model: str
    counted: int
    p50: int
    largest: int
    first: tuple[int, ...]


def names() -> list[str]:
    return sorted(path.stem for path in _FOLDER.glob("*.jsonl"))


def path(source: str) -> Path:
    """The file a name or path means. Raises InvalidWorkload."""
    bundled = _FOLDER / f"{source}.jsonl" if source in names() else None
    found = bundled or paths.file(source)
    if found is None:
        raise InvalidWorkload(f"There is no workload `{source[:MAX_SHOWN]}`: give a JSONL file, or one of {', '.join(names())}.")
    return found


def read(source: str) -> Workload:
    """Raises InvalidWorkload with the first thing that is wrong."""
    return _read(path(source))


def _read(file: Path) -> Workload:
    if file.stat().st_size > MAX_BYTES:
        raise InvalidWorkload(f"{file.name} has more than {MAX_BYTES // 1_000_000} MB: take a sample of it.")
    try:
        content = file.read_bytes()
    except OSError as error:
        raise InvalidWorkload(f"{file.name} cannot be read ({error.strerror}): check its permissions.") from None
    return workload.parse(file.stem, content)


def facts(source: str) -> WorkloadFacts:
    """What is in it, every line checked. Raises InvalidWorkload with the first thing that is wrong.

    Kept for as long as size and time of the file stay the same: a page asks again at every click.
    """
    file = path(source)
    status = file.stat()
    return _facts(file, status.st_size, status.st_mtime_ns)


@lru_cache(maxsize=32)
def _facts(file: Path, _size: int, _changed: int) -> WorkloadFacts:
    found = _read(file)
    about = found.about()
    return WorkloadFacts(
        name=found.name, sha256=found.sha256, prompts=len(found.prompts), characters_p50=about["prompt_characters_p50"],
        characters_max=about["prompt_characters_max"], first=found.prompts[:PREVIEWED], sample=_sample(found),
    )  # fmt: skip


def _sample(found: Workload) -> tuple[str, ...]:
    taken: list[str] = []
    characters = 0
    for prompt in found.prompts[:COUNTED_PROMPTS]:
        characters += len(prompt.prompt)
        if taken and characters > COUNTED_CHARACTERS:
            break
        taken.append(prompt.prompt)
    return tuple(taken)


def token_lengths(workspace: Workspace, found: WorkloadFacts, source: str) -> TokenLengths | None:
    """The lengths in tokens of the variant `source`; None where its tokenizer is not here, as with a URL."""
    try:
        variant = variants.resolve(workspace, source)
    except WhetstoneError:
        return None
    if variant.model_path is None:
        return None
    file = Path(variant.model_path) / tokenizers.TOKENIZER
    changed = file.stat().st_mtime_ns if file.is_file() else 0
    counted = _lengths(variant.model_path, changed, found.sha256, found.sample)
    if counted is None:
        return None
    return TokenLengths(
        model=variant.name, counted=len(counted), p50=round(percentile(sorted(counted), 50)), largest=max(counted),
        first=counted[:PREVIEWED],
    )  # fmt: skip


@lru_cache(maxsize=32)
def _lengths(folder: str, _changed: int, _sha256: str, texts: tuple[str, ...]) -> tuple[int, ...] | None:
    found = tokenizers.lengths(Path(folder), texts)
    return None if found is None else tuple(found)


def saved(workspace: Workspace) -> dict[str, Path]:
    """What was uploaded into this home: name -> file."""
    return {file.stem: file for file in sorted((workspace.settings.home / "workloads").glob("*.jsonl"))}


def save(workspace: Workspace, name: str, content: bytes) -> str:
    """Keep an uploaded workload in the home under its name and the start of its hash; the name it can be asked for by.

    The same content twice is one file. Raises InvalidWorkload with the first thing that is wrong; then nothing is kept.
    Raises ReadOnly in a demonstration.
    """
    workspace.check_writable()
    if len(content) > MAX_BYTES:
        raise InvalidWorkload(f"{name} has more than {MAX_BYTES // 1_000_000} MB: take a sample of it.")
    workload.parse(Path(name).stem, content)
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", Path(name).stem).strip("-")[:60] or "workload"
    kept = f"{plain}-{hashlib.sha256(content).hexdigest()[:8]}"
    folder = workspace.settings.home / "workloads"
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f".{kept}.part"
    aside.write_bytes(content)
    aside.replace(folder / f"{kept}.jsonl")
    return kept
