"""Every step that a server silently leaves out is found, with its likely cause, and no honest server is accused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backend.domain.evaluation.comparison import compare
from backend.domain.evaluation.evidence import draft_counts, engine_log, weight_findings
from backend.domain.evaluation.evidence.schema import Drafting, Finding, failed_findings, worst_findings
from backend.domain.load import counters
from backend.domain.recipe.recipe import Serving
from tests import no_ops, recorded_servers, simulated
from tests.no_ops import NO_OPS, NoOp


@pytest.mark.parametrize("no_op", NO_OPS, ids=lambda each: each.name)
def test_what_is_silently_not_done_is_found_with_its_likely_cause(no_op: NoOp) -> None:
    assert failed_findings(no_op.asked.findings()) == []
    result = no_op.find_failed()
    assert result is not None
    assert result.cause
    assert result.words.endswith(".")


def test_no_honest_server_is_accused() -> None:
    assert no_ops.false_alarms(list(no_ops.honest_runs(200))) == []


@pytest.mark.parametrize("name", recorded_servers.NAMES)
def test_no_real_server_is_accused_and_most_of_it_is_proven(name: str) -> None:
    judged = recorded_servers.judged(name)
    assert failed_findings(judged) == []
    assert {each.what for each in judged if each.proven} >= {
        "quantization",
        "compilation",
        "prefix_cache",
        "dtype",
        "context",
    }
    value = recorded_servers.REQUESTS[name].get("speculation")
    assert [each.what for each in judged if each.what == "speculation"] == ["speculation"] * bool(value)


@pytest.mark.parametrize(
    ("name", "instead", "what"),
    [
        ("smollm2", {"serving": {"kv_cache_dtype": "fp8"}}, "kv_cache"),
        ("smollm2", {"serving": {"max_model_len": 4096}}, "context"),
        ("smollm2", {"serving": {"enforce_eager": True}}, "compilation"),
        ("smollm2", {"speculation": {"method": "ngram", "tokens": 3}}, "speculation"),
        ("smollm2-w8a8", {"bytes_on_disk": 269_060_552}, "quantization"),
        ("smollm2-w8a8-ngram", {"speculation": {"method": "ngram", "tokens": 5}}, "speculation"),
        ("smollm2-w8a8-ngram", {"speculation": None}, "speculation"),
    ],
)
def test_a_real_server_that_was_asked_something_else_is_found(name: str, instead: dict, what: str) -> None:
    assert what in {each.what for each in failed_findings(recorded_servers.judged(name, **instead))}


def test_the_precision_of_the_cache_is_measured_and_not_only_read() -> None:
    (result,) = [each for each in recorded_servers.judged("smollm2") if each.what == "kv_cache"]
    assert "2 bytes an element" in result.words


def test_what_nobody_can_see_is_no_accusation() -> None:
    run = no_ops.honest("w8a8", Serving(max_num_seqs=256), no_ops.DRAFTED)
    silent = replace(run, surface=replace(run.surface, arguments={}))
    assert [each.what for each in silent.findings() if each.proven is None] == ["streams"]
    assert failed_findings(silent.findings()) == []


@pytest.mark.parametrize(
    ("required", "stated", "same"),
    [
        ("awq", "auto_awq", True),
        ("awq", "awq_marlin", True),
        ("gptq", "auto_gptq", True),
        ("gptq", "moe_wna16", True),
        ("compressed-tensors", "compressed-tensors", True),
        ("awq", "None", False),
        ("fp8", "awq_marlin", False),
        (None, "None", True),
        (None, "fp8", False),
    ],
)
def test_the_names_that_vllm_has_for_a_format_are_known(required: str | None, stated: str, same: bool) -> None:
    log = engine_log.parse_engine_log(no_ops.Surface(quantization=stated).log())
    assert log.settings["quantization"] == stated
    assert weight_findings.quantization_finding(required, log).proven is same


def test_of_several_starts_the_worst_counts() -> None:
    done = Finding(what="context", proven=True, words="a.")
    unseen, missing = (
        Finding(what="context", proven=None, words="b."),
        Finding(what="context", proven=False, words="c."),
    )
    assert worst_findings([[done], [missing], [unseen]]) == [missing]
    assert worst_findings([[done], [unseen]]) == [unseen]


def test_a_variant_that_was_not_served_as_asked_gets_no_verdict() -> None:
    results = simulated.evaluation().variants
    missing = Finding(what="speculation", proven=False, words="It does not speculate.", cause="The flag.")
    results = [each.model_copy(update={"findings": [missing]}) if each.name == "draft" else each for each in results]
    outcomes = {row.variant: row for row in compare(results)}
    assert outcomes["draft"].outcome == "not_comparable"
    assert outcomes["draft"].why is not None and outcomes["draft"].why.cause == "not_as_asked"
    assert outcomes["w8a8"].why is None


METRICS = """vllm:generation_tokens_total{engine="0"} 500.0
vllm:spec_decode_num_drafts_total{engine="0"} 100.0
vllm:spec_decode_num_draft_tokens_total{engine="0"} 300.0
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 150.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 80.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 50.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="2"} 20.0
"""


def test_acceptance_by_position_gives_rates_and_lengths() -> None:
    counted = {name: int(value) for name, value in counters.parse_counters(METRICS).items()}
    drafting = draft_counts.count_drafting([counted, counted], [])
    assert drafting is not None
    assert drafting.accepted_by_position == (160, 100, 40)
    assert drafting.rates == [0.8, 0.5, 0.2]
    assert drafting.length == 2.5
    assert drafting.lengths == pytest.approx([0.2, 0.3, 0.3, 0.2])
    assert sum((tokens + 1) * share for tokens, share in enumerate(drafting.lengths)) == pytest.approx(drafting.length)


def test_a_server_without_speculation_has_no_acceptance() -> None:
    assert draft_counts.count_drafting([{"generation_tokens": 5}], []) is None
    assert Drafting(drafts=0, drafted_tokens=0, accepted_tokens=0).length is None
