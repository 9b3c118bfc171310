"""What a loss of quality is called, and from where on it is a ruin."""

from __future__ import annotations

import pytest

from backend.domain.evaluation.document import Quality
from backend.domain.limits.quality_loss import (
    GRADES,
    QUALITY_FLOOR,
    floor_problem,
    known_loss,
    loss_grade,
    loss_nats,
)
from backend.domain.recipe.recipe import Serving
from backend.present.words import headline
from backend.present.words.quality_loss import GRADES as WORDS
from backend.present.words.quality_loss import grade_words, manifest_words, same_top, scale_sentence, words
from tests import simulated

RUINED = {"perplexity_before": 7.6, "perplexity_after": 39.0, "kl_mean": 1.66, "same_top": 0.42}


def test_the_larger_of_divergence_and_lost_likelihood_counts() -> None:
    assert loss_nats(0.1, 10.0, 10.0) == 0.1
    assert loss_nats(0.1, 10.0, 20.0) == pytest.approx(0.693, abs=1e-3)
    assert loss_nats(None, None, 3.0) is None


@pytest.mark.parametrize(
    ("kl", "name"),
    [(0.0, "none"), (0.0014, "hardly"), (0.026, "hardly"), (0.084, "small"), (0.284, "clear"), (1.66, "ruined")],
)
def test_a_loss_has_a_grade(kl: float, name: str) -> None:
    assert loss_grade(kl) == name


def test_quality_gets_a_word_beside_its_figure() -> None:
    w8a8 = Quality(perplexity=7.79, perplexity_original=7.58, kl_mean=0.026, same_top=0.93)
    assert words(w8a8) == (
        "same top token at 93% of positions; loss hardly measurable, 0.027 of at most 0.03 nats per token"
    ), "the rise of the log-perplexity, which is the larger"
    assert words(Quality(scored="original", perplexity=7.58)) == "original weights"
    assert words(Quality(scored="unavailable")) is None and words(None) is None
    assert (same_top(1.0), same_top(0.42)) == ("same top token at every position", "same top token at 42% of positions")
    assert manifest_words(RUINED) == (
        "same top token at 42% of positions; ruined: it no longer answers like the original, "
        "1.7 and above 0.4 nats per token"
    )


def test_what_is_lost_as_served_counts_where_it_is_more() -> None:
    """OpenVINO with a cache of 4 bits: the weights of Q8_0 lose 0.0014, and what is served 0.031."""
    scored = Quality(kl_mean=0.0014, same_top=0.98, served_kl=0.0315, served_same_top=0.9)
    assert (scored.known_kl, scored.known_same_top) == (0.0315, 0.9)
    assert headline.short_quality(scored) == "KL 0.0315 as served: same top token at 90% of positions"
    less = scored.model_copy(update={"served_kl": 0.001})  # a lower bound, which says nothing against the weights'
    assert (less.known_kl, less.known_same_top) == (0.0014, 0.98)


def test_a_cache_in_fewer_bits_has_a_loss_only_as_served() -> None:
    quality = Quality(kl_mean=0.0014)
    plain = simulated.result("q8_0", [], quality)
    narrow = plain.model_copy(
        update={"variant": plain.variant.model_copy(update={"serving": Serving(kv_cache_dtype="fp8")})}
    )
    assert known_loss(plain) == 0.0014 and known_loss(narrow) is None
    measured = narrow.model_copy(update={"quality": quality.model_copy(update={"served_kl": 0.02})})
    assert known_loss(measured) == 0.02


def test_the_scale_has_the_limits_that_grade() -> None:
    limits = [most for most, _ in GRADES] + [QUALITY_FLOOR]
    assert all(f" up to {limit:g}" in scale_sentence() for limit in limits)
    for most, grade in GRADES:
        assert grade_words(most).startswith(WORDS[grade]) and f"of at most {most:g} nats" in grade_words(most)


@pytest.mark.parametrize(
    ("share", "written"), [(0.754, "75%"), (0.99, "99%"), (0.9904, "99.0%"), (0.9996, "99.96%"), (0.99999, "99.999%")]
)
def test_a_share_below_one_is_never_called_all(share: float, written: str) -> None:
    assert same_top(share) == f"same top token at {written} of positions"


def test_a_ruined_artifact_is_below_the_floor_and_says_so() -> None:
    assert floor_problem(RUINED, None) == (
        "The result is ruined: perplexity goes from 7.6 to 39.0, mean KL divergence is 1.66 nats per token, and the "
        "quality floor "
        "is 0.4. Use more bits, less sparsity or `recover`."
    )
    assert floor_problem(RUINED, 0) is None, "0 is no floor"
    assert floor_problem({**RUINED, "perplexity_after": 8.0, "kl_mean": 0.3}, 0.4) is None
    assert floor_problem({}, 0.4) is None, "what keeps the weights has no scores"
