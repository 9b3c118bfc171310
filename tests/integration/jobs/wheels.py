"""Builds small wheels."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path


def wheel(
    folder: Path,
    name: str,
    version: str,
    module: str,
    code: str = "",
    requires: tuple[str, ...] = (),
    summary: str = "a test's",
    submodules: tuple[str, ...] = (),
) -> None:
    """A wheel of one module, with empty submodules, by the binary distribution format (PyPA specifications)."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: {summary}\n"
    metadata += "".join(f"Requires-Dist: {r}\n" for r in requires)
    files = {
        f"{module}/__init__.py": code,
        **{f"{module}/{submodule.replace('.', '/')}.py": "" for submodule in submodules},
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = (
        "".join(f"{path},sha256={_digest(text)},{len(text)}\n" for path, text in files.items()) + f"{info}/RECORD,,\n"
    )
    with zipfile.ZipFile(folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
