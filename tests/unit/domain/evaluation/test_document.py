"""The stored document: what is written is read back, and what another schema wrote is refused in one sentence."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest

from backend.domain.errors import Unreadable, WrittenByNewer
from backend.domain.evaluation.document import EvaluateOptions, Variant, read_evaluation
from backend.domain.jobs.artifact import artifact_of
from backend.domain.jobs.jobs import EvaluateSpec
from tests.simulated import evaluation


def stored(**changes: Any) -> dict[str, Any]:
    return {**json.loads(evaluation().model_dump_json()), **changes}


def test_a_document_says_its_schema_first_and_reads_back() -> None:
    assert next(iter(stored().items())) == ("schema", 1)
    assert read_evaluation(json.dumps(stored())) == evaluation()


@pytest.mark.parametrize(
    ("source", "kind", "expected"),
    [
        ("a-13bc84d67213", "artifact", "a-13bc84d67213"),
        ("a-13bc84d67213@engine=openvino", "artifact", "a-13bc84d67213"),
        ("a-13bc84d67213@tokens=3@engine=vllm", "artifact", "a-13bc84d67213"),
        ("j-1a2b3c4d5e", "artifact", None),
        ("starter@engine=llama.cpp", "model", None),
    ],
)
def test_an_evaluation_holds_the_artifact_whatever_engine_serves_it(
    source: str, kind: Literal["artifact", "model"], expected: str | None
) -> None:
    variant = Variant(name="r", source=source, kind=kind)
    assert artifact_of(variant) == expected
    spec = EvaluateSpec(variants=(variant,), options=EvaluateOptions())
    assert spec.artifacts("/home/artifacts") == ({expected} if expected else set())


def test_a_verdict_is_stored_without_a_sentence() -> None:
    rows = stored()["comparison"]
    assert {row["outcome"] for row in rows} <= {"better", "worse", "same"} and {row["why"] for row in rows} == {None}
    assert not any("verdict" in row for row in rows)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (
            {key: value for key, value in stored().items() if key != "schema"},
            "is of no schema, and this version reads schema 1",
        ),
        (stored(schema=None), "is of schema None, and this version reads schema 1"),
        (stored(interleave=3), "is damaged at interleave"),
        ([], "is damaged at its beginning"),
        ("{", "is damaged at its beginning"),
    ],
)
def test_a_document_of_another_schema_is_refused_in_one_sentence(document: Any, says: str) -> None:
    with pytest.raises(Unreadable) as refused:
        read_evaluation(document if isinstance(document, str) else json.dumps(document))
    assert str(refused.value) == f"The evaluation {says}: measure it again."


@pytest.mark.parametrize(
    ("document", "shows"),
    [
        (stored(schema=2), "it has a value that this version does not know: `schema`"),
        (stored(more=True), "it has fields that this version does not know: `more`"),
    ],
)
def test_a_document_of_a_newer_version_is_called_so(document: Any, shows: str) -> None:
    with pytest.raises(WrittenByNewer) as refused:
        read_evaluation(json.dumps(document))
    text = f"The evaluation was written by a newer version of Whetstone ({shows}): update this checkout to read it."
    assert str(refused.value) == f"{text} It stays as it is."
