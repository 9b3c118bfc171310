"""Finds the package index that pip uses where nobody configured one: no address of it is written here."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from urllib.parse import urlsplit

DEFAULT = re.compile(r"Base URL of the Python Package Index \(default\s+(https?://[^\s)]+)\)")
"""The default of --index-url in the output of `pip download --help`."""


@cache
def find_default_host() -> str | None:
    """Return the host of pip's own default index, in small letters; None if pip is missing or prints it in another
    form.

    pip's help shows the default after its configuration was read (pip 26, _internal/cli/parser.py), so it runs without
    any.
    """
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    help_output = subprocess.run(
        [sys.executable, "-m", "pip", "download", "--help"],
        env={**plain, "PIP_CONFIG_FILE": os.devnull},
        capture_output=True,
        text=True,
        check=False,
    )
    match = DEFAULT.search(help_output.stdout)
    return (urlsplit(match[1]).hostname or "").lower() or None if match else None
