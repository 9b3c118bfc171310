"""The sizes that structured pruning leaves: to a target, in whole groups, and as the planner counts them."""

from __future__ import annotations

from typing import Any

import pytest

from backend.catalog.bundled import models
from backend.domain.errors import InvalidRecipe
from backend.domain.machine.device import GIB, Device
from backend.domain.model.facts import ModelFacts
from backend.domain.needs import serving_memory, structure
from backend.domain.planner import estimate
from backend.domain.recipe.recipe import Recipe, read
from backend.domain.rules import check
from backend.domain.rules.target_facts import TargetFacts
from backend.service.plans import recipe_files

STARTER: Any = models.card("starter")
SMOLLM2 = STARTER.model_copy(
    update={
        "layers": 30,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "heads": 9,
        "kv_heads": 3,
        "vocabulary": 49152,
        "parameters": 134_515_008,
        "weights_bytes": 269_060_552,
    }
)
"""The sizes of SmolLM2-135M."""
MIXTRAL = STARTER.model_copy(
    update={"model_type": "mixtral", "experts": 8, "experts_per_token": 2, "parameters": 46_702_792_704}
    | {"layers": 32, "hidden_size": 4096, "intermediate_size": 14336, "heads": 32, "kv_heads": 8, "head_dim": 128}
    | {"vocabulary": 32000, "tied_embeddings": False}
)
HERE = TargetFacts(device=Device("this machine's processor", "cpu", 1, 64 * GIB))


def pruned(*steps: dict[str, Any], **prune: Any) -> Recipe:
    return read({"name": "r", "steps": [{"prune": prune}, *steps]})


def sizes_of(model: ModelFacts, *steps: dict[str, Any], **prune: Any) -> dict[str, int]:
    """The sizes that differ from the model's."""
    left = structure.find_structure(model, pruned(*steps, **prune)).structure.model_dump(exclude_none=True)
    return {name: size for name, size in left.items() if size != structure.structure_of(model).model_dump()[name]}


@pytest.mark.parametrize(
    ("prune", "sizes"),
    [
        ({"method": "depth"}, {"layers": 22}),
        ({"method": "depth", "cut_time": 0.01}, {"layers": 29}),
        ({"method": "depth", "cut_parameters": 0.25}, {"layers": 20}),
        ({"method": "depth", "max_bytes": 220_000_000}, {"layers": 23}),
        ({"method": "width"}, {"intermediate": 1024}),
        ({"method": "width", "parts": "mlp+heads", "cut_time": 0.5}, {"intermediate": 640, "heads": 6, "kv_heads": 2}),
        ({"method": "width", "parts": "mlp+heads+hidden", "cut_time": 0.1}, {"hidden": 512}),
    ],
)
def test_the_largest_structure_that_reaches_the_target_is_left(prune: dict[str, Any], sizes: dict[str, int]) -> None:
    recipe = pruned(**prune)
    assert sizes_of(SMOLLM2, **prune) == sizes
    search = structure.find_structure(SMOLLM2, recipe)
    smaller, rest = structure.apply(SMOLLM2, recipe)
    name, value = structure.target(recipe.steps[0])  # type: ignore[arg-type]
    assert search.reached
    assert structure.measure(SMOLLM2, smaller, rest, name) >= (-value if name == "max_bytes" else value) - 1e-9


def test_what_follows_decides_the_multiple_and_the_bytes() -> None:
    k_quants = {"quantize": {"method": "gguf", "type": "q4_k_m"}}
    assert sizes_of(SMOLLM2, k_quants, method="width", cut_time=0.2) == {"intermediate": 1024}  # rows of 256
    assert sizes_of(SMOLLM2, method="width", cut_time=0.2) == {"intermediate": 1024}
    assert sizes_of(SMOLLM2, method="width", cut_time=0.15) == {"intermediate": 1152}
    assert sizes_of(SMOLLM2, k_quants, method="width", cut_time=0.15) == {"intermediate": 1024}
    eight_bits = {"quantize": {"method": "w8a8"}}
    smaller, rest = structure.apply(SMOLLM2, pruned(eight_bits, method="depth", max_bytes=130_000_000))
    assert serving_memory.weights(smaller, rest).total <= 130_000_000
    assert (
        smaller.layers
        > structure.find_structure(SMOLLM2, pruned(method="depth", max_bytes=130_000_000)).structure.layers
    )


def test_the_smaller_model_counts_as_transformers_counts_it() -> None:
    """Llama's own counts: 3,538,944 in the matrices of a layer, two norms of 576 a layer and one at the end."""
    depth, _ = structure.apply(SMOLLM2, pruned(method="depth"))
    assert depth.parameters == 49152 * 576 + 22 * (3_538_944 + 2 * 576) + 576
    width, rest = structure.apply(SMOLLM2, pruned({"quantize": {"method": "w8a8"}}, method="width"))
    assert width.parameters == 49152 * 576 + 30 * (3_538_944 - 3 * 576 * 512 + 2 * 576) + 576
    assert [step.technique for step in rest.steps] == ["quantize"]
    assert structure.apply(width, rest) == (width, rest)
    original = structure.cut_model(SMOLLM2, structure.structure_of(SMOLLM2))
    assert original.parameters == SMOLLM2.parameters


def test_experts_are_counted_apart_and_take_no_time() -> None:
    smaller, _ = structure.apply(MIXTRAL, pruned(method="experts"))
    assert smaller.experts == 5  # six would leave 76 % of the parameters
    assert sizes_of(MIXTRAL, method="experts", cut_parameters=0.2) == {"experts": 6}
    assert structure.layer_time(smaller) == structure.layer_time(MIXTRAL)


