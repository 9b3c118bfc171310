"""Lines of prompt files."""

from __future__ import annotations

import json
from pathlib import Path


def lines(folder: Path, count: int) -> str:
    """Prompts of 100 tokens that have no beginning in common."""
    file = folder / f"{count}.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"{number:04d}" * 100}) + "\n" for number in range(count)))
    return str(file)
