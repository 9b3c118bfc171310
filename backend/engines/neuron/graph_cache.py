"""neuronx-cc's own cache of graphs: NAME/neuronxcc-VERSION/MODULE_HASH+FLAGS/, with `model.neff` where it compiled and
only `model.log` where it failed.

A failed entry is taken for an answer: that graph is not compiled again until the entry is gone. Layout: AWS Neuron
documentation, Neuron Persistent Cache. Knows nothing of models.
"""

from __future__ import annotations

import shutil
from pathlib import Path

NEFF, LOG = "model.neff", "model.log"


def failed_entries(cache: Path) -> list[Path]:
    """Return the entries with a log and without a compiled graph, in the order of their names."""
    return sorted(log.parent for log in cache.glob(f"neuronxcc-*/MODULE_*/{LOG}") if not (log.parent / NEFF).exists())


def remove_failed(cache: Path) -> list[str]:
    """Remove the failed entries and return their names, so that a person hears of it."""
    paths = failed_entries(cache)
    for entry in paths:
        shutil.rmtree(entry)
    return [entry.name for entry in paths]