@pytest.mark.parametrize(
    ("prune", "nearest", "words"),
    [
        ({"method": "depth", "cut_time": 0.99}, {"cut_time": 0.96}, "beyond 1 layer, the least of starter: use"),
        ({"method": "width", "cut_time": 0.9}, {"cut_time": 0.68}, "beyond 128 neurons"),
        ({"method": "depth", "max_bytes": 1000}, {"max_bytes": 63_704_448}, "`max_bytes: 63704448` or more"),
        ({"method": "depth", "cut_parameters": 0.9}, {"cut_parameters": 0.76}, "`cut_parameters: 0.76` or less"),
    ],
)
def test_a_target_beyond_reach_is_refused_with_the_nearest(
    prune: dict[str, Any], nearest: dict[str, Any], words: str
) -> None:
    verdict = check.check_recipe(SMOLLM2, pruned(**prune), HERE)
    assert [reason.rule for reason in verdict.reasons] == ["structure"]
    assert words in verdict.reasons[0].message
    assert verdict.suggestion is not None
    assert verdict.suggestion.steps == pruned(method=prune["method"], **nearest).steps


@pytest.mark.parametrize(
    ("model", "prune", "words", "instead"),
    [
        (SMOLLM2, {"method": "experts"}, "has no experts to remove", "depth"),
        (MIXTRAL, {"method": "experts", "cut_time": 0.2}, "no time of a layer", "experts"),
        (MIXTRAL, {"method": "width"}, "are experts: use `method: experts`", "depth"),
        (SMOLLM2.model_copy(update={"model_type": "phi3"}), {"method": "width"}, "store several projections", "depth"),
        (
            SMOLLM2.model_copy(update={"model_type": "qwen2"}),
            {"method": "width", "parts": "mlp+heads"},
            "use `parts: mlp`",
            "width",
        ),
        (
            SMOLLM2.model_copy(update={"model_type": "gemma"}),
            {"method": "width", "parts": "mlp+heads+hidden"},
            "use `parts: mlp+heads`",
            "width",
        ),
        (SMOLLM2, {"method": "depth", "max_bytes": 900_000_000}, "within `max_bytes`: leave `prune` out", None),
    ],
)
def test_parts_that_a_model_has_not_are_refused(
    model: ModelFacts, prune: dict[str, Any], words: str, instead: str | None
) -> None:
    verdict = check.check_recipe(model, pruned(**prune), HERE)
    assert [reason.rule for reason in verdict.reasons if reason.rule != "memory"] == ["structure"]
    assert words in verdict.reasons[0].message
    if model is SMOLLM2 or model.experts is None:
        assert verdict.suggestion is not None
        step = verdict.suggestion.step("prune")
        assert getattr(step, "method", None) == instead


@pytest.mark.parametrize(
    ("prune", "words"),
    [
        ({"method": "depth", "sparsity": 0.3}, "`sparsity` goes with magnitude, wanda, sparsegpt"),
        ({"method": "wanda", "cut_time": 0.3}, "`cut_time` goes with depth, width, experts"),
        ({"method": "depth", "parts": "mlp"}, "`parts: mlp` goes with width"),
        ({"method": "width", "importance": "loss"}, "`importance: loss` goes with depth, not with `method: width`"),
        ({"method": "depth", "cut_time": 0.3, "max_bytes": 5}, "are two targets: keep one"),
        ({"method": "depth", "cut_time": 1.0}, "cut_time"),
        ({"method": "depth", "max_bytes": 0}, "max_bytes"),
    ],
)
def test_options_that_contradict_are_refused_when_read(prune: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRecipe, match=words):
        pruned(**prune)


def test_a_plan_says_what_is_left_and_the_engine_gets_its_sizes() -> None:
    verdict = check.check_recipe(SMOLLM2, pruned(method="depth", importance="loss", recover=True), HERE)
    assert verdict.plan is not None
    step = verdict.plan.steps[0]
    assert step.options["structure"]["layers"] == 22 and step.options["importance"] == "loss"
    assert step.title.startswith("Fewer layers, 25 % of the layers' time less, ranked by the loss")
    note = next(note for note in verdict.plan.notes if note.startswith("From 30 layers to 22 layers"))
    assert "26.7 % of the layers' time" in note and "106 of 135 million parameters stay" in note
    assert not any("stored as zeros" in note for note in verdict.plan.notes)


def test_the_estimate_predicts_with_the_smaller_model() -> None:
    plain, cut = Recipe(), pruned(method="depth", cut_time=0.5)
    stacked = pruned({"quantize": {"method": "w8a8"}}, method="depth", cut_time=0.5)
    weights = [estimate.estimate_needs(SMOLLM2, recipe).weights_bytes for recipe in (plain, cut, stacked)]
    assert weights == sorted(weights, reverse=True) and len(set(weights)) == 3
    smaller, _ = structure.apply(SMOLLM2, cut)
    assert weights[1] == 2 * smaller.parameters


def test_recipes_are_written_short_and_those_from_before_keep_their_hash() -> None:
    assert "{method: width, parts: mlp+heads}" in recipe_files.write_text(pruned(method="width", parts="mlp+heads"))
    old = read({"steps": [{"prune": {"method": "wanda", "sparsity": 0.4}}]})
    assert old.model_dump(mode="json")["steps"] == [{"prune": {"method": "wanda", "sparsity": 0.4}}]
