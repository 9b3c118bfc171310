"""The walls of the house: which package may import which, read from the syntax trees of every source file."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted(path for top in ("app", "pages", "backend") for path in (ROOT / top).rglob("*.py"))

EVERYONE = {"domain", "settings"}
ALLOWED: dict[str, set[str]] = {
    "settings": set(),
    "domain": {"domain", "present"},
    "present": {"present", "domain"},
    "cli": {"cli", "service", "domain", "present"},
    "service": {"service", "store", "catalog", "hardware", "artifacts", "present"} | EVERYONE,
    "store": {"store"} | EVERYONE,
    "catalog": {"catalog", "aws"} | EVERYONE,
    "hardware": {"hardware"} | EVERYONE,
    "artifacts": {"artifacts", "aws"} | EVERYONE,
    "supervisor": {"supervisor", "store", "launchers", "artifacts"} | EVERYONE,
    "launchers": {"launchers", "aws"} | EVERYONE,
    "worker": {"worker", "engines", "serving", "evaluate", "layered", "artifacts", "hardware", "catalog", "present"} | EVERYONE,
    "engines": {"engines", "layered"} | EVERYONE,
    "serving": {"serving"} | EVERYONE,
    "evaluate": {"evaluate", "layered", "present"} | EVERYONE,
    "layered": {"layered"} | EVERYONE,
    "aws": {"aws"} | EVERYONE,
}
"""backend package -> backend packages it may import. docs/decisions/ holds the widenings: worker -> hardware, catalog (1);
engines, evaluate -> layered, what both know of a model one layer at a time (15)."""

HEAVY = {
    "torch", "transformers", "vllm", "compressed_tensors", "safetensors", "numpy", "pandas", "llmcompressor", "awq", "datasets",
}  # fmt: skip
HEAVY_PLACES = ("backend/engines/", "backend/layered/", "backend/serving/", "backend/evaluate/quality", "backend/hardware/")
ONLY_IN = {
    "streamlit": ("app/", "pages/"),
    "boto3": ("backend/aws/",),
    "ray": ("backend/launchers/ray.py",),
    "huggingface_hub": ("backend/catalog/",),
    "sqlmodel": ("backend/store/", "backend/supervisor/"),
    "sqlalchemy": ("backend/store/",),
    "typer": ("backend/cli/",),
}


def _imports(path: Path) -> list[tuple[str, bool]]:
    """(dotted name, run when the module is imported) of every import; a TYPE_CHECKING block never runs."""
    tree = ast.parse(path.read_text())
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        or (isinstance(function, ast.If) and ast.unparse(function.test) == "TYPE_CHECKING")
        for node in ast.walk(function)
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, id(node) not in inside) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [(f"{node.module}.{alias.name}", id(node) not in inside) for alias in node.names]
    return found


def _ids(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", SOURCES, ids=_ids)
def test_a_module_imports_only_what_its_wall_lets_through(path: Path) -> None:
    where = _ids(path)
    package = where.split("/")[1].removesuffix(".py") if where.startswith("backend/") else where.split("/")[0]
    for name, _ in _imports(path):
        if not name.startswith("backend."):
            continue
        target = name.split(".")[1]
        if package in {"app", "pages"}:
            assert target in {"service", "domain", "present"}, f"{where} imports {name}"
        elif package != "__init__":
            assert target in ALLOWED[package], f"{where} imports {name}"


@pytest.mark.parametrize("path", SOURCES, ids=_ids)
def test_vendor_libraries_stay_in_their_places_and_inside_functions(path: Path) -> None:
    where = _ids(path)
    for name, at_top in _imports(path):
        top = name.split(".")[0]
        if top in ONLY_IN:
            assert where.startswith(ONLY_IN[top]), f"{where} imports {name}"
        if top in HEAVY:
            assert where.startswith(HEAVY_PLACES), f"{where} imports {name}"
            assert not at_top or top in {"numpy"}, f"{where} imports {name} at module level"


@pytest.mark.parametrize("path", [p for p in SOURCES if _ids(p).startswith("backend/domain/")], ids=_ids)
def test_the_domain_is_the_standard_library_and_pydantic(path: Path) -> None:
    for name, _ in _imports(path):
        top = name.split(".")[0]
        assert top in sys.stdlib_module_names or top in {"pydantic", "backend"}, f"{_ids(path)} imports {name}"


@pytest.mark.parametrize("path", SOURCES, ids=_ids)
def test_no_module_is_longer_than_the_house_allows(path: Path) -> None:
    limit = 150 if _ids(path).startswith("pages/") else 400
    assert len(path.read_text().splitlines()) <= limit
