"""The build of llama.cpp without a compiler's work: its lock, its key, and when a build counts as complete."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from backend import files
from backend.domain.errors import WorkError
from backend.domain.jobs.progress import NoProgress
from backend.engines import environments
from backend.engines.llama_cpp import build

LOCK = environments.LOCKS / "llama-cpp.txt"
COMPILER = build.Compiler("/usr/bin/g++", "g++ 12")


def complete(folder: Path) -> None:
    """Make what a finished build leaves."""
    folder.mkdir(parents=True)
    for name in build.PROGRAMS:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    digest = build._digest(*(pin.text for pin in build.read_pins(LOCK)))
    record = {"version": "1", "lock": digest, "packages": {}, "compiler": "g++ 12"}
    record |= {"processor": build.processor_key(), "options": build.list_options()}
    (folder / build.RECORD).write_text(json.dumps(record))


def test_the_lock_pins_the_source_by_its_hash() -> None:
    pins = {pin.name: pin for pin in build.read_pins(LOCK)}
    assert {"llama-cpp-python", "cmake", "ninja", "scikit-build-core"} <= set(pins)
    assert len(re.findall("--hash=sha256:", pins[build.SOURCE].text)) == 1
    assert build.COMMIT in LOCK.read_text()


def test_the_key_changes_with_source_compiler_and_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    pins = build.read_pins(LOCK)
    key = build.build_key(pins, COMPILER)
    assert key == build.build_key(pins, COMPILER) and key.startswith("0.3.36-")
    assert key != build.build_key(pins, build.Compiler("/usr/bin/g++", "g++ 13"))
    assert key != build.build_key([pins[0]._replace(text="cmake==1"), *pins[1:]], COMPILER)
    monkeypatch.setattr(build, "processor_key", lambda: "another")
    assert key != build.build_key(pins, COMPILER)


def test_a_processor_with_amx_has_builds_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pins = build.read_pins(LOCK)
    monkeypatch.setattr(build, "processor_flags", lambda: frozenset({"avx2"}))
    assert build.list_options() == list(build.OPTIONS)
    complete(tmp_path / "before")
    record = build.read_record(tmp_path / "before")
    assert record is not None and build.is_of(record, pins)
    # With AMX, what was built by other options is no build of this machine.
    monkeypatch.setattr(build, "processor_flags", lambda: frozenset({"avx2", build.AMX}))
    complete(tmp_path / "today")
    today = build.read_record(tmp_path / "today")
    assert today is not None and build.is_of(today, pins)
    assert not build.is_of({**today, "options": list(build.OPTIONS)}, pins)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_the_whole_tile_configuration_is_stored_before_it_is_loaded(tmp_path: Path) -> None:
    """GCC 12.2 drops the stores beyond the first 8 bytes without the header."""
    (tmp_path / "tile_config.h").write_text(build.TILE_CONFIG)
    (tmp_path / "load.cpp").write_text(
        "#include <immintrin.h>\n"
        "struct Config { unsigned char palette, row, zeros[14]; unsigned short widths[8]; char rest[32]; };"
        "void load() { Config c = {}; c.palette = 1; c.widths[7] = 4660; _tile_loadconfig(&c); }"
    )
    command = ["g++", "-O3", "-mamx-tile", "-include", str(tmp_path / "tile_config.h"), "-S", "-o", "-", "load.cpp"]
    assembly = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "4660" in assembly and "ldtilecfg" in assembly


@pytest.mark.parametrize("missing", [build.RECORD, "llama-quantize"])
def test_a_build_that_lacks_anything_is_none(tmp_path: Path, missing: str) -> None:
    complete(tmp_path / "b")
    assert build.read_record(tmp_path / "b") is not None
    (tmp_path / "b" / missing).unlink()
    assert build.read_record(tmp_path / "b") is None


def test_without_a_compiler_one_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "find_compiler", lambda: None)
    with pytest.raises(WorkError, match=r"apt install g\+\+"):
        build.build(LOCK, tmp_path, NoProgress())
    complete(tmp_path / "0.3.36-abc")
    assert build.build(LOCK, tmp_path, NoProgress())["folder"] == str(tmp_path / "0.3.36-abc")


def test_two_builds_at_once_make_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "find_compiler", lambda: COMPILER)
    runs = []

    def run(self: build._Build) -> dict[str, object]:
        runs.append(self._folder)
        with files.staged_folder(self._folder) as staged:
            staged.rmdir()
            complete(staged)
        record = build.read_record(self._folder)
        assert record is not None
        return record

    monkeypatch.setattr(build._Build, "run", run)
    records: list[object] = []
    threads = [
        threading.Thread(target=lambda: records.append(build.build(LOCK, tmp_path, NoProgress()))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runs) == 1 and len(records) == 3 and records[0] == records[1] == records[2]


def test_an_installation_links_what_was_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "find_compiler", lambda: COMPILER)
    builds, engines = tmp_path / "builds", tmp_path / "engines"
    folder = builds / "llama-cpp" / build.build_key(build.read_pins(LOCK), COMPILER)
    complete(folder)
    mark = environments.install("llama-cpp", engines, NoProgress(), builds=builds)
    assert mark["origin"] == str(folder)
    assert (engines / "llama-cpp" / "bin" / "llama-server").resolve() == folder / "llama-server"
    environments.remove("llama-cpp", engines)
    assert not (engines / "llama-cpp").exists() and build.read_record(folder) is not None


def test_what_was_built_elsewhere_is_not_replaced_by_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make test` with another home once took a wheel in place of a build that worked."""
    monkeypatch.setattr(build, "find_compiler", lambda: COMPILER)
    first, other, engines = tmp_path / "first", tmp_path / "other", tmp_path / "engines"
    complete(first / "llama-cpp" / build.build_key(build.read_pins(LOCK), COMPILER))
    marker = environments.install("llama-cpp", engines, NoProgress(), builds=first)
    second = environments.install("llama-cpp", engines, NoProgress(), builds=other, compile_missing=False)
    assert second == marker and (engines / "llama-cpp" / "bin" / "llama-server").is_file()
