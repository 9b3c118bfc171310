"""What pages say of the planned load, and of figures under another."""

from __future__ import annotations

import pytest

from backend.domain.load.load import Load
from backend.domain.planner.planned_load import PlannedLoad, fit_context
from backend.present import load_words
from tests import simulated

CHAT = PlannedLoad()
RATE = CHAT.model_copy(update={"rate": 2.5})


def closed(streams: int) -> Load:
    return Load("closed", streams)


def test_one_line_has_what_was_chosen_and_nothing_else() -> None:
    assert load_words.summary(CHAT) == "Chat, 622/250 tokens · 16 users"
    full = PlannedLoad(
        input_tokens=9, concurrency=1, max_ttft_ms=500, max_tpot_ms=20, max_kl=0.1, target="local", discount=0.2
    )
    assert load_words.summary(full) == (
        "Custom, 9/250 tokens · 1 user · TTFT p95 ≤ 500 ms · TPOT p95 ≤ 20.0 ms · KL ≤ 0.1 · this machine · 20% off"
    )


def test_an_uploaded_workload_is_named_with_the_basis_of_its_tokens() -> None:
    load = CHAT.model_copy(update={"workload": "support-1a2b3c4d"})
    assert load.profile is None and load_words.summary(load) == "support-1a2b3c4d, 622/250 tokens · 16 users"
    assert load_words.workload_basis(2, "starter", answers=True) == (
        "Tokens in: the mean of 2 prompts, by the tokenizer of starter. Tokens out: the mean of the longest answers "
        "that the file names."
    )
    assert "4 characters a token" in load_words.workload_basis(1, None, answers=False)


@pytest.mark.parametrize(("positions", "tokens"), [(872, (622, 250)), (436, (311, 125)), (2, (1, 1))])
def test_a_load_is_shortened_to_the_context_in_its_own_ratio(positions: int, tokens: tuple[int, int]) -> None:
    load = fit_context(CHAT.expected, positions)
    assert (load.input_tokens, load.output_tokens) == tokens
    assert (load_words.shortened(CHAT.expected, load) is None) == (positions == 872)


@pytest.mark.parametrize(
    ("levels", "lengths", "words"),
    [
        ([closed(1), closed(16)], (600.0, 260.0), None),
        ([closed(1)], (622.0, 250.0), "Measured at 1 stream, 622/250 tokens in/out."),
        ([closed(16), closed(4)], (512.4, 128.0), "Measured at 4, 16 streams, 512/128 tokens in/out."),
        ([closed(16)], None, "Measured at 16 streams, tokens not counted."),
        ([Load("rate", 2), Load("rate", 2.5)], (622.0, 250.0), "Measured at 2, 2.5 requests/s, 622/250 tokens in/out."),
        ([closed(4), Load("trace")], (622.0, 250.0), "Measured at 4 streams, the trace, 622/250 tokens in/out."),
        ([], None, None),
    ],
)
def test_figures_of_another_load_say_so(
    levels: list[Load], lengths: tuple[float, float] | None, words: str | None
) -> None:
    sentence = load_words.measured_elsewhere(levels, lengths, CHAT)
    ending = " Your load is another, 16 users, 622/250 tokens: no figure is adapted to it."
    assert sentence == (words and words + ending)


def test_figures_at_the_planned_rate_are_of_the_planned_load() -> None:
    lengths = (622.0, 250.0)
    assert load_words.summary(RATE) == "Chat, 622/250 tokens · 2.5 requests/s"
    assert load_words.measured_elsewhere([Load("rate", 2.5)], lengths, RATE) is None
    assert load_words.measured_elsewhere([closed(16)], lengths, RATE) == (
        "Measured at 16 streams, 622/250 tokens in/out. "
        "Your load is another, 2.5 requests/s, 622/250 tokens: no figure is adapted to it."
    )


def test_the_load_of_an_evaluation_is_that_of_its_levels() -> None:
    sentence = load_words.evaluation_elsewhere(simulated.evaluation(), CHAT)
    assert sentence is not None and "96/64 tokens in/out. Your load is another, 16 users" in sentence


def test_variants_above_the_quality_floor_are_named() -> None:
    losses = {"original": None, "w8a8": 0.02, "rtn": 0.31}
    assert load_words.floor_sentence(losses, None) is None and load_words.floor_sentence(losses, 0.5) is None
    assert load_words.floor_sentence(losses, 0.1) == "Above your quality floor (KL divergence at most 0.1): rtn (0.31)."
