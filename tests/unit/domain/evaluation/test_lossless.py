"""Whether speculation keeps the answers: what is the same is called so, what is changed is found, the power is kept."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from backend.domain.evaluation.evidence.lossless import (
    ENDED,
    GreedyAnswers,
    SampledAnswers,
    differs_by_speculation_only,
    first_difference,
    fisher_p_value,
    judge_answers,
    lossless_warning,
)
from backend.present.speculation import words
from tests import no_ops

SAME = GreedyAnswers([[1, 2, 3]] * 24, [[1, 2, 3]] * 24, [[1, 2, 3]] * 24, 8, 900)


def test_a_first_difference_counts_from_one_and_a_shorter_answer_differs_at_its_end() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 9, 3]) == 2
    assert first_difference([1, 2], [1, 2, 3]) == 3


def test_no_more_than_the_engine_against_itself_is_no_difference() -> None:
    other = [[1, 2, 3]] * 21 + [[1, 4, 3]] * 3
    judgement = judge_answers(GreedyAnswers(other, SAME.plain, other, 8, 900))
    assert (judgement.prompts, judgement.same, judgement.itself_same, judgement.divergences) == (24, 21, 21, (2, 2, 2))
    assert judgement.is_tested and not judgement.differs and lossless_warning(judgement) == ""


def test_answers_that_speculation_changes_are_found() -> None:
    judgement = judge_answers(SAME._replace(speculating=[[1, 9, 9]] * 8 + [[1, 2, 3]] * 16))
    assert judgement.p_value < 0.01 and judgement.differs
    assert "speculation" in lossless_warning(judgement)


def test_without_a_draft_nothing_was_tested() -> None:
    judgement = judge_answers(SAME._replace(drafted=0, speculating=[[9]] * 24))
    assert not judgement.is_tested and not judgement.differs
    assert lossless_warning(None) == ""


def test_fishers_exact_test_is_one_sided() -> None:
    assert fisher_p_value(0, 0, 24) == 1.0
    assert fisher_p_value(5, 0, 10) == pytest.approx(0.0162538, rel=1e-5)
    assert fisher_p_value(0, 5, 10) == 1.0


def draw(rng: random.Random, weights: Sequence[float], samples: int) -> list[list[int]]:
    return [rng.choices(range(len(weights)), weights, k=4) for _ in range(samples)]


def arms(rng: random.Random, shift: float, prompts: int = 8, samples: int = 96) -> SampledAnswers:
    """One distribution a prompt; `shift` is the total-variation distance of the other arm."""
    with_it, without = [], []
    for _ in range(prompts):
        weights = sorted((rng.random() ** 3 for _ in range(30)), reverse=True)
        total = sum(weights)
        plain = [weight / total for weight in weights]
        moved = [plain[0] - min(shift, plain[0]), *plain[1:-1], plain[-1] + min(shift, plain[0])]
        with_it.append(draw(rng, moved, samples))
        without.append(draw(rng, plain, samples))
    return SampledAnswers(with_it, without, 500)


def test_the_same_distribution_is_accused_no_more_often_than_the_level_says() -> None:
    rng = random.Random(5)
    accused = sum(judge_answers(SAME, arms(rng, 0.0)).differs for _ in range(60))
    assert accused <= 8, "5 % of 60 are 3; 8 or more come about once in a hundred times"


def test_another_distribution_is_found_and_the_power_is_said() -> None:
    judgement = judge_answers(SAME, arms(random.Random(6), 0.2))
    assert judgement.differs and (judgement.samples, judgement.sampled_prompts, judgement.sampled_drafted) == (
        96,
        8,
        500,
    )
    assert [each.number for each in judgement.positions] == [2, 3, 4]
    assert all(0.05 < each.found_distance < 0.3 for each in judgement.positions)


def test_samples_for_which_nothing_was_drafted_accuse_nobody() -> None:
    apart = arms(random.Random(6), 0.5)
    assert judge_answers(SAME, apart).differs
    assert not judge_answers(SAME, apart._replace(drafted=0)).differs
    assert words.sampled(judge_answers(SAME, apart._replace(drafted=0))).startswith("no token was drafted")


def test_an_answer_that_ends_early_is_a_token_of_its_own() -> None:
    ended = [[[1, 2]] * 50 + [[1]] * 50], [[[1, 2]] * 100]
    (position,) = judge_answers(SAME, SampledAnswers(*ended, 10)).positions
    assert position.p_value < 1e-6
    assert ENDED < 0


def test_the_same_without_speculation_has_its_weights_and_settings() -> None:
    plain, drafted = no_ops.honest().variant, no_ops.honest(speculation=no_ops.DRAFTED).variant
    assert differs_by_speculation_only(plain, drafted)
    assert not differs_by_speculation_only(drafted, drafted)
    assert not differs_by_speculation_only(
        no_ops.honest("w8a8").variant.model_copy(update={"model_path": "/other"}), drafted
    )
