"""What a job used and what is left of it, read from a real store."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import event

from app.jobs.resource_panel import use_sentence
from backend.cli.verbs import jobs as verbs
from backend.domain.errors import NotFound
from backend.domain.evaluation.blocks.sequential_tests import ContinuedEvaluation
from backend.domain.evaluation.document import EvaluateOptions, Variant
from backend.domain.jobs.eta import TimeLeft
from backend.domain.jobs.jobs import EvaluateSpec, Event, JobKind, JobState, OptimizeSpec
from backend.domain.recipe import recipe
from backend.present.charts import alt_text, resources
from backend.service import Workspace
from backend.service.jobs import jobs, progress, view_cache
from backend.service.jobs.progress import ResourceUse
from backend.store import history
from tests import studio


def used(at: datetime, rss: int = 10**9, cpu: float = 50.0) -> Event:
    return Event(kind="resource", at=at, data={"rss_bytes": rss, "cpu_percent": cpu})


def add(home: Workspace, job_id: str, *events: Event) -> None:
    with home.store.session() as session:
        history.append(session, job_id, list(events))


def test_resources_are_of_the_latest_attempt_and_no_sign_of_life(home: Workspace) -> None:
    job = studio.optimize_job(home, JobState.RUNNING, events=[Event(kind="phase", phase="load", message="Loading")])
    assert job.started_at is not None
    begun, heard = job.started_at, jobs.show(home, job.id).event_at
    add(home, job.id, used(begun - timedelta(hours=1), rss=9 * 10**9), used(begun + timedelta(seconds=5)))
    assert progress.resource_use(home, jobs.show(home, job.id)) == [ResourceUse(5.0, 10**9, 50.0)]
    assert jobs.show(home, job.id).event_at == heard
    assert [event.kind for event in jobs.timeline(home, job.id)] == ["phase"]


def test_thousands_of_readings_are_five_hundred_points_with_the_highest_kept() -> None:
    uses = [ResourceUse(float(n), 10**9 + (n == 1234) * 10**9, float(n % 2) * 100) for n in range(3000)]
    thin = progress.thin(uses, 500)
    assert len(thin) == 500 and max(use.rss_bytes for use in thin) == 2 * 10**9
    assert {use.cpu_percent for use in thin} == {50.0}
    assert progress.thin(uses[:500], 500) == uses[:500]


def test_what_is_left_goes_by_its_own_rates_then_by_earlier_jobs_then_is_unknown(home: Workspace) -> None:
    job = studio.optimize_job(home, JobState.RUNNING)
    assert job.started_at is not None
    begun = job.started_at
    assert progress.time_left(home, job, begun) is None
    studio.install_job(home, JobState.SUCCEEDED)
    assert progress.time_left(home, job, begun) is None
    for seconds in (100, 160):
        studio.optimize_job(home, JobState.SUCCEEDED, started_at=begun, finished_at=begun + timedelta(seconds=seconds))
    earlier = progress.time_left(home, job, begun + timedelta(seconds=40))
    assert earlier is not None and (earlier.low, earlier.high) == (60, 120) and "like it" in earlier.basis
    steps = [
        Event(kind="progress", phase="quantize", at=begun + timedelta(seconds=10 * n), progress=0.1 * n)
        for n in range(1, 6)
    ]
    add(home, job.id, *steps)
    own = progress.time_left(home, jobs.show(home, job.id), begun + timedelta(seconds=50))
    assert own is not None and own.low == pytest.approx(50) and "rates" in own.basis
    ended = studio.optimize_job(home, JobState.FAILED)
    assert progress.time_left(home, ended) is None


def test_how_long_an_evaluation_takes_goes_by_those_with_tasks_where_it_has_any(home: Workspace) -> None:
    url = "http://127.0.0.1:9/v1"
    begun = datetime(2026, 11, 21, tzinfo=UTC)

    def make_spec(*tasks: str) -> EvaluateSpec:
        variants = tuple(Variant(name=name, source=url, kind="url", url=url) for name in ("a", "b"))
        return EvaluateSpec(variants=variants, options=EvaluateOptions(concurrency=(1, 4), repeats=5, tasks=tasks))

    def took(minutes: int, *tasks: str) -> None:
        finished = begun + timedelta(minutes=minutes)
        studio.put(home, make_spec(*tasks), "Evaluate", JobState.SUCCEEDED, started_at=begun, finished_at=finished)

    assert progress.expected_evaluation_time(home, make_spec("next-line")) is None
    took(10)
    assert progress.expected_evaluation_time(home, make_spec()) == TimeLeft(
        600, 600, "at the pace of an earlier evaluation here"
    )
    only = progress.expected_evaluation_time(home, make_spec("next-line"))
    assert only is not None and only.low == 600 and only.basis.endswith("here, the tasks not counted")
    took(40, "next-line")
    with_tasks, without = (progress.expected_evaluation_time(home, make_spec(*tasks)) for tasks in (("next-line",), ()))
    assert with_tasks is not None and with_tasks.low == with_tasks.high == 2400
    assert without is not None and without.low == without.high == 600


def test_a_job_says_what_it_has_cost_so_far(
    home: Workspace, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The time of the attempt at an evaluation's own price, else at that of the machine, else nothing."""
    monkeypatch.setenv("WHETSTONE_HOME", str(home.settings.home))
    start = datetime.now(UTC) - timedelta(minutes=30)
    url = Variant(name="a", source="http://127.0.0.1:1", kind="url", url="http://127.0.0.1:1")
    options = EvaluateOptions(price_per_hour=2.0, discount=0.5)
    priced = studio.put(
        home, EvaluateSpec(variants=(url,), options=options), "Evaluate", JobState.RUNNING, started_at=start
    )
    cost = progress.find_cost(home, priced, start + timedelta(minutes=30))
    assert cost == (0.5, 1.0) and cost is not None and cost.words == "0.500 USD at 1.00 USD per hour"
    other = studio.install_job(home, JobState.RUNNING, started_at=start)
    assert progress.find_cost(home, other) is None and progress.find_cost(home, studio.install_job(home)) is None
    verbs.show(other.id)
    assert "Cost" not in capsys.readouterr().out
    monkeypatch.setenv("WHETSTONE_PRICE_PER_HOUR", "3")
    verbs.show(other.id)
    assert "Cost so far: 1.50 USD at 3.00 USD per hour." in capsys.readouterr().out
    verbs.show(other.id, json=True)
    assert json.loads(capsys.readouterr().out)["cost"]["per_hour"] == 3.0


