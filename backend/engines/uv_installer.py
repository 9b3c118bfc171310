"""Installs packages with uv, from wherever pip is configured to take them: 8 seconds where pip takes a minute for vLLM.

    python backend/engines/uv_installer.py PYTHON ARGUMENT...    as `pip install ARGUMENT...` into that environment

uv does not read pip's configuration (pip.conf and PIP_...), so its options are translated. Where uv is missing, or one
of pip's options has no counterpart, the caller uses pip. Needs nothing but the standard library, since `.ci/setup` runs
it before the studio's packages are installed.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

NAMES_OF_FLAGS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
    "trusted-host": "--allow-insecure-host",
}
"""pip's options that name places, several separated by blanks, and uv's flag for each place."""
NAMES_OF_VARIABLES = {
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
}
WITHOUT_EFFECT = {
    "break-system-packages",
    "cache-dir",
    "constraint",
    "disable-pip-version-check",
    "no-cache-dir",
    "no-color",
    "no-compile",
    "no-input",
    "no-python-version-warning",
    "no-warn-script-location",
    "prefer-binary",
    "progress-bar",
    "quiet",
    "require-virtualenv",
    "retries",
    "root-user-action",
    "verbose",
}
"""pip's options that change nothing of an installation by exact versions into a virtual environment."""
SECTIONS = ("global", "install", ":env:")
"""Sections of pip's configuration that hold for `pip install`, the weakest first."""


def read_pip_options(listing: str) -> dict[str, str]:
    """Return pip's options by name from what `pip config list` prints; later sections of SECTIONS win."""
    by_section: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
    for line in listing.splitlines():
        key, _, value = line.partition("=")
        section, _, name = key.partition(".")
        if section in by_section:
            by_section[section][name.replace("_", "-")] = str(ast.literal_eval(value))
    return {name: value for section in SECTIONS for name, value in by_section[section].items()}


def translate(options: Mapping[str, str]) -> tuple[list[str], dict[str, str]] | None:
    """Return uv's arguments and variables for pip's options; None where uv has no counterpart of one of them.

    As with pip, all indexes are equal: uv would take the first that has the package, which is another thing where
    indexes have different versions. The versions and hashes of our locks are exact.
    """
    arguments, variables = ["--index-strategy", "unsafe-best-match"], {}
    for name, value in options.items():
        if name in NAMES_OF_FLAGS:
            arguments += [part for place in value.split() for part in (NAMES_OF_FLAGS[name], place)]
        elif name in NAMES_OF_VARIABLES:
            variables[NAMES_OF_VARIABLES[name]] = value
        elif name == "no-index":
            arguments += ["--no-index"] * (value.lower() in {"1", "true", "yes", "on"})
        elif name not in WITHOUT_EFFECT:
            return None
    return arguments, variables


def make_command(python: Path, arguments: list[str]) -> tuple[list[str], dict[str, str]] | None:
    """Return the command that installs as `pip install` with these arguments would, and its environment.

    None where pip is to be used: uv is missing, or pip is configured in a way that uv does not know.
    """
    # 1. Find uv in this interpreter's environment.
    if importlib.util.find_spec("uv") is None:
        return None
    from uv import find_uv_bin

    # 2. Translate pip's configuration.
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"]
    listed = subprocess.run(pip, capture_output=True, text=True, check=False)
    translated = translate(read_pip_options(listed.stdout)) if listed.returncode == 0 else None
    if translated is None:
        return None
    flags, variables = translated
    command = [find_uv_bin(), "pip", "install", "--python", str(python), *flags, *arguments]
    return command, {**os.environ, **variables}


def main(python: str, *arguments: str) -> int:
    """Install, and return uv's exit code; 1 where uv cannot be used."""
    prepared = make_command(Path(python), list(arguments))
    if prepared is None:
        return 1
    command, environment = prepared
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
