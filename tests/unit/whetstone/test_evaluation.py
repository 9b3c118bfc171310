"""What an evaluation looks like from Python: a line, rows, charts, HTML in which a name is only text."""

from __future__ import annotations

from pathlib import Path

import pytest

import whetstone as ws
from backend.present.words import headline
from tests import measured
from tests.homes import open_home
from whetstone.html_display import facts_table


def test_an_evaluation_has_a_verdict_rows_charts_and_csv(tmp_path: Path) -> None:
    document = measured.store(open_home(tmp_path))
    (result,) = ws.open(tmp_path).evaluations()
    assert (
        result.id == "e-measured"
        and result.verdict == headline.headline_sentence(document)
        and result.verdict in repr(result)
    )
    table = result.table()
    assert [row["Variant"] for row in table] == [each.name for each in document.variants for _ in each.levels]
    assert "Time to first token (ms)" in repr(table) and result._repr_html_().count("<tr>") > len(
        repr(table).splitlines()
    )
    charts = result.charts("dark")
    assert set(charts) == {"throughput", "ttft", "tpot", "price", "pareto", "quality"} and charts["throughput"].data
    assert len(result.verdicts) == len(document.variants[1:]) * 2 and result.csv().count("\n") > len(table)


def test_what_a_person_wrote_is_text_in_html_and_a_table_may_be_empty() -> None:
    assert "<img" not in facts_table("<img src=x>", {"a": "<img>", "b": None}) and "None" not in facts_table(
        "t", {"b": None}
    )
    assert ws.Table() == [] and "<table>" in ws.Table()._repr_html_()


def test_errors_are_one_sentence_and_come_before_anything_starts(tmp_path: Path) -> None:
    studio = ws.open(tmp_path)
    assert str(tmp_path) in repr(studio) and studio.jobs() == []
    model = studio.model("starter")
    with pytest.raises(ws.WhetstoneError, match="no model `nosuch`"):
        studio.model("nosuch")
    with pytest.raises(ws.WhetstoneError, match="Concurrency is wrong"):
        studio.evaluate([model], concurrency=[0])
    with pytest.raises(ws.WhetstoneError, match="no steps"):
        studio.optimize(model, ws.recipe({"name": "nothing", "steps": []}))
    assert not studio.check(model, ws.recipe({"steps": [{"quantize": {"method": "llm-int8"}}]})).valid
    assert studio.jobs() == [] and studio.models()[0].id == model.id
