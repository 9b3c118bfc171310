"""Sentences of an evaluation of several engines: who serves what, why, and what the engines alone change."""

from __future__ import annotations

from backend.domain.evaluation.document import Evaluation
from backend.domain.recipe.recipe import Serving
from backend.present.words.engines import cross_engine_sentences, engine_sentences
from tests import simulated

WHY = "llama.cpp, because only it reads GGUF files here."


def evaluation() -> Evaluation:
    """Return the original on vLLM, the same file on llama.cpp and an artifact on llama.cpp."""
    document = simulated.evaluation(names=("original", "Q4_1 on llama.cpp", "q8_0"), speeds=(1.0, 1.5, 1.4))
    original, same, other = document.variants
    served = Serving(engine="llama.cpp")
    quality = simulated.quality(0.01).model_copy(update={"served_kl": 0.0012, "served_same_top": 0.96})
    same = same.model_copy(
        update={
            "quality": quality.model_copy(update={"greedy_match": 0.9}),
            "variant": original.variant.model_copy(update={"serving": served, "engine_reason": WHY, "name": same.name}),
        }
    )
    other = other.model_copy(
        update={"variant": other.variant.model_copy(update={"serving": served, "model_path": "/artifact"})}
    )
    return document.model_copy(update={"variants": [original, same, other]})


def test_the_engines_and_the_reason_are_said_where_there_are_several() -> None:
    assert engine_sentences(evaluation()) == [
        "Served `original` by vLLM; `Q4_1 on llama.cpp` and `q8_0` by llama.cpp.",
        f"`Q4_1 on llama.cpp`: {WHY}",
    ]
    assert engine_sentences(simulated.evaluation()) == []


def test_what_floating_point_changes_is_said_across_engines() -> None:
    same, other = cross_engine_sentences(evaluation())
    assert "a KL of at least 0.0012 as served, same top token at 96% of positions, 90% equal greedy tokens" in same
    assert "a part of the difference in their answers is floating point" in other
    assert cross_engine_sentences(simulated.evaluation()) == []
