"""An evaluation of endpoints that misbehave, each in its own way, beside a sound one: counted, said, never a silent
zero."""

from __future__ import annotations

import csv
import io
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.domain.errors import RequestError
from backend.domain.evaluation.document import Evaluation, VariantResult
from backend.domain.jobs.jobs import JobState
from backend.domain.maths.intervals import wilson
from backend.present.tables import evaluation as tables
from backend.present.words.measurements import quality_cost
from backend.present.words.verdicts import describe_comparison
from backend.service import Workspace
from backend.service.evaluations import evaluations
from backend.service.jobs import jobs, supervisors
from backend.service.models import variants
from tests.fakes.running import running, write_prompts
from tests.homes import open_home, until_ended

FAULTS = {
    "reset_midway": "reset",
    "malformed_event": "malformed",
    "html": "malformed",
    "http_429": "http_429",
    "http_503": "http_503",
    "hang": "timeout",
}
PROMPTS = ("one", "two", "three")


@pytest.fixture(scope="module")
def shared_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    opened = open_home(tmp_path_factory.mktemp("faults") / "home")
    yield opened
    jobs.cancel_all_and_stop(opened)


@pytest.fixture(scope="module")
def measured(shared_home: Workspace, tmp_path_factory: pytest.TempPathFactory) -> tuple[Evaluation, str]:
    """Every fault as a variant of one evaluation, with quality, and its report."""
    workload = write_prompts(tmp_path_factory.mktemp("words"), *({"prompt": word} for word in PROMPTS))
    options = evaluations.read_options(
        concurrency=(1,),
        requests=2,
        repeats=1,
        max_tokens=8,
        timeout_s=3.0,
        warmup_requests=0,
        price_per_hour=1.0,
        workload=workload,
        prefix_cache="off",
    )
    with running("broken_server.py") as url:
        sources = [f"{url}#ok", *(f"{url}#{fault}" for fault in FAULTS), f"{url}#no_usage"]
        job = evaluations.submit(shared_home, evaluations.prepare(shared_home, sources, options))
        supervisors.ensure_running(shared_home)
        ended = until_ended(shared_home, job.id)
    assert ended.state is JobState.SUCCEEDED, ended.error
    shown = evaluations.show(shared_home, str(ended.result["evaluation"]))
    return shown.document, (Path(shown.path) / "report.html").read_text()


def result_with(document: Evaluation, fault: str) -> VariantResult:
    return next(result for result in document.variants if result.variant.source.endswith(f"#{fault}"))


def test_every_fault_is_counted_under_its_kind_and_has_no_figures(measured: tuple[Evaluation, str]) -> None:
    for fault, kind in FAULTS.items():
        level = result_with(measured[0], fault).levels[0]
        assert level.errors == {kind: 2}, fault
        assert level.ttft_ms is level.tpot_ms is level.client_latency_ms is None
        assert level.output_tokens is None
    sound = result_with(measured[0], "ok").levels[0]
    assert sound.errors == {} and sound.ttft_ms is not None


def test_answers_without_a_count_are_so_counted(measured: tuple[Evaluation, str]) -> None:
    level = result_with(measured[0], "no_usage").levels[0]
    assert (level.invocation_errors, level.tokenizer_failed, level.empty_responses) == (0, 2, 2)
    assert level.ttft_ms is not None and level.tpot_ms is None


def test_answers_without_a_count_have_no_throughput_in_tokens_anywhere(measured: tuple[Evaluation, str]) -> None:
    document, report = measured
    result = result_with(document, "no_usage")
    level = result.levels[0]
    assert level.input_tokens_per_s is level.output_tokens_per_s is level.steady_output_tokens_per_s is None
    assert level.requests_per_s is not None and level.requests_per_s > 0
    assert level.price is not None and set(level.price.model_dump().values()) == {None}
    assert result_with(document, "ok").levels[0].price.per_million_output is not None
    stored = json.loads(document.model_dump_json())["variants"][document.variants.index(result)]["levels"][0]
    assert stored["output_tokens_per_s"] is None
    row = next(row for row in csv.DictReader(io.StringIO(tables.csv(document))) if row["Variant"] == result.name)
    assert (row["Output tokens/sec (count)"], row["Price per million output tokens (USD)"]) == ("", "")
    assert "2 of 2 answers came without a token count, so tokens/s and prices are not known" in report
    assert "no verdict, tokens not counted" in report
    assert {result_with(document, fault).levels[0].output_tokens_per_s for fault in FAULTS} == {0}


