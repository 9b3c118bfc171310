"""Serve jobs: what may be asked, when nobody has asked for long enough, how much memory is thought to be needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from backend.domain.errors import BelowFloor, EngineMissing, NotEnoughMemory, NotFound, RequestError
from backend.domain.evaluation.document import EvaluateOptions, Variant
from backend.domain.jobs.jobs import JobKind, JobState, ServeSpec
from backend.domain.needs import engine_costs, kv_cache_tokens
from backend.domain.recipe.recipe import Serving
from backend.hardware import probe
from backend.service import Workspace
from backend.service.evaluations import evaluations
from backend.service.jobs import artifacts, jobs
from backend.service.models import variants
from backend.service.serving import serve
from backend.worker.kinds.serve import IdleTimer
from tests import studio
from tests.homes import open_home


def test_attention_is_renewed_by_every_token() -> None:
    attention = IdleTimer(now=100.0)
    assert attention.idle_s(160.0) == 60
    assert attention.update(12.0, now=160.0)
    assert not attention.update(12.0, now=170.0)
    assert (attention.tokens, attention.idle_s(175.0)) == (12.0, 15.0)


def test_a_url_is_not_served_again() -> None:
    with pytest.raises(ValidationError, match="somebody else"):
        ServeSpec(variants=(Variant(name="u", source="http://x", kind="url", url="http://x"),))


def test_nothing_to_start_is_refused(home: Workspace) -> None:
    with pytest.raises(RequestError, match="nothing to start"):
        serve.prepare(home, ["http://127.0.0.1:8000"])


def test_without_the_engine_nothing_starts(tmp_path: Path) -> None:

    bare = open_home(tmp_path / "home", engines=tmp_path / "none")
    with pytest.raises(EngineMissing, match="engines install serve"):
        serve.start(bare, ["starter"])
    assert jobs.listing(bare) == []


def test_files_that_are_gone_are_told_before_the_start(home: Workspace) -> None:
    artifact_id = studio.artifact(home, studio.optimize_job(home, JobState.SUCCEEDED), studio.optimize_spec(home).model)
    with pytest.raises(NotFound, match=f"{artifact_id} are no longer"):
        serve.start(home, ["starter", artifact_id])


def test_a_ruined_artifact_is_asked_for_before_it_is_served_or_measured(home: Workspace) -> None:
    ruined = {"kl_mean": 1.66, "below_floor": "The result is ruined."}
    job = studio.optimize_job(home, JobState.SUCCEEDED)
    artifact_id = studio.artifact(home, job, studio.optimize_spec(home).model, ruined)
    assert variants.floor_warnings(home, ["starter", artifact_id, artifact_id, "a-0123"]) == [
        f"w8a8 ({artifact_id}): The result is ruined."
    ]
    with pytest.raises(BelowFloor, match=r"The result is ruined\. To use it all the same, give anyway"):
        evaluations.prepare(home, ["starter", artifact_id], EvaluateOptions())
    folder = Path(artifacts.show(home, artifact_id).path) / "model"
    folder.mkdir(parents=True)
    (folder / "config.json").touch()
    with pytest.raises(BelowFloor):
        serve.start(home, [artifact_id])
    assert [each.source for each in serve.prepare(home, [artifact_id], anyway=True).variants] == [artifact_id]
    assert (
        evaluations.prepare(home, ["starter", artifact_id], EvaluateOptions(), anyway=True).variants[1].source
        == artifact_id
    )


def test_more_servers_than_memory_are_refused_with_figures(
    home: Workspace, tmp_path: Path, starter_draft: Path
) -> None:
    links = [tmp_path / f"model-{number}" for number in range(probe.total_memory() // serve.VLLM_BYTES + 1)]
    for link in links:
        link.symlink_to(starter_draft)
    with pytest.raises(
        NotEnoughMemory, match=r"takes about \d+\.\d GB of memory \(estimated\) and \d+\.\d GB are free"
    ):
        serve.prepare(home, [str(link) for link in links])


def test_the_estimate_is_server_weights_and_the_cache_of_its_engine(home: Workspace, starter_target: Path) -> None:
    serving = Serving(max_model_len=1024, max_num_seqs=10)
    fields: dict[str, Any] = {
        "name": "s",
        "source": "starter",
        "kind": "model",
        "model_path": str(starter_target),
        "bytes_on_disk": 7,
    }
    variant = Variant.model_validate({**fields, "serving": serving})
    token = studio.optimize_spec(home).model.kv_bytes_per_token
    sequence = 1024 + kv_cache_tokens.BLOCK
    assert serve.estimate_memory(home, variant) == serve.VLLM_BYTES + 7 + 10 * sequence * token
    pooled = variant.model_copy(update={"serving": serving.on_engine("llama.cpp")})
    costs = engine_costs.find_costs("llama.cpp", "cpu")
    assert costs is not None
    assert serve.estimate_memory(home, pooled) == costs.runtime_bytes[1] + 7 + 10 * 1024 * token


def test_a_job_that_serves_what_is_asked_is_used_again(home: Workspace) -> None:
    both = jobs.submit(home, studio.serve_spec("a", "b"), "Serve a and b")
    for required in (["a", "b"], ["b", "a"], ["b"], ["a", "http://127.0.0.1:1"]):
        assert serve.start(home, required).id == both.id
    assert serve.find_active(home, ["a", "c"]) is None and serve.find_active(home, ["http://127.0.0.1:1"]) is None
    assert jobs.count(home, kinds=[JobKind.SERVE]) == 1


def test_a_job_that_is_stopping_or_ended_is_not_used_again(home: Workspace) -> None:
    stopping = studio.put(home, studio.serve_spec("a"), "Serve a", JobState.RUNNING, cancel_requested=True)
    assert serve.find_active(home, ["a"]) is None and serve.find_latest(home, ["a"]) == stopping
    ended = studio.put(home, studio.serve_spec("a", "b"), "Serve a and b", JobState.FAILED, error="no")
    assert serve.find_active(home, ["a", "b"]) is None and serve.find_latest(home, ["b", "a"]) == ended
    assert serve.find_latest(home, ["b"]) is None, "how another pair ended says nothing of this one"


def test_the_endpoints_are_those_of_the_latest_attempt(home: Workspace) -> None:
    job = studio.put(
        home,
        studio.serve_spec("a"),
        "Serve a",
        JobState.RUNNING,
        events=[studio.serving(("a", "http://127.0.0.1:1/v1"))],
    )
    assert [result.url for result in serve.endpoints(home, job.id)] == ["http://127.0.0.1:1/v1"]
    again = studio.put(home, studio.serve_spec("b"), "Serve b", JobState.STARTING)
    assert serve.endpoints(home, again.id) == []


def test_how_long_loading_took_is_what_the_newest_job_says(home: Workspace) -> None:
    assert serve.measured_starts(home) == {}
    for seconds in (3.0, 4.0):
        studio.put(
            home,
            studio.serve_spec("a", "b"),
            "Serve",
            JobState.SUCCEEDED,
            result=f'{{"ready_seconds": {{"a": {seconds}, "b": 1.0}}}}',
        )
    assert serve.measured_starts(home) == {"a": 4.0, "b": 1.0}
    studio.put(
        home, studio.serve_spec("b"), "Serve", JobState.RUNNING, events=[studio.serving(("b", "http://127.0.0.1:1/v1"))]
    )
    assert serve.measured_starts(home) == {"a": 4.0, "b": 1.0}
    studio.put(
        home, studio.serve_spec("c"), "Serve", JobState.RUNNING, events=[studio.serving(("c", "http://127.0.0.1:1/v1"))]
    )
    assert serve.measured_starts(home)["c"] == 1.0
