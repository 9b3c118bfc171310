"""A generated workload that an address asks to be long is made in the limited child, also for a model that comes
along."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.catalog.text import workload_text
from backend.domain.errors import InvalidOptions, InvalidWorkload
from backend.domain.workload import generators
from backend.service.evaluations import evaluations, workload_files, workloads
from backend.service.models import variants
from tests.homes import open_home


@pytest.mark.parametrize(
    ("name", "value"), [("requests", 10**9), ("repeats", 10**9), ("seconds", 1e12), ("warmup_requests", 10**9)]
)
def test_a_size_beyond_its_field_is_refused_before_anything_is_made(name: str, value: float) -> None:
    with pytest.raises(InvalidOptions, match="is wrong: it must be at most"):
        evaluations.read_options(workload="question-answering", **{name: value})


@pytest.mark.process
def test_a_long_one_of_our_own_model_comes_to_the_limit_of_the_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = open_home(tmp_path / "home")
    starter = [variants.resolve(home, "starter")]
    monkeypatch.setattr(workload_files, "GENERATING_S", 0.1)
    long = evaluations.read_options(workload="chat", requests=2000)
    workloads.check(long, starter)
    with pytest.raises(InvalidWorkload, match=r"lines of the workload chat cannot be made in 0\.\d s: ask for less"):
        workloads.keep_copy(home, long, starter)


def test_a_look_at_a_page_makes_no_long_workload(tmp_path: Path) -> None:
    """It is planned, so that what is too much or does not fit is refused all the same."""
    starter = [variants.resolve(open_home(tmp_path / "home"), "starter")]
    before = workload_files.make_workload.cache_info().misses
    workloads.check(evaluations.read_options(workload="question-answering", requests=1000), starter)
    with pytest.raises(InvalidWorkload, match="million tokens in all are made"):
        workloads.check(evaluations.read_options(workload="question-answering", requests=100_000), starter)
    assert workload_files.make_workload.cache_info().misses == before


@pytest.mark.process
def test_what_the_child_makes_is_what_is_made_here(tmp_path: Path) -> None:
    home = open_home(tmp_path / "home")
    starter = variants.resolve(home, "starter")
    request = workloads.make_request(evaluations.read_options(workload="chat", requests=200, repeats=1), [starter])
    assert request.prompts > generators.WORKLOAD_KINDS["chat"].prompts
    tokenizer = f"{starter.model_path}/tokenizer.json"
    expected = workload_text.generate("chat", tokenizer, 0, request.context, request.prompts)
    assert workload_files.make_workload(request).content == expected
