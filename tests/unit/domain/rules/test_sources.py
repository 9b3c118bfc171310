"""A reason names a formula or a document that its reader can open, never a file of ours: those move."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
OWN = "|".join(sorted(path.name for path in (ROOT / "backend").iterdir() if path.is_dir() and path.name != "aws"))
"""`aws` is left out: it publishes what some sources name."""
OURS = re.compile(rf"\.py$|\btests/|\bbackend/|(^|[ (])({OWN})/[a-z_]")


def strings(path: Path) -> Iterator[str]:
    """Every string of the module that is none of its docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    ids = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in ids:
            yield node.value


@pytest.mark.parametrize("package", ["domain", "present", "cli"])
def test_no_source_is_a_file_of_ours(package: str) -> None:
    modules = sorted((ROOT / "backend" / package).rglob("*.py"))
    results = {f"{path.name}: {text}" for path in modules for text in strings(path) if OURS.search(text)}
    assert modules and results == set()


def test_documents_that_are_named_are_there() -> None:
    modules = sorted((ROOT / "backend").rglob("*.py"))
    named = {name for path in modules for text in strings(path) for name in re.findall(r"docs/[\w/-]+\.md", text)}
    assert named and {name for name in named if not (ROOT / name).is_file()} == set()
