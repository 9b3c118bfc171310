"""The page of the endpoints' benchmark: figures of what was measured, and goals that are missed are called that."""

from __future__ import annotations

from benchmarks.endpoints import Figures, Lost, write_page


def test_goals_are_met_or_missed_by_the_figures() -> None:
    quick = Figures("llama.cpp", 3.0, [1.0, 0.5], [0.4, 0.9], 1_000_000_000, 50_000_000)
    slow = Figures("vllm", 60.0, [30.0], [29.0], 3_000_000_000, 400_000_000)
    page = write_page([quick, slow], Lost(1000, 2, 400, 300.0, 9.0), "a command")
    assert "| llama.cpp | 3.00 s | 2 | 0.75 s | 0.97 s | 1.00 s | 0.65 s | 1000 MB | 50 MB | 5.0% |" in page
    assert "wake p95 at most 2 s, llama.cpp: 0.97 s: met." in page
    assert "wake at most a third of the cold start, vllm: 30.00 s: MISSED." in page
    assert "llama.cpp: 5.0%: met." in page and "vllm: 13.3%: MISSED." in page
    assert "0 of 1,000 first requests lost" in page and "2 lost in 300 s with 400 loads" in page
    assert page.rstrip().endswith("MISSED.")
