"""What proves that variants were served as they were asked, in words: the red line, the line of what was proven, a
table."""

from __future__ import annotations

from collections.abc import Sequence

from backend.domain.evaluation.document import Evaluation, VariantResult
from backend.domain.evaluation.evidence.schema import ASPECT_NAMES, Finding, failed_findings
from backend.domain.figures import code, listed

STATES: dict[bool | None, str] = {True: "as asked", False: "not what was asked", None: "not seen"}
NOT_LOOKED_AT = "nothing was asked of it here"
TITLE = "Not what was asked"


def off_sentences(evaluation: Evaluation) -> list[str]:
    """One a thing that was not done, with the likely cause; none where all was done or could not be seen."""
    return [
        f"{code(result.name)}: {sentence(each)}"
        for result in evaluation.variants
        for each in failed_findings(result.findings)
    ]


def sentence(finding: Finding) -> str:
    """What was seen, and what is most likely behind it."""
    likely = finding.cause if finding.cause.startswith("The log says") else f"Most likely: {finding.cause}"
    return f"{finding.words} {likely}" if finding.cause else finding.words


def line(evaluation: Evaluation) -> str:
    """`Proven on while it was measured: weights, compilation and context; not as asked: 1; not seen: 2.` Empty where no
    server was looked at."""
    looked = [result for result in evaluation.variants if result.findings]
    if not looked:
        return ""
    missed = {each.what for result in looked for each in failed_findings(result.findings)}
    known = [
        name
        for what, name in ASPECT_NAMES.items()
        if what not in missed and any(_proven(result, what) for result in looked)
    ]
    missing = sum(each.proven is None for result in looked for each in result.findings)
    wrong = len([each for result in looked for each in failed_findings(result.findings)])
    of = "" if len(looked) == len(evaluation.variants) else f" of {len(looked)} of {len(evaluation.variants)} variants"
    parts = [f"Proven on{of} while it was measured: {listed([name.lower() for name in known]) or 'nothing'}"]
    parts += [f"not as asked: {wrong}"] if wrong else []
    parts += [f"not seen: {missing}"] if missing else []
    return f"{'; '.join(parts)}."


def _proven(result: VariantResult, what: str) -> bool:
    found = [each for each in result.findings if each.what == what]
    return bool(found) and all(each.proven for each in found)


def rows(evaluation: Evaluation) -> list[dict[str, str]]:
    """One a variant and thing that was asked, what was not done first."""
    return [row for result in evaluation.variants for row in _rows(result)]


def _rows(result: VariantResult) -> Sequence[dict[str, str]]:
    if not result.findings:
        empty = {"Asked": "", "State": "not seen", "Evidence": NOT_LOOKED_AT, "Likely cause": ""}
        return [{"Variant": result.name, **empty}]
    ordered = sorted(result.findings, key=lambda each: each.proven is not False)
    return [
        {
            "Variant": result.name,
            "Asked": ASPECT_NAMES[each.what],
            "State": STATES[each.proven],
            "Evidence": each.words,
            "Likely cause": each.cause,
        }
        for each in ordered
    ]
