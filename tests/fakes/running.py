"""Starts a fake server as a process of its own and stops it again; the port is the first line it prints."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FAKES = Path(__file__).parent


@contextmanager
def running(script: str, *options: object) -> Iterator[str]:
    """`http://127.0.0.1:PORT` of `script` while it runs."""
    command = [sys.executable, str(FAKES / script), *map(str, options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = process.stdout.readline().strip()
            assert port.isdigit(), f"{script} did not start"
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def ask(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return json.load(answer)


def write_prompts(folder: Path, *rows: dict[str, Any]) -> str:
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows or ({"prompt": "one"}, {"prompt": "two"})))
    return str(path)
