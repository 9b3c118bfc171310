"""Evidence that variants were served as configured, in words: sentences on failures, a summary line, and a table."""

from __future__ import annotations

from collections.abc import Sequence

from backend.domain.evaluation.document import Evaluation, VariantResult
from backend.domain.evaluation.evidence.schema import ASPECT_NAMES, Finding, failed_findings
from backend.domain.figures import code, listed

STATES: dict[bool | None, str] = {True: "as configured", False: "not as configured", None: "not verified"}
NOT_CHECKED = "not checked here"
TITLE = "Not served as configured"


def off_sentences(evaluation: Evaluation) -> list[str]:
    """Return one sentence for each finding that failed, with the likely cause."""
    return [
        f"{code(result.name)}: {sentence(finding)}"
        for result in evaluation.variants
        for finding in failed_findings(result.findings)
    ]


def sentence(finding: Finding) -> str:
    """Return the finding in words, and its most likely cause."""
    likely = finding.cause if finding.cause.startswith("The log says") else f"Most likely: {finding.cause}"
    return f"{finding.words} {likely}" if finding.cause else finding.words


def line(evaluation: Evaluation) -> str:
    """`Verified while it was measured: weights, compilation and context; not as configured: 1; not verified: 2.`

    Empty if no server was checked.
    """
    # A setting is verified if no check of it failed and some check showed it.
    checked = [result for result in evaluation.variants if result.findings]
    if not checked:
        return ""
    missed = {finding.what for result in checked for finding in failed_findings(result.findings)}
    known = [
        name
        for what, name in ASPECT_NAMES.items()
        if what not in missed and any(_proven(result, what) for result in checked)
    ]
    # Count what failed and what could not be checked.
    missing = sum(finding.proven is None for result in checked for finding in result.findings)
    wrong = sum(len(failed_findings(result.findings)) for result in checked)
    count = f" for {len(checked)} of {len(evaluation.variants)} variants"
    where = "" if len(checked) == len(evaluation.variants) else count
    # The sentence; it says for how many variants only if not for all.
    parts = [f"Verified{where} while it was measured: {listed([name.lower() for name in known]) or 'nothing'}"]
    parts += [f"not as configured: {wrong}"] if wrong else []
    parts += [f"not verified: {missing}"] if missing else []
    return f"{'; '.join(parts)}."


def _proven(result: VariantResult, what: str) -> bool:
    findings = [finding for finding in result.findings if finding.what == what]
    return bool(findings) and all(finding.proven for finding in findings)


def rows(evaluation: Evaluation) -> list[dict[str, str]]:
    """Return one row per variant and setting, failed ones first."""
    return [row for result in evaluation.variants for row in _rows(result)]


def _rows(result: VariantResult) -> Sequence[dict[str, str]]:
    if not result.findings:
        empty = {"Setting": "", "State": "not verified", "Evidence": NOT_CHECKED, "Likely cause": ""}
        return [{"Variant": result.name, **empty}]
    ordered = sorted(result.findings, key=lambda finding: finding.proven is not False)
    return [
        {
            "Variant": result.name,
            "Setting": ASPECT_NAMES[finding.what],
            "State": STATES[finding.proven],
            "Evidence": finding.words,
            "Likely cause": finding.cause,
        }
        for finding in ordered
    ]
