"""What pip installs of a vendor's own index, and how its packages are told from their placeholders on the public one."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from backend.domain.errors import WorkError
from backend.domain.machine.environments import EnvironmentInfo

PLACEHOLDER = "WRONG PACKAGE"
"""What the description of each placeholder says; they install, import a line and do nothing."""


def arguments(environment: EnvironmentInfo, index: str) -> list[str]:
    """pip's arguments after `install`: the vendor's packages, and pydantic, which our part in that process needs.

    Wheels only: pip runs the code of a source package when it builds it, before anything of it could be looked at.
    """
    where = ["--find-links", index] if Path(index).is_dir() else ["--extra-index-url", index]
    return ["--only-binary", ":all:", *where, *environment.vendor, f"pydantic=={importlib.metadata.version('pydantic')}"]


def check_real(environment: EnvironmentInfo, folder: Path) -> None:
    """Raises WorkError naming the first of the vendor's packages that is a placeholder, or not there."""
    paths = [str(path) for path in folder.glob("lib/python3*/site-packages")]
    found = [each.metadata for each in importlib.metadata.distributions(path=paths)]
    packages = {metadata["Name"].lower().replace("_", "-"): metadata for metadata in found}
    for name in environment.vendor:
        about = packages.get(name)
        if about is None:
            raise WorkError(f"`{name}` was not installed: look at the job's log.")
        if PLACEHOLDER in f"{about.get('Summary')} {about.get_payload()}":  # type: ignore[attr-defined]
            raise WorkError(
                f"`{name}` {about['Version']} is the placeholder of the public index and not the vendor's package: check the "
                "address of the index, and that this Python has packages there. Nothing was kept."
            )