def test_only_blocks_that_are_still_to_be_measured_take_time(home: Workspace) -> None:
    """Those of a rule are its first look's at the least; what ended early is no measure of all that it might have
    taken."""
    url = "http://127.0.0.1:9/v1"
    begun = datetime(2026, 11, 21, tzinfo=UTC)
    variants = tuple(Variant(name=name, source=url, kind="url", url=url) for name in ("a", "b"))
    more = ContinuedEvaluation(evaluation="e-1", folder="none", blocks=5)

    def spec(continues: ContinuedEvaluation | None = None, **chosen: object) -> EvaluateSpec:
        return EvaluateSpec(
            variants=variants, options=EvaluateOptions(requests=4).model_copy(update=chosen), continues=continues
        )

    ended = begun + timedelta(minutes=6)
    rule = spec(until_decided=True, max_blocks=20)
    studio.put(home, rule, "Evaluate", JobState.SUCCEEDED, started_at=begun, finished_at=ended, result='{"blocks": 6}')
    left = progress.expected_evaluation_time(home, spec(more, repeats=11))
    assert left is not None and (left.low, left.high) == (360, 360), "6 of 11 blocks"
    again = progress.expected_evaluation_time(home, rule)
    assert again is not None and again.low == 360 and again.high > 2 * 360


