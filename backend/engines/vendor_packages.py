"""Indexes of vendors: what pip installs of them, where PyTorch has its builds, and how placeholders are told from
packages."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from urllib.parse import urlsplit

from backend.domain.errors import WorkError
from backend.domain.machine.environments import EnvironmentInfo

PLACEHOLDER = "WRONG PACKAGE"
"""Text in the description of each placeholder package; those install and do nothing."""


def arguments(environment: EnvironmentInfo, index: str) -> list[str]:
    """pip's arguments after `install`: the vendor's packages, and pydantic, which our part in that process needs.

    Wheels only: pip runs the code of a source package when it builds it, before anything of it could be looked at.
    """
    where = ["--find-links", index] if Path(index).is_dir() else ["--extra-index-url", index]
    return [
        "--only-binary",
        ":all:",
        *where,
        *environment.vendor,
        f"pydantic=={importlib.metadata.version('pydantic')}",
    ]


def index_of_builds(requirement: str) -> str | None:
    """PyTorch's index of one of its builds: `torch==2.13.0+cpu` has it at download.HOST/whl/cpu.

    HOST is that of the home page in the metadata of the torch that runs here, as PyTorch's installation page has it.
    None where the requirement names no build, or no torch with a home page is here.
    """
    # 1. Read the metadata of the torch that runs here.
    build = requirement.partition("+")[2]
    try:
        about = importlib.metadata.metadata("torch")
    except importlib.metadata.PackageNotFoundError:
        return None

    # 2. Take the host of its home page; anything else but a plain address is refused.
    named = dict(entry.split(", ", 1) for entry in about.get_all("Project-URL") or [] if ", " in entry)
    home = urlsplit(named.get("Homepage") or (about.get_all("Home-page") or [""])[0])
    if not build.isalnum() or home.scheme != "https" or not home.hostname:
        return None
    return f"https://download.{home.hostname}/whl/{build}"


def check_real(environment: EnvironmentInfo, folder: Path) -> None:
    """Raise WorkError naming the first of the vendor's packages that is a placeholder, or not there."""
    paths = [str(path) for path in folder.glob("lib/python3*/site-packages")]
    metadata_files = [distribution.metadata for distribution in importlib.metadata.distributions(path=paths)]
    packages = {metadata["Name"].lower().replace("_", "-"): metadata for metadata in metadata_files}
    for name in environment.vendor:
        about = packages.get(name)
        if about is None:
            raise WorkError(f"`{name}` was not installed: look at the job's log.")
        if PLACEHOLDER in f"{about.get('Summary')} {about.get_payload()}":  # type: ignore[attr-defined]
            raise WorkError(
                f"`{name}` {about['Version']} is the placeholder of the public index and not the vendor's package: "
                "check the address of the index, and that this Python has packages there. Nothing was kept."
            )
