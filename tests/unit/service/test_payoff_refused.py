"""What no payoff map can be measured of is refused in one sentence, with the nearest thing that works."""

from __future__ import annotations

import pytest

from backend.cli.verbs.payoff import read_parameters
from backend.domain.errors import RequestError, UnknownModel
from backend.domain.evaluation.document import Speculation, Variant
from backend.domain.planner import draft_payoff
from backend.service import Workspace
from backend.service.evaluations import payoff as measuring
from backend.service.plans import payoff_maps
from tests.payoffs import KEY


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        (
            "http://127.0.0.1:1/v1",
            RequestError,
            "served elsewhere, and drafts cannot be put before it: give a model or an artifact",
        ),
        ("no-such-model", UnknownModel, "no-such-model"),
    ],
)
def test_what_cannot_be_a_target_is_refused(home: Workspace, source: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        measuring.prepare(home, source)


@pytest.mark.parametrize("streams", [(), (0,), (4, 1000)])
def test_streams_that_are_none_are_refused(home: Workspace, streams: tuple[int, ...]) -> None:
    with pytest.raises(RequestError, match="whole numbers from 1 to 256"):
        measuring.prepare(home, "starter", streams)


def test_a_target_that_speculates_already_is_refused(home: Workspace) -> None:
    guessing = Variant(
        name="fast", source="a-1", kind="artifact", model_path="/m", speculation=Speculation(method="ngram", tokens=3)
    )
    with pytest.raises(
        RequestError, match="fast speculates already: give the model, or an artifact without a speculate step"
    ):
        measuring.require_original(home, guessing)


@pytest.mark.parametrize(
    ("written", "number"), [("5M", 5_000_000), ("500k", 500_000), ("1.5B", 1_500_000_000), ("1234", 1234)]
)
def test_a_number_of_parameters_may_have_a_suffix(written: str, number: int) -> None:
    assert read_parameters(written) == number


@pytest.mark.parametrize("written", ["", "0", "five", "5 M M", "-3M", "1e400"])
def test_what_is_no_number_of_parameters_is_refused(written: str) -> None:
    with pytest.raises(RequestError, match=r"not a number of parameters: write .* such as 5M"):
        read_parameters(written)


def test_a_map_of_anything_else_is_not_found(home: Workspace) -> None:
    assert payoff_maps.find_by_key(home, KEY) is None
    assert draft_payoff.map_key(KEY.model, KEY.weights, KEY.serving, {}, {}).vllm == "unknown"
