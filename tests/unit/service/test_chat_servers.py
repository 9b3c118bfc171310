"""The servers of a chat before they start: what fits into memory, what they wait for, how long until they answer."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from backend.domain.errors import NotEnoughMemory, NotFound
from backend.domain.jobs.jobs import JobState
from backend.domain.needs import engine_costs, kv_cache_tokens
from backend.domain.recipe.recipe import Serving
from backend.hardware import probe
from backend.present.words import engines
from backend.service import Workspace
from backend.service.jobs import jobs
from backend.service.serving import chat_servers, serve
from tests import simulated, studio

ADDRESS = "http://127.0.0.1:1/v1"


def make_artifact(home: Workspace, *, context: int | None = None) -> str:
    """Return an artifact of the starter, served with a context of so many tokens."""
    recipe = studio.W8A8.model_copy(update={"serving": Serving(max_model_len=context)})
    job = studio.optimize_job(home, JobState.SUCCEEDED)
    return studio.artifact(home, job, studio.optimize_spec(home).model, recipe=recipe)


def context_that_leaves(home: Workspace, left_bytes: int) -> int:
    """Return the tokens of a context whose server leaves so much of the free memory."""
    token = studio.optimize_spec(home).model.kv_bytes_per_token
    cache = probe.free_memory() - left_bytes - serve.VLLM_BYTES
    return (cache // 2 // token // kv_cache_tokens.BLOCK - 2) * kv_cache_tokens.BLOCK


def test_both_servers_are_planned_with_the_predicted_time(home: Workspace) -> None:
    planned = chat_servers.plan_servers(home, ["starter", make_artifact(home)])
    assert len(planned.sources) == 2 and planned.left_out is None and not planned.is_ready
    costs = engine_costs.find_costs("vllm", "cuda" if probe.accelerators() else "cpu")
    if costs is None or costs.ready_seconds is None:
        assert planned.ready is None
        return
    assert planned.ready is not None and planned.ready.basis == f"predicted from {costs.source}"
    assert planned.ready.seconds[0] > 2 * costs.ready_seconds[0]


def test_a_start_that_was_timed_here_replaces_the_prediction(home: Workspace) -> None:
    created = make_artifact(home)
    result = f'{{"ready_seconds": {{"starter": 14.0, "{created}": 11.2}}}}'
    studio.put(home, studio.serve_spec("starter", created), "Serve", JobState.SUCCEEDED, result=result)
    ready = chat_servers.find_ready_time(home, ["starter", created])
    assert ready == chat_servers.ReadyTime((25.2, 25.2), chat_servers.MEASURED)
    assert engines.expected_words((25.2, 25.2)) == "about 25 s"


def test_a_start_in_an_evaluation_of_the_same_files_counts(home: Workspace) -> None:
    document = simulated.evaluation()
    path = studio.optimize_spec(home).model.path
    first = document.variants[0]
    served = first.variant.model_copy(update={"model_path": path, "gguf": None, "serving": Serving()})
    measured = first.model_copy(update={"variant": served, "ready_seconds": 17.5})
    rest = {"variants": [measured, *document.variants[1:]]}
    studio.evaluation(home, document.model_copy(update={**rest, "hardware": {"cpu": "another"}}), "e-1")
    here = chat_servers.find_ready_time(home, ["starter"])
    assert here is None or here.basis != chat_servers.MEASURED, "a start on another machine says nothing of this one"
    studio.evaluation(home, document.model_copy(update={**rest, "hardware": probe.probe()}), "e-2")
    assert chat_servers.find_ready_time(home, ["starter"]) == chat_servers.ReadyTime(
        (17.5, 17.5), chat_servers.MEASURED
    )


def test_nothing_is_said_of_a_time_that_nobody_knows(home: Workspace) -> None:
    assert chat_servers.find_ready_time(home, ["a-000000000000"]) is None
    assert chat_servers.find_ready_time(home, [ADDRESS]) is None


def test_without_memory_for_two_servers_the_result_is_planned_alone(home: Workspace) -> None:
    created = make_artifact(home, context=context_that_leaves(home, serve.VLLM_BYTES // 2))
    planned = chat_servers.plan_servers(home, ["starter", created])
    assert planned.sources == (created,)
    assert planned.left_out is not None and "GB are free" in planned.left_out


def test_without_memory_for_the_result_there_is_no_plan(home: Workspace) -> None:
    created = make_artifact(home, context=context_that_leaves(home, -serve.VLLM_BYTES))
    with pytest.raises(NotEnoughMemory, match="GB are free"):
        chat_servers.plan_servers(home, ["starter", created])


def test_an_original_that_is_gone_leaves_the_result_alone(home: Workspace) -> None:
    created = make_artifact(home)
    planned = chat_servers.plan_servers(home, ["a-000000000000", created])
    assert planned.sources == (created,) and "a-000000000000" in str(planned.left_out)
    with pytest.raises(NotFound):
        chat_servers.plan_servers(home, ["starter", "a-000000000000"])


def test_servers_that_run_are_ready_and_those_that_load_have_some_time_left(home: Workspace) -> None:
    result = '{"ready_seconds": {"a": 40.0, "b": 20.0}}'
    studio.put(home, studio.serve_spec("a", "b"), "Serve", JobState.SUCCEEDED, result=result)
    job = studio.put(home, studio.serve_spec("a", "b"), "Serve", JobState.RUNNING)
    loading = chat_servers.plan_servers(home, ["a", "b"])
    assert not loading.is_ready and loading.ready is not None and 50 < loading.ready.seconds[1] <= 60
    for elapsed_s, left in ((45.0, True), (90.0, False)):
        started = job.model_copy(update={"started_at": datetime.now(UTC) - timedelta(seconds=elapsed_s)})
        assert (chat_servers.find_time_left(home, started) is not None) == left
    studio.put(home, studio.serve_spec("c"), "Serve", JobState.RUNNING, events=[studio.serving(("c", ADDRESS))])
    assert chat_servers.plan_servers(home, ["c"]) == (("c",), None, True, None, None)
    assert chat_servers.plan_servers(home, [ADDRESS]).is_ready


def test_a_job_that_runs_goes_first(home: Workspace) -> None:
    before = studio.optimize_job(home, JobState.RUNNING)
    planned = chat_servers.plan_servers(home, ["starter"])
    assert planned.waits_for == jobs.show(home, before.id).title and planned.left_out is None
