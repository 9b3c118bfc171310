"""A job's life on the command line: two jobs by one submit, keys, limits, the queue with its reasons, draining."""

from __future__ import annotations

import json
from typing import Any

import pytest

from backend.domain.jobs.jobs import JobState
from backend.service import Workspace
from tests import homes
from tests.integration.cli.calling import one_sentence, process, whetstone


def answer_of(home: Workspace, *arguments: str) -> Any:
    done = whetstone(home.settings.home, *arguments, "--json")
    assert done.returncode == 0, done
    return json.loads(done.stdout)


def test_one_submit_is_two_jobs_and_the_same_key_is_the_same_two(home: Workspace) -> None:
    requests = (
        "optimize",
        "starter",
        "--recipe",
        "w8a8",
        "--then-evaluate",
        "--priority",
        "high",
        "--idempotency-key",
        "nightly",
    )
    first = answer_of(home, *requests)
    assert answer_of(home, *requests)["id"] == first["id"]
    second, again = answer_of(home, "jobs", "list")
    assert again["id"] == first["id"] and second["after"] == first["id"]
    refused = one_sentence(
        whetstone(home.settings.home, "optimize", "starter", "--recipe", "awq", "--idempotency-key", "nightly")
    )
    assert f"{first['id']} was submitted with that key and asks for something else" in refused
    waits = {row["id"]: row["waiting"]["sentence"] for row in answer_of(home, "jobs", "queue")}
    assert "No supervisor is running" in waits[first["id"]] and f"It comes after {first['id']}" in waits[second["id"]]
    answer_of(home, "jobs", "cancel", first["id"])
    reply = answer_of(home, "jobs", "show", second["id"])
    assert (reply["state"], reply["ending"]) == ("cancelled", "dependency") and first["id"] in reply["cause"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--timeout", "soon"), "is wrong: `soon` is no time such as 90s, 30m or 2h."),
        (("--memory", "much"), "--memory is wrong: `much` is no size such as 8GB or 16GiB."),
        (("--priority", "urgent"), "--priority"),
        (("--retries", "99"), "--retries"),
        (("--cores", "0"), "--cores"),
        (("--idempotency-key", "k" * 300), "A key has 1 to 200 characters: shorten --idempotency-key."),
    ],
)
def test_what_cannot_be_asked_is_refused_in_a_sentence_before_anything_is_submitted(
    home: Workspace, flags: tuple[str, ...], message: str
) -> None:
    assert message in one_sentence(whetstone(home.settings.home, "optimize", "starter", "--recipe", "w8a8", *flags))
    assert answer_of(home, "jobs", "list") == []


def test_terms_and_priority_stand_in_the_jobs_record(home: Workspace) -> None:
    job = answer_of(
        home, "optimize", "starter", "--recipe", "w8a8", "--timeout", "2h", "--retries", "1", "--cores", "1"
    )
    assert job["terms"]["run_timeout_s"] == 7200.0 and job["claim"]["cores"] == 1
    assert answer_of(home, "jobs", "prioritize", job["id"], "low")["terms"]["priority"] == "low"
    reply = answer_of(home, "jobs", "show", job["id"])
    assert reply["attempts"] == [] and reply["waiting"]["sentence"].startswith("No supervisor is running")


def test_only_what_was_put_aside_is_released(home: Workspace) -> None:
    job = answer_of(home, "optimize", "starter", "--recipe", "w8a8")["id"]
    assert "was not put aside" in one_sentence(whetstone(home.settings.home, "jobs", "release", job))


def called(home: Workspace, *arguments: str) -> Any:
    done = process(home.settings.home, *arguments, "--json")
    assert done.returncode == 0, done
    return json.loads(done.stdout)


@pytest.mark.campaign
@pytest.mark.process
def test_a_drained_supervisor_ends_and_takes_jobs_again_once_started(home: Workspace) -> None:
    """Each call a process of its own, as a user makes it."""
    assert "nothing to drain" in one_sentence(process(home.settings.home, "supervisor", "drain"))
    called(home, "supervisor", "start")
    assert called(home, "supervisor", "drain") == {"ended": True}
    job = called(home, "optimize", "starter", "--recipe", "ngram")["id"]
    assert "was drained" in called(home, "jobs", "queue")[0]["waiting"]["sentence"]
    called(home, "supervisor", "start")
    assert homes.until_ended(home, job).state is JobState.SUCCEEDED
