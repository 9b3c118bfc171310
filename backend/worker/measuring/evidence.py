"""What proves of each variant that it was served as asked: its servers' evidence, held against its config.json and its
recipe.

The servers of an evaluation hand their evidence over as they stop; what is judged of it is `domain.evaluation.proof`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backend.domain.evaluation.document import Level, Variant
from backend.domain.evaluation.evidence import findings as judged
from backend.domain.evaluation.evidence.schema import Finding, worst_findings
from backend.domain.evaluation.evidence.served_variant import StartEvidence


def findings(
    variant: Variant, starts: Sequence[StartEvidence], levels: Sequence[Level], before: Sequence[Finding] = ()
) -> list[Finding]:
    """`before`: those of the evaluation that this one continues. What is served is sized by its files, without a
    draft's."""
    files = list(Path(variant.model_path).glob("*.safetensors")) if variant.model_path else []
    asked = variant.model_copy(update={"bytes_on_disk": sum(file.stat().st_size for file in files) or None})
    return worst_findings([before, judged.findings(asked, read_config(variant), starts, levels)])


def read_config(variant: Variant) -> dict[str, Any]:
    """Its config.json, the part of the language model where it has several; empty where it cannot be read."""
    try:
        document = json.loads((Path(variant.model_path or "") / "config.json").read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(document, dict):
        return {}
    inner = document.get("text_config")
    return {**document, **inner} if isinstance(inner, dict) else document
