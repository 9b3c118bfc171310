"""A compile cache is refused where it was built for something else, with the reason."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from backend.serving import compile_key

PYTHON = Path(sys.prefix) / "bin" / "python"


def test_a_cache_built_here_is_good_here() -> None:
    assert compile_key.refusal(compile_key.current(PYTHON), PYTHON) is None


@pytest.mark.parametrize("changed", sorted(compile_key.LABELS))
def test_a_cache_built_for_something_else_says_what(changed: str) -> None:
    key = {**compile_key.current(PYTHON), changed: "other 1.0"}
    reason = compile_key.refusal(key, PYTHON)
    assert reason is not None
    assert compile_key.LABELS[changed] in reason and "other 1.0" in reason


def test_a_cache_without_a_readable_key_is_refused(tmp_path: Path) -> None:
    assert compile_key.refusal(compile_key.read(tmp_path), PYTHON) is not None
    (tmp_path / compile_key.KEY_FILE).write_text("not json")
    assert compile_key.read(tmp_path) == {}


def test_the_key_is_of_this_environment() -> None:
    key = compile_key.current(PYTHON)
    assert key["torch"].count(".") == 2 and "+" not in key["torch"]
    assert key["python"] == f"python{sys.version_info.major}.{sys.version_info.minor}"
    assert json.loads(json.dumps(key)) == key


def test_the_digest_follows_the_files(tmp_path: Path) -> None:
    (tmp_path / "a.so").write_bytes(b"1")
    first = compile_key.digest(tmp_path)
    (tmp_path / "b.so").write_bytes(b"1")
    assert compile_key.digest(tmp_path) != first
    (tmp_path / "b.so").unlink()
    assert compile_key.digest(tmp_path) == first
