"""Precision of groups on the pages: asked for on Build, told with its reasons on the job's page."""

from __future__ import annotations

import json

from app.builder import recipe_options
from app.jobs import precision as bits_view
from backend.domain.jobs.artifact import Manifest
from backend.domain.jobs.jobs import JobState
from backend.domain.recipe.precision import MeasuredGroup, candidates
from backend.domain.recipe.precision_allocation import AllocationTry, precision_record
from backend.domain.recipe.recipe import read
from backend.service import Workspace
from backend.service.jobs import jobs
from backend.store import queue
from backend.store.tables import ArtifactRow
from tests import studio

CANDIDATES = candidates({"method": "awq", "bits": 4, "group_size": 128, "symmetric": False}, "w8a8")
GROUPS = [
    MeasuredGroup(
        name=f"model.layers.{number}.self_attn.q_proj",
        linears=[f"model.layers.{number}.self_attn.{name}_proj" for name in "qkv"],
        shapes=[(512, 512), (128, 512), (128, 512)],
        losses={"16-bit": 0.0, "int4-g128": loss, "int4-g32": loss / 2, "w8a8": loss / 30},
    )
    for number, loss in enumerate((0.00094, 0.00002))
]
MISSED = "mean KL divergence is 0.0032, above the recipe's max_kl 0.002"


def bits(*attempts: AllocationTry, target: float | None = None) -> dict[str, object]:
    return precision_record(GROUPS, [CANDIDATES[2], CANDIDATES[0]], CANDIDATES[0], target, attempts)


def attempt(average: float, kl: float, missed: str | None) -> AllocationTry:
    return AllocationTry(average_bits=average, kl_mean=kl, perplexity_increase=0.002, missed=missed, raised={})


def test_each_group_says_why_it_has_its_precision() -> None:
    first, second = bits_view.rows(bits())
    assert first["Precision"] == "8 bits with 8-bit activations" and first["Linears"] == 3
    assert (first["Loss"], first["As the method makes it"]) == ("0.0000313", "0.000940 at int4-g128")
    assert (second["Loss"], second["As the method makes it"]) == ("0.0000200", "unchanged")
    assert "6.11 bits per weight" in bits_view.summary(bits()) and "requested" not in bits_view.summary(bits())
    assert "of at most 6.2 requested" in bits_view.summary(bits(target=6.2))


def test_the_sum_stands_beside_what_was_measured_of_the_whole() -> None:
    """It is too low."""
    summary = bits_view.summary(bits() | {"predicted_kl": 0.04, "measured_kl": 0.073})
    assert "The predicted sum is 0.0400; the measured loss on held-out text is 0.0730, 1.8 times that" in summary
    assert "The predicted sum is" not in bits_view.summary(bits() | {"predicted_kl": 0.04})


def test_the_job_page_shows_precisions_and_what_the_floor_took(studio_home: Workspace) -> None:
    job = studio.optimize_job(studio_home, JobState.SUCCEEDED)
    artifact_id = studio.artifact(studio_home, job, studio.optimize_spec(studio_home).model)
    reported = bits(attempt(4.16, 0.0032, MISSED), attempt(6.11, 0.0019, None))
    with studio_home.store.session() as session:
        row = session.get(ArtifactRow, artifact_id)
        assert row is not None
        row.manifest = (
            Manifest.model_validate_json(row.manifest).model_copy(update={"bits": reported}).model_dump_json()
        )
        queue.get(session, job.id).result = json.dumps({"artifact": artifact_id, "bytes_before": 2, "bytes_after": 1})
    at = studio.open_page("job", id=jobs.show(studio_home, job.id).id)
    tables = [table.value.to_dict("records") for table in at.dataframe]
    groups = next(rows for rows in tables if rows and "Precision" in rows[0])
    tries = next(rows for rows in tables if rows and "Try" in rows[0])
    assert [row["Group"] for row in groups] == [group.name for group in GROUPS]
    assert [row["Outcome"] for row in tries] == [f"Missed: {MISSED}.", "The floor is met."]
    assert "bits per weight on average over the quantized linears" in studio.says(at)


def test_build_takes_average_bits_and_a_fall_back(studio_home: Workspace) -> None:
    at = studio.open_page("build", model="starter", recipe="awq")
    next(field for field in at.number_input if field.label == "Average bits").set_value(4.5).run()
    studio.check(at)
    assert "target_bits: 4.5" in str(at.query_params["recipe"]) and "What 8 bits are" in [
        box.label for box in at.selectbox
    ]
    next(box for box in at.checkbox if box.label == "Fall back").check().run()
    assert any("needs a floor to fall back from" in error.value.replace("\\", "") for error in at.error)
    next(field for field in at.number_input if field.label.startswith("Most KL")).set_value(0.002).run()
    studio.check(at)
    assert any("Valid for this model" in success.value for success in at.success)


def test_average_bits_stay_with_methods_that_take_them_and_go_with_others() -> None:
    recipe = read({"steps": [{"quantize": {"method": "awq", "target_bits": 5, "eight_bits": "int8"}}]})
    remaining = recipe_options.with_setting(recipe, 0, "method", "gptq")
    assert remaining.steps[0].model_dump()["quantize"] == {"method": "gptq", "target_bits": 5.0, "eight_bits": "int8"}
    changed = recipe_options.with_setting(recipe, 0, "method", "w8a8")
    assert changed.steps[0].model_dump()["quantize"] == {"method": "w8a8"}
    assert "target_bits" not in {option.name for option in recipe_options.shown_options(changed.steps[0])}


def test_a_step_offers_the_bits_that_its_method_makes_and_no_other_option(studio_home: Workspace) -> None:
    at = studio.open_page("build", model="starter", recipe="name: r\nsteps:\n- quantize: {method: gptq}\n")
    bits = next(box for box in at.selectbox if box.label == "Bits")
    assert set("2348") <= set(bits.options)
    bits.select(3).run()
    studio.check(at)
    assert "Quantize to 3 bits (gptq)" in studio.says(at) and "the artifact is for scoring" in studio.says(at)
    # SliM-LLM has widths of its own, zero points always, and the same for all linears.
    next(box for box in at.selectbox if box.label == "Method").select("slim_llm").run()
    studio.check(at)
    labels = {field.label for field in (*at.selectbox, *at.number_input)}
    assert not labels & {"Symmetric", "Average bits", "File format"} and "Group size" in labels
    assert "4" not in next(box for box in at.selectbox if box.label == "Bits").options
    assert "vLLM has no kernel for what slim_llm stores" in studio.says(at)
    then = next(box for box in at.checkbox if box.label == "Evaluate when done")
    assert then.disabled and "There is nothing to measure: vLLM has no kernel" in then.help
