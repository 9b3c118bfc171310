"""Collects what shows that each variant was served as configured, from its servers' evidence, config.json and recipe.

The servers of an evaluation hand over their evidence as they stop; backend.domain.evaluation.evidence judges it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from backend.domain.evaluation.document import Level, Variant
from backend.domain.evaluation.evidence import findings as evidence_findings
from backend.domain.evaluation.evidence.schema import Finding, worst_findings
from backend.domain.evaluation.evidence.served_variant import StartEvidence


def collect_findings(
    variant: Variant, starts: Sequence[StartEvidence], levels: Sequence[Level], before: Sequence[Finding] = ()
) -> list[Finding]:
    """Return what each start of the variant's server showed, the worst finding of each kind.

    `before` are the findings of the evaluation that this one continues. The size that the server should report is that
    of the weight files, without a draft's.
    """
    if variant.gguf is not None:
        return worst_findings([before, evidence_findings.findings(variant, {}, starts, levels)])
    files = list(Path(variant.model_path).glob("*.safetensors")) if variant.model_path else []
    sized = variant.model_copy(update={"bytes_on_disk": sum(file.stat().st_size for file in files) or None})
    return worst_findings([before, evidence_findings.findings(sized, read_config(variant), starts, levels)])


def read_config(variant: Variant) -> dict[str, Any]:
    """Return the variant's config.json, with the language model's part on top; empty if it cannot be read."""
    try:
        document = json.loads((Path(variant.model_path or "") / "config.json").read_bytes())
    except (OSError, ValueError):
        return {}
    if not isinstance(document, dict):
        return {}
    inner = document.get("text_config")
    return {**document, **inner} if isinstance(inner, dict) else document
