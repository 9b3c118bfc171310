"""Reads the calibration texts of a job."""

from __future__ import annotations

from pathlib import Path

from backend.catalog.text import held_out_text


def texts(path: str | None, model: Path) -> list[str]:
    """Return the calibration texts of a file or the bundled ones; answered prompts use the model's chat template."""
    from backend.layered import tokenizers

    documents = held_out_text.calibration(path, model)
    if all(isinstance(document, str) for document in documents):
        return [str(document) for document in documents]
    loaded = tokenizers.load(model)
    return [
        document if isinstance(document, str) else tokenizers.format_answered(loaded, *document)
        for document in documents
    ]
