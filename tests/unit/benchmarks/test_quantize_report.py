"""The report of the quantization benchmark: no row that was not measured, the quality rule, growth."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import quantize_report as report

ABOUT = {"hardware": {"cpu": "a processor", "cores": 2}, "threads": 1, "note": "", "samples": 64, "length": 512}


def row(engine: str, seconds: float, kl: list[float], **changes: Any) -> dict[str, Any]:
    return {
        "part": "compare",
        "engine": engine,
        "method": "awq",
        "hidden": 256,
        "layers": 4,
        "samples": 64,
        "threads": 1,
        "round": 0,
        "seconds": seconds,
        "peak_bytes": 100e6,
        "calibration": {"sha256": "same"},
        "versions": {"torch": "2.13.0"},
        "kl": kl,
        "perplexity": 51.0,
        "perplexity_original": 50.0,
        **changes,
    }


def render_report(rows: list[dict[str, Any]], methods: list[str] | None = None) -> str:
    return report.markdown(rows, ABOUT, [256], methods or ["awq"])


def test_what_was_not_measured_is_said_and_never_made_up() -> None:
    text = render_report([row("native", 2.0, [0.01, 0.011])])
    assert "not measured" in text and "needs the native engine and a library" in text
    stopped = {
        name: value for name, value in row("autoawq", 0, []).items() if name not in {"seconds", "kl", "calibration"}
    }
    assert "stopped after 60 s" in render_report(
        [row("native", 2.0, [0.01, 0.011]), {**stopped, "stopped_after": 60.0}]
    )
    only = [row("llm-compressor", 4.0, [0.01, 0.011], method="gptq")]
    (line,) = (line for line in render_report(only, ["gptq"]).splitlines() if line.startswith("autoawq"))
    assert line.split() == ["autoawq", "not", "available"]


def test_ratios_and_the_quality_rule() -> None:
    result = render_report(
        [row("native", 2.0, [0.01, 0.0101, 0.0099]), row("llm-compressor", 20.0, [0.02, 0.0201, 0.0199])]
    )
    assert "10.0x faster" in result and "Quality rule held" in result and "-50.0%" in result
    lost = render_report(
        [row("native", 2.0, [0.03, 0.0301, 0.0299]), row("llm-compressor", 20.0, [0.02, 0.0201, 0.0199])]
    )
    assert "Quality rule not held" in lost and "+50.0%" in lost


def test_windows_that_both_were_scored_on_are_compared() -> None:
    text = render_report(
        [row("native", 2.0, [0.01, 0.0101, 0.0099, 9.0]), row("llm-compressor", 20.0, [0.02, 0.0201, 0.0199])]
    )
    assert "Quality rule held" in text and "-50.0%" in text and "3 windows" in text


def test_models_trained_for_longer_stand_apart() -> None:
    longer = [row("native", 3.0, [0.01, 0.011], steps=150), row("llm-compressor", 30.0, [0.02, 0.021], steps=150)]
    text = render_report(
        [row("native", 2.0, [0.01, 0.011], steps=None), row("llm-compressor", 10.0, [0.02, 0.021]), *longer]
    )
    usual, apart = text.split("trained for 150 steps")
    assert "5.0x faster" in usual and "10.0x faster" not in usual and "10.0x faster" in apart


def test_engines_that_saw_other_tokens_are_not_compared() -> None:
    other = row("llm-compressor", 20.0, [0.02, 0.02], calibration={"sha256": "other"})
    with pytest.raises(ValueError, match="saw different calibration tokens"):
        render_report([row("native", 2.0, [0.01, 0.01]), other])


def test_the_exponent_is_the_slope_of_the_logarithms() -> None:
    assert report.slope([1, 2, 4], [3, 12, 48]) == pytest.approx(2.0)
    assert report.slope([4, 8, 16], [5, 5, 5]) == pytest.approx(0.0)
