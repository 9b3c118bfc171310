"""The quality of each variant of an evaluation: perplexity and KL divergence on the saved weights, scored once a model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backend.domain.evaluation.document import Quality, Variant
from backend.domain.jobs.progress import Progress
from backend.settings import ASSETS

HELD_OUT = ASSETS / "text" / "held_out.txt"
WINDOWS = 24


def measure(variants: Sequence[Variant], progress: Progress, folder: Path) -> dict[int, Quality]:
    """Quality by variant index. A URL's weights cannot be scored: `scored` says unavailable. `folder` takes large hidden states.

    Speculative decoding and compilation keep the weights, so such a variant has its weights' score; what serving changed
    shows in the greedy match.
    """
    unread = Quality(scored="unavailable", note="The weights behind a URL cannot be read.")
    if all(variant.model_path is None or variant.original_path is None for variant in variants):
        return dict.fromkeys(range(len(variants)), unread)  # before seconds go into loading what would score them
    from backend.evaluate.quality import quality
    from backend.evaluate.quality.states import Place
    from backend.layered.passes import devices

    known: dict[tuple[str, str], dict[str, Any]] = {}
    found, place = {}, Place(devices(), folder)
    text = HELD_OUT.read_text()
    for index, variant in enumerate(variants):
        if variant.model_path is None or variant.original_path is None:
            found[index] = unread
            continue
        key = (_identity(variant.original_path), _identity(variant.model_path))
        if key not in known:
            paths = Path(variant.original_path), Path(variant.model_path)
            known[key] = quality.score(*paths, text, windows=WINDOWS, progress=progress, place=place)
        found[index] = _quality(known[key], same=key[0] == key[1])
    return found


def _quality(scored: dict[str, Any], *, same: bool) -> Quality:
    fields = {name: scored[name] for name in ("perplexity", "perplexity_original", "kl_mean", "kl_ci95")}
    return Quality(**fields, scored="original" if same else "dequantized")


def _identity(folder: str) -> str:
    """Copies of the same weights score alike: name them by the weight files' sizes and first bytes."""
    parts = []
    for path in sorted(Path(folder).glob("*.safetensors")):
        with path.open("rb") as source:
            parts.append(f"{path.stat().st_size}:{hash(source.read(1 << 22))}")
    return "|".join(parts)
