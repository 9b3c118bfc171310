"""The report that a page gives holds the page's own what-if; the command writes the same file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from backend.cli.main import main
from backend.domain.errors import InvalidOptions, NotFound
from backend.domain.limits.slo import Slo
from backend.domain.load.load import Load
from backend.domain.what_if.costs import WhatIf
from backend.service import Workspace
from backend.service.evaluations import evaluations, imported_results, reports
from backend.store import history
from backend.worker.measuring.records import MeasuredLevel, write_records
from tests import simulated, studio
from tests.helpers.imported_files import CONCURRENT, RECORDED
from tests.helpers.report_page import _Page
from tests.helpers.report_records import record


@pytest.fixture
def stored(studio_home: Workspace, tmp_path: Path) -> str:
    """An evaluation with its single requests and without a report."""
    document = simulated.evaluation(names=("original", "w8a8"), speeds=(1.0, 1.31), repeats=2, levels=(1, 4))
    rows = [
        MeasuredLevel(
            v, Load("closed", c), [[record(n, n % c, f"answer {v * n}") for n in range(4 * c)] for _ in range(2)]
        )
        for v in range(2)
        for c in (1, 4)
    ]
    write_records(tmp_path / "records.parquet", ["original", "w8a8"], rows)
    identity = studio.evaluation(studio_home, document)
    with studio_home.store.session() as session:
        history.get_evaluation(session, identity).path = str(tmp_path)
    return identity


def test_the_fields_of_the_page_are_what_the_report_is_asked(studio_home: Workspace, stored: str) -> None:
    def script() -> None:
        import streamlit as st

        from app import navigation
        from app.results import costs, goodput, report_download
        from app.session import workspace
        from backend.service.evaluations import evaluations

        st.session_state[navigation.HERE] = "evaluate"
        opened = workspace()
        view = evaluations.show(opened, "e-1")
        request, _ = costs.show_prices(opened, view.document, ["original", "w8a8"])
        result = report_download.report_what_if(view.document, request)
        st.text(result.model_dump_json() if result else "as stored")
        goodput.choose(view.document)

    at = AppTest.from_function(script, default_timeout=studio.TIMEOUT_S).run()
    at.run()
    assert at.text[0].value == "as stored"
    at.slider(key="evaluate_slo_tpot").set_value(at.slider(key="evaluate_slo_tpot").max / 2)
    at.number_input(key="evaluate_cost_hour").set_value(2.5)
    at.number_input(key="evaluate_cost_ttft").set_value(250.0)
    at.number_input(key="evaluate_cost_ratio").set_value(1.5)
    at.number_input(key="evaluate_cost_requests").set_value(1_000_000.0)
    at.run()
    what_if = WhatIf.model_validate_json(at.text[0].value)
    assert (what_if.per_hour, what_if.limits, what_if.requests_a_month) == (2.5, Slo(ttft_ms=250.0), 1e6)
    assert (what_if.input_output_ratio, what_if.discount) == (1.5, None)
    assert list(what_if.request_limits) == ["tpot_ms"]
    addressed = AppTest.from_function(script, default_timeout=studio.TIMEOUT_S)
    addressed.query_params["evaluate_cost_hour"] = "3"
    addressed.query_params["evaluate_cost_peak"] = "nonsense"
    addressed.run()
    assert WhatIf.model_validate_json(addressed.text[0].value).per_hour == 3.0


def test_page_and_report_show_the_same_tiles_verdict_and_caveats(studio_home: Workspace) -> None:
    identity = studio.evaluation(studio_home, simulated.evaluation())
    at = studio.open_page("evaluate", id=identity)
    report = reports.write_page(studio_home, identity, WhatIf()).decode()
    # 1. The verdict, in the colour of a win.
    (verdict,) = re.findall(r'<p class="verdict win">(.*?)</p>', report)
    assert at.success[0].value.replace("**", "").replace("\\", "") == _Page(verdict).text
    # 2. Label, value, word, colour and detail of each tile.
    tiles = re.findall(r'<li class="tile (\w+)"[^>]*>(.*?)</li>', report, re.DOTALL)
    pages = [_Page(inside).text.split() for _, inside in tiles]
    shown = at.metric[: len(tiles)]
    assert len(tiles) == 4
    for (colour, _), words, metric in zip(tiles, pages, shown, strict=True):
        parts = (metric.label, metric.value, metric.delta, metric.proto.delta_description)
        squeezed = "".join(words).replace("▲", "").replace("▼", "")
        assert squeezed == "".join(" ".join(parts).replace("\\", "").split())
        assert metric.proto.MetricColor.Name(metric.proto.color).lower() == colour
    # 3. The number of caveats.
    labels = [each.proto.popover.label for each in at.get("popover")]
    (caveats,) = [label for label in labels if label.endswith(("caveat", "caveats"))]
    assert f"<summary>{caveats}</summary>" in report


def test_a_report_is_written_anew_with_what_was_asked(studio_home: Workspace, stored: str) -> None:
    result = imported_results.add_files(studio_home, [RECORDED / CONCURRENT])
    what_if = WhatIf(per_hour=2.5, request_limits={"ttft_ms": 51.0}, requests_a_month=1e6)
    text = reports.write_page(studio_home, stored, what_if, [result.id]).decode()
    for message in (
        "An hour costs 2.5 USD",
        "Goodput",
        "1,000,000 requests per month",
        "imported from GuideLLM 0.8.1",
        "changed most",
    ):
        assert message in text
    with pytest.raises(NotFound, match="b-none"):
        reports.write_page(studio_home, stored, what_if, ["b-none"])


def test_without_its_requests_the_report_says_so(studio_home: Workspace, stored: str, tmp_path: Path) -> None:
    (tmp_path / "records.parquet").unlink()
    assert (
        "Single requests were not kept with this report"
        in reports.write_page(studio_home, stored, WhatIf(per_hour=1.0)).decode()
    )


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["e-none"], 2, "no evaluation e-none"),
        (["e-1", "--price-per-hour", "inf"], 2, "inf is not a finite number"),
        (["e-1", "--price-per-hour", "-1"], 2, "Input should be greater than or equal to 0"),
        (["e-1", "--discount", "2"], 2, "discount"),
        (["e-1", "--imported", "b-none"], 2, "no imported result b-none"),
        (["e-1", "--to", "none/such/folder.html"], 2, "cannot be written"),
    ],
)
def test_the_command_says_what_is_wrong(
    studio_home: Workspace,
    stored: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    says: str,
) -> None:
    monkeypatch.setattr("sys.argv", ["whetstone", "report", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == code
    assert says in capsys.readouterr().err


def test_an_endpoint_needs_the_name_of_the_tokens_variable_never_the_token(studio_home: Workspace) -> None:
    at = studio.open_page("evaluate", variants="http://127.0.0.1:9/v1#model")
    at.text_input(key="evaluate_bearer_env").set_value("sk-live-123").run()
    studio.check(at)
    assert "never the token itself" in at.error[0].value
    at.text_input(key="evaluate_bearer_env").set_value("WHETSTONE_TOKEN_MINE").run()
    assert "--bearer-env WHETSTONE_TOKEN_MINE" in studio.says(at)
    at.text_input(key="evaluate_bearer_env").set_value("AWS_SECRET_ACCESS_KEY").run()
    assert "is not sent to an endpoint" in at.error[0].value
    with pytest.raises(InvalidOptions, match="Bearer env is wrong: it must be a variable's name") as refused:
        evaluations.read_options(bearer_env="sk-live-123")
    assert "sk-live" not in str(refused.value)
    models = studio.open_page("evaluate", variants="starter")
    assert not [field for field in models.text_input if field.key == "bearer_env"]