def test_a_variant_whose_tokens_were_not_counted_gets_no_verdict_on_them(measured: tuple[Evaluation, str]) -> None:
    name = result_with(measured[0], "no_usage").name
    by_name = {row.metric: describe_comparison(row) for row in measured[0].comparison if row.variant == name}
    reason = f"no verdict: 2 of 2 answers of `{name}` had no token count"
    assert by_name["output_tokens_per_s"] == by_name["tpot_ms"] == reason
    assert "token count" not in by_name["ttft_ms_p50"]


def test_failures_are_no_agreement(measured: tuple[Evaluation, str]) -> None:
    for fault in FAULTS:
        quality = result_with(measured[0], fault).quality
        assert quality is not None and (quality.answers, quality.answers_asked) == (0, len(PROMPTS)), fault
        assert quality.exact_match is quality.token_f1 is quality.exact_ci95 is None, fault
        assert quality_cost(quality) == "none of 3 answers could be compared, KL not measured"
    compared = result_with(measured[0], "no_usage").quality
    assert compared is not None and (compared.answers, compared.exact_match, compared.token_f1) == (3, 1, 1)
    assert compared.exact_ci95 == wilson(3, 3) and compared.token_f1_ci95 is None
    assert (
        quality_cost(compared)
        == "exact match 100.0% (95% 43.9 to 100.0), token F1 100.0% over 3 answers, KL not measured"
    )


def test_no_verdict_is_given_on_them_and_the_report_names_the_errors(measured: tuple[Evaluation, str]) -> None:
    document, report = measured
    failed = {result.name for result in document.variants if result.levels[0].invocation_errors}
    rows = [row for row in document.comparison if row.variant in failed]
    assert rows and all(row.outcome == "not_comparable" or row.ratio is None for row in rows)
    for kind in set(FAULTS.values()):
        assert f"2 ({kind} 2)" in report
    assert "2 of 2 requests failed" in report


def test_an_endpoint_where_nobody_listens_fails_with_one_sentence(shared_home: Workspace) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        options = evaluations.read_options(concurrency=(1,), requests=2, repeats=1, quality=False)
        source = f"http://127.0.0.1:{listener.getsockname()[1]}"
        job = evaluations.submit(shared_home, evaluations.prepare(shared_home, [source], options))
        supervisors.ensure_running(shared_home)
        ended = until_ended(shared_home, job.id)
    assert ended.state is JobState.FAILED
    assert "cannot be reached (connection refused)" in str(ended.error)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("http://me:secret@host:1/v1", "Leave user and password out"),
        ("http://host/v1?key=1", "Leave out the part from ?"),
        ("http://", "is not an address"),
        ("http://host:port", "is not an address"),
    ],
)
def test_an_address_that_cannot_be_one_is_refused_before_anything_starts(
    shared_home: Workspace, source: str, says: str
) -> None:
    with pytest.raises(RequestError, match=r"\w") as refused:
        variants.resolve(shared_home, source)
    assert says in str(refused.value)
    assert "secret" not in str(refused.value)


def test_the_model_of_an_endpoint_is_named_after_the_address(shared_home: Workspace) -> None:
    resolved = variants.resolve(shared_home, "https://api.example/v1/#org/a%20model")
    assert (resolved.url, resolved.served_name) == ("https://api.example/v1", "org/a model")
    assert variants.resolve(shared_home, "https://api.example/v1").served_name is None
