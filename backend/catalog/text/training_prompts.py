"""Prompts that a draft is trained on: a person's file or the bundled ones, with those that evaluations hold out left
out."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

from backend.catalog.text import calibration_text, held_out_text
from backend.domain.errors import InvalidWorkload
from backend.domain.recipe.calibration_text import runs
from backend.settings import ASSETS

_LOADS = ASSETS / "workloads"
HELD_OUT = (_LOADS / "assistant.jsonl", _LOADS / "starter-code.jsonl", held_out_text.FOLDER / "chat_held_out.jsonl")
"""Prompts of loads and of the chat score: acceptance on prompts that were trained on would be too high."""
FEWEST = 8
"""Prompts: two are set aside, and fewer than six say nothing of what a person asks."""
MOST_SHARED = 0.5
"""Share of its runs of words that a prompt may have in common with the held-out ones: lines of code occur
everywhere."""
BUNDLED = "leave the file out for the bundled ones"
LONGEST = 4000
"""Characters; of a longer prompt its end is left out."""


class Prompts(NamedTuple):
    """Prompts to train on; `left_out` counts those of the file that are held out or appear twice."""

    texts: tuple[str, ...]
    left_out: int
    name: str


def read(path: str | None, model_dir: Path) -> Prompts:
    """Read prompts: "prompt" or "text" of a JSONL or Parquet file, paragraphs of any other; None: the bundled ones.

    Raises InvalidWorkload where the file will not do, where all of it is held out, and where fewer than FEWEST are
    left.
    """
    name = Path(path).name if path else "the bundled prompts"
    texts = _file(Path(path)) if path else _bundled(model_dir)
    prompts = list(dict.fromkeys(text.strip()[:LONGEST] for text in texts if text.strip()))
    if not prompts:
        raise InvalidWorkload(f'{name} has no prompts: give a JSON object with "prompt" a line, or {BUNDLED}.')
    # Nothing is trained on what evaluations measure on.
    usable = tuple(text for text in prompts if not is_held_out(text))
    if not usable:
        raise InvalidWorkload(
            f"Every prompt of {name} is held out for evaluations to measure on: give others, or {BUNDLED}."
        )
    if len(usable) < FEWEST:
        raise InvalidWorkload(
            f"{name} leaves {len(usable)} prompts, and a training takes at least {FEWEST}: give more, or {BUNDLED}."
        )
    return Prompts(usable, len(texts) - len(usable), name)


def is_held_out(text: str) -> bool:
    """Return whether the text is a held-out prompt or shares most of its runs of words with them."""
    own = set(runs(text))
    return len(own & _held_out_runs()) > MOST_SHARED * len(own)


@cache
def _held_out_runs() -> frozenset[tuple[str, ...]]:
    lines = (json.loads(line)["prompt"] for path in HELD_OUT for line in path.read_text(encoding="utf-8").splitlines())
    return frozenset(run for prompt in lines for run in runs(prompt))


def _bundled(model_dir: Path) -> list[str]:
    if not held_out_text.has_template(model_dir):
        return _paragraphs(calibration_text.BUNDLED.read_text(encoding="utf-8"))
    return [
        json.loads(line)["prompt"] for line in held_out_text.CHAT_CALIBRATION.read_text(encoding="utf-8").splitlines()
    ]


def _file(path: Path) -> list[str]:
    """Read the prompts of a file. Raises InvalidWorkload."""
    texts = calibration_text.texts(str(path), empty=True)
    whole = path.suffix.lower() not in {".jsonl", ".ndjson", ".parquet"}
    return [part for text in texts for part in _paragraphs(text)] if whole else texts


def _paragraphs(text: str) -> list[str]:
    return re.split(r"\n\s*\n", text)