def test_more_requests_take_longer(home: Workspace) -> None:
    """A million requests took "16 to 60 s", whatever an earlier evaluation asked."""
    url = "http://127.0.0.1:9/v1"
    begun = datetime(2026, 11, 21, tzinfo=UTC)

    def make_spec(requests: int) -> EvaluateSpec:
        variants = tuple(Variant(name=name, source=url, kind="url", url=url) for name in ("a", "b"))
        return EvaluateSpec(
            variants=variants, options=EvaluateOptions(concurrency=(1, 4), repeats=5, requests=requests)
        )

    studio.put(
        home, make_spec(8), "Evaluate", JobState.SUCCEEDED, started_at=begun, finished_at=begun + timedelta(minutes=1)
    )
    same, many = (progress.expected_evaluation_time(home, make_spec(requests)) for requests in (8, 1_000_000))
    assert same is not None and (same.low, same.high) == (60, 60)
    assert many is not None and many.low > 86400 / 2 and many.high > many.low


def test_jobs_of_other_models_count_by_what_they_had_to_do(home: Workspace) -> None:
    """After one job of 9 minutes every other recipe took "up to 9 min"."""
    begun = datetime(2026, 11, 21, tzinfo=UTC)
    done = studio.optimize_job(home, JobState.SUCCEEDED, started_at=begun, finished_at=begun + timedelta(seconds=540))
    spec = OptimizeSpec.model_validate(jobs.specification(home, done.id))
    heavy = recipe.read({"steps": [{"quantize": {"method": "awq", "samples": 512}}]})
    light, other = spec, spec.model_copy(update={"recipe": heavy})
    same = progress.expected_time(home, JobKind.OPTIMIZE, done.title, spec=light)
    assert same is not None and (same.low, same.high) == (540, 540)
    alike = progress.expected_time(home, JobKind.OPTIMIZE, "another title", spec=light)
    more = progress.expected_time(home, JobKind.OPTIMIZE, "another title", spec=other)
    assert alike is not None and more is not None
    assert alike.high == pytest.approx(540) and more.low > 1.5 * alike.high and "what each had to do" in more.basis


def test_the_chart_has_units_and_says_where_its_figures_come_from() -> None:
    figure = resources.resources([(5.0, 4e8, 90.0), (600.0, 2.5e9, 180.0)], "dark")
    memory, cpu = figure["data"]
    assert memory["y"] == [0.4, 2.5] and memory["x"] == [pytest.approx(1 / 12), 10.0]
    assert cpu["y"] == [90.0, 180.0] and cpu["yaxis"] == "y2"
    assert figure["layout"]["yaxis"]["title"]["text"] == "Memory (GB)"
    assert figure["layout"]["xaxis"]["title"]["text"] == "Since the start (min)"
    assert "/proc" in memory["hovertext"][0]
    header, *rows = alt_text.csv(figure).splitlines()
    assert header == "Series,Since the start (min),Memory (GB),Provenance,CPU (% of one core)"
    assert [row.split(",")[0] for row in rows] == ["Memory", "Memory", "Processor", "Processor"] and rows[2].endswith(
        ",90.0"
    )
    assert resources.resources([])["data"] == []
    assert "At most 2.5 GB" in use_sentence([ResourceUse(5.0, 4e8, 90.0), ResourceUse(600.0, 2.5e9, 180.0)])


def test_fifty_pages_that_watch_a_job_read_it_once_until_it_is_to_be_read_again(
    home: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, statements = 100.0, list[str]()
    monkeypatch.setattr(view_cache, "_clock", lambda: now)
    job = studio.optimize_job(home, JobState.RUNNING, events=[Event(kind="phase", phase="load", message="Loading")])
    event.listen(home.store.engine, "before_cursor_execute", lambda *items: statements.append(items[2]))

    def read_page(phases: int, reads: bool) -> None:
        statements.clear()
        view, events, _ = view_cache.read_snapshot(home, job.id)
        view_cache.read_time_and_cost(home, view)
        view_cache.read_resource_use(home, view)
        assert len(events) == phases and any(each.startswith("SELECT") for each in statements) == reads

    read_page(1, reads=True)
    add(home, job.id, Event(kind="phase", phase="publish", message="Publishing"))
    for _ in range(50):
        read_page(1, reads=False)
    view_cache.forget(home, job.id)
    read_page(2, reads=True)
    add(home, job.id, Event(kind="note", message="there"))
    now += view_cache.SNAPSHOT_MAX_AGE_S + 0.01
    read_page(3, reads=True)
    with pytest.raises(NotFound):
        view_cache.read_snapshot(home, "j-none")
