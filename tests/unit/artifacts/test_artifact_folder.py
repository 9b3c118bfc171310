"""Artifacts on disk: every byte is what the id was made of, each file hashed once, nothing outside the folder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from backend.artifacts import artifact_folder
from backend.channel import Channel, JobChannel
from backend.domain.errors import ArtifactCorrupt
from backend.domain.evaluation.document import EvaluateOptions, Variant
from backend.domain.jobs.artifact import ArtifactFile, Manifest
from backend.domain.jobs.jobs import EvaluateSpec, ServeSpec
from backend.domain.jobs.progress import NoProgress
from backend.domain.recipe.recipe import ORIGINAL
from backend.hardware import engine_status
from backend.service.models import models
from backend.settings import Settings
from backend.worker.kinds import evaluate, serve
from backend.worker.measuring.artifact_copies import local_artifacts
from backend.worker.resources import PeakMemory
from tests.homes import open_home


@pytest.fixture
def stored_artifact(tmp_path: Path) -> tuple[Path, Manifest]:
    """A folder with its manifest, as a job leaves it."""
    folder = tmp_path / "artifact"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "model.safetensors").write_bytes(bytes(range(256)) * 64)
    (folder / "model" / "config.json").write_text("{}")
    parent = models.resolve(open_home(tmp_path / "home"), "starter")
    manifest = Manifest(
        job="j-1",
        parent=parent,
        recipe=ORIGINAL,
        recipe_hash=ORIGINAL.hash,
        files=artifact_folder.describe(folder),
        bytes_before=1,
        bytes_after=1,
    )
    artifact_folder.write_manifest(folder, manifest)
    return folder, manifest


def flip(path: Path, *, keep_time: bool = False) -> None:
    """One bit, as a disk does."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    if keep_time:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_flipped_bit_is_found_before_anything_is_served(
    stored_artifact: tuple[Path, Manifest], tmp_path: Path
) -> None:
    folder, manifest = stored_artifact
    settings = Settings(home=tmp_path / "home")
    variant = Variant(name="x", source=manifest.id, kind="artifact", model_path=str(folder / "model"))
    with local_artifacts([variant], settings, NoProgress()):
        pass
    flip(folder / "model" / "model.safetensors")
    wrong = r"model/model\.safetensors of artifact is not the file the manifest describes"
    with pytest.raises(ArtifactCorrupt, match=wrong), local_artifacts([variant], settings, NoProgress()):
        pass


@pytest.mark.parametrize("kind", [evaluate, serve])
def test_a_job_on_a_flipped_bit_fails_before_a_server_starts(
    stored_artifact: tuple[Path, Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any
) -> None:
    folder, manifest = stored_artifact
    monkeypatch.setenv("WHETSTONE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WHETSTONE_ENGINES", str(tmp_path / "engines"))
    (tmp_path / "engines" / "serve" / "bin").mkdir(parents=True)
    (tmp_path / "engines" / "serve" / "bin" / "python").touch()
    (tmp_path / "engines" / "serve" / engine_status.MARKER).write_text("{}")
    flip(folder / "model" / "model.safetensors")
    variants = (Variant(name="x", source=manifest.id, kind="artifact", model_path=str(folder / "model")),)
    spec = (
        EvaluateSpec(variants=variants, options=EvaluateOptions()) if kind is evaluate else ServeSpec(variants=variants)
    )
    opened = Channel(tmp_path / "j-1")
    opened.open(spec.model_dump_json())
    with pytest.raises(ArtifactCorrupt, match="is not the file the manifest describes"):
        kind.run(spec, JobChannel(tmp_path / "j-1" / "1"), PeakMemory())
    assert not [event for _, events in opened.segments(0) for event in events if event.phase == "start"]


def test_a_file_is_hashed_once_as_long_as_it_is_the_same(
    stored_artifact: tuple[Path, Manifest], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, manifest = stored_artifact
    hashed: list[str] = []
    whole = artifact_folder.sha256
    monkeypatch.setattr(artifact_folder, "sha256", lambda path: hashed.append(path.name) or whole(path))
    for _ in range(3):
        artifact_folder.verified(folder, manifest.id, tmp_path / "kept")
    assert sorted(hashed) == ["config.json", "model.safetensors"]
    os.utime(folder / "model" / "config.json", ns=(1, 1))
    artifact_folder.verified(folder, manifest.id, tmp_path / "kept")
    assert hashed[2:] == ["config.json"]
    for spoilt in ("{", "[]", '{"model/config.json": null}'):
        (tmp_path / "kept" / f"{manifest.id}.json").write_text(spoilt)
        artifact_folder.verified(folder, manifest.id, tmp_path / "kept")
    assert len(hashed) == 9


def test_a_manifest_that_was_exchanged_with_its_files_is_another_artifacts(
    stored_artifact: tuple[Path, Manifest], tmp_path: Path
) -> None:
    folder, manifest = stored_artifact
    flip(folder / "model" / "model.safetensors")
    (folder / "manifest.json").unlink()
    artifact_folder.write_manifest(folder, manifest.model_copy(update={"files": artifact_folder.describe(folder)}))
    with pytest.raises(ArtifactCorrupt, match="is not the one it was published with"):
        artifact_folder.verified(folder, manifest.id, tmp_path / "kept")


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "model/../../x", "", ".", "a\\b", "a\0b", ".."])
def test_a_path_outside_is_no_manifests(path: str) -> None:
    with pytest.raises(ValidationError, match="inside the artifact"):
        ArtifactFile(path=path, size=1, sha256="0")
    assert ArtifactFile(path="model/..a/config.json", size=1, sha256="0").path


@pytest.mark.parametrize("target", ["/etc/hostname", "config.json"])
def test_a_link_is_refused(stored_artifact: tuple[Path, Manifest], tmp_path: Path, target: str) -> None:
    folder, manifest = stored_artifact
    (folder / "model" / "link.json").symlink_to(target)
    with pytest.raises(ArtifactCorrupt, match=r"model/link\.json of artifact is a link"):
        artifact_folder.verify(folder, manifest)
    (folder / "model" / "link.json").unlink()
    (folder / "model" / "config.json").rename(tmp_path / "config.json")
    (folder / "model" / "config.json").symlink_to(tmp_path / "config.json")
    with pytest.raises(ArtifactCorrupt, match="is a link"):
        artifact_folder.verified(folder, manifest.id, tmp_path / "kept")
