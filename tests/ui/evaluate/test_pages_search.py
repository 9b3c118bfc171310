"""The page of a search: what was found comes first, in sentences, and each level with its interval."""

from __future__ import annotations

from backend.present.words.load_search import MEANING
from backend.service import Workspace
from tests import studio
from tests.helpers.searches import search, tried


def test_the_highest_load_and_the_knee_come_first(studio_home: Workspace) -> None:
    match = search([tried(8, "kept", "knee"), tried(16, "kept", "highest"), tried(17, "missed")], [tried(8, "missed")])
    identity = studio.evaluation(studio_home, match)
    at = studio.open_page("evaluate", id=identity)
    text = studio.says(at)
    assert "the highest load with TTFT p95 at most 300 ms is 16 streams" in text and "the knee is at 8 streams" in text
    assert "`v1`: no load tried is shown to meet" in text and MEANING in text
    assert "KL 0.0004" in text and "too few repeats" not in text
    assert "highest load" in at.markdown[1].value and "caveat" not in at.markdown[1].value and not at.metric
    (table,) = [frame.value for frame in at.dataframe if "Share within" in frame.value.columns]
    assert list(table["Mark"]) == ["knee", "highest", "", ""] and set(table["95% interval"]) == {"96.0% to 99.8%"}
    assert "is 16 streams" in studio.says(studio.open_page("home"))
