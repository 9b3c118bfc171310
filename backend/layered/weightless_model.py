"""A model without weights, as transformers reads its config and builds its class, and what is wrong with them in a
sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from backend.domain.errors import InvalidModel


def read_config(folder: Path) -> Any:
    """Read transformers' config of the model. Raises InvalidModel if its checks refuse it."""
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # noqa: BLE001  a config's checks raise what they like
        raise InvalidModel(
            f"config.json cannot be read by transformers ({_first_line(error)}): correct it, or export the model again."
        ) from None


def problem(config: Any) -> str | None:
    """Return why the model of that config cannot be built on the meta device; None where it can, or is no text model by
    itself."""
    import torch
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM

    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        return None
    try:
        with torch.device("meta"):
            AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except Exception as error:  # noqa: BLE001  what a model's class raises while it is built
        return cannot_build(error)
    return None


def cannot_build(error: Exception) -> str:
    """Return the sentence for what a model's class raised."""
    return (
        f"transformers cannot build the model that config.json describes ({_first_line(error)}): correct config.json."
    )


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    first = lines[0].rstrip(".:")[:200] if lines else ""
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
