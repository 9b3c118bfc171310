"""Build for SageMaker and for Neuron: settings, the exact requests or the plan, refusals, and the job that comes of
it."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend.artifacts import compiled_results
from backend.domain.jobs.jobs import ManagedSpec, OptimizeSpec
from backend.domain.neuron.compile_plan import CompilePlan
from backend.service import Workspace
from backend.service.jobs import jobs
from backend.service.models import models
from backend.service.plans import cases, neuron_compilation, recipe_files
from tests import studio
from tests.pricing import no_credentials

MISTRAL, AT = "huggingface-llm-mistral-7b", "sagemaker:ml.g6.12xlarge"
AWQ, CORES = "name: four\nsteps:\n- quantize: {method: awq}\n", "neuron:ml.inf2.48xlarge"
COMPILE = "name: n\nsteps:\n- compile: {}\nserving: {tensor_parallel: 2, max_model_len: 256}\n"
ROLE = "arn:aws:iam::123456789012:role/r"


def plain(words: str) -> str:
    return words.replace("\\", "")


def test_a_job_of_sagemaker_shows_its_request_and_is_submitted(
    studio_home: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHETSTONE_AWS_OUTPUT", "s3://made/here")
    at = studio.open_page("build", model=MISTRAL, target=AT, recipe=AWQ)
    button = at.button(key="build_optimize")
    assert (
        button.label == "Optimize at AWS"
        and button.disabled
        and "WHETSTONE_AWS_ROLE" in plain(button.help)
        and not at.error
    )
    assert at.text_input(key="build_aws-output").value == "s3://made/here", "the environment's"
    at.text_input(key="build_aws-role").set_value(ROLE)
    at.text_input(key="build_aws-source").set_value("s3://models/mistral")
    at.text_area(key="build_aws-lines").set_value("tag.team=search")
    at.checkbox(key="build_aws-accept-eula").set_value(True).run()
    studio.check(at)
    text = studio.says(at)
    assert (
        '"OPTION_QUANTIZE": "awq"' in text and '"AcceptEula": true' in text and "SageMaker chooses the instance" in text
    )
    assert at.checkbox(key="build_then").disabled and not at.button(key="build_optimize").disabled
    at.switch_page("../pages/jobs.py").run()
    at.switch_page("../pages/build.py").run()
    assert at.text_input(key="build_aws-role").value == ROLE, "kept in the session"
    at.button(key="build_optimize").click().run()
    studio.check(at)
    (created,) = jobs.listing(studio_home)
    spec = ManagedSpec.model_validate(jobs.specification(studio_home, created.id))
    assert (
        spec.target == AT
        and spec.request["RoleArn"] == ROLE
        and spec.request["Tags"] == [{"Key": "team", "Value": "search"}]
    )


def test_what_the_toolkit_cannot_do_is_refused_in_the_verdict(
    studio_home: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"ROLE": ROLE, "OUTPUT": "s3://o/o", "SOURCE": ""}.items():
        monkeypatch.setenv(f"WHETSTONE_AWS_{name}", value)
    small = "name: t\nsteps:\n- quantize: {method: awq, group_size: 64}\n"
    at = studio.open_page("build", model=MISTRAL, target=AT, recipe=small)
    at.text_input(key="build_aws-source").set_value("model:m").run()
    assert "cannot do awq with `group_size: 64`" in plain(at.error[0].value)
    assert at.button(key="build_optimize").disabled
    at.text_input(key="build_aws-source").set_value("nowhere").run()
    at = studio.open_page(
        "build", model=MISTRAL, target=AT, recipe="name: d\nsteps:\n- speculate: {method: draft, draft: auto}\n"
    )
    assert "There is nothing to start" in at.button(key="build_optimize").help


def test_a_place_is_chosen_first_and_keeps_the_instance(studio_home: Workspace) -> None:
    at = studio.open_page("build", model="starter", target="ml.inf2.48xlarge", recipe=COMPILE)
    for there, required in (
        ("neuron", CORES),
        ("sagemaker", "sagemaker:ml.inf2.48xlarge"),
        ("local", "local"),
        ("instance", "auto"),
    ):
        at.radio(key="build_place").set_value(there).run()
        studio.check(at)
        assert at.query_params["target"] in (required, [required])


def test_neuron_shows_plan_and_lookup_and_compiles_what_can_be(studio_home: Workspace) -> None:
    at = studio.open_page("build", model="starter", target=CORES, recipe=COMPILE)
    case = cases.resolve(
        studio_home, models.resolve_facts(studio_home, "starter"), recipe_files.read_text(COMPILE), CORES
    )
    preview = neuron_compilation.preview(studio_home, case)
    text = studio.says(at)
    written = [plain(each.value) for each in (*at.markdown, *at.caption)]
    assert [sum(note[:60] in each for each in written) for note in preview.notes] == [1] * len(preview.notes), (
        "none stands there twice"
    )
    assert preview.key in text and "Not in the cache" in text and "NxD Inference" in text and '"positions": 256' in text
    button = at.button(key="build_optimize")
    assert button.label == "Compile" and button.disabled and "whetstone engines install" in button.help and not at.error
    _compiled(studio_home, preview.plan)
    at.run()
    assert "it is fetched, nothing is compiled" in studio.says(at)
    at.button(key="build_optimize").click().run()
    studio.check(at)
    (created,) = jobs.listing(studio_home)
    spec = OptimizeSpec.model_validate(jobs.specification(studio_home, created.id))
    assert spec.target == CORES and spec.neuron == preview.plan


def test_neuron_refuses_a_family_that_no_library_names(studio_home: Workspace) -> None:
    at = studio.open_page("build", model="huggingface-llm-gemma-7b", target=CORES, recipe=COMPILE)
    assert (
        "no support for models of type gemma" in plain(at.error[0].value) and at.button(key="build_optimize").disabled
    )


def test_a_viewer_sees_the_request_and_may_not_submit(
    studio_home: Workspace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    no_credentials(monkeypatch, tmp_path)
    monkeypatch.setenv("WHETSTONE_ROLE", "viewer")
    monkeypatch.setenv("WHETSTONE_AWS_ROLE", ROLE)
    monkeypatch.setenv("WHETSTONE_AWS_OUTPUT", "s3://o/o")
    at = studio.open_page("build", model=MISTRAL, target=AT, recipe=AWQ)
    at.text_input(key="build_aws-source").set_value("s3://m/m").run()
    button = at.button(key="build_optimize")
    assert "OPTION_QUANTIZE" in studio.says(at) and button.disabled and "viewer" in button.help


def _compiled(home: Workspace, plan: CompilePlan) -> None:
    """An entry of the cache."""
    folder = home.settings.home / "staged"
    folder.mkdir()
    (folder / "model.pt").write_bytes(b"compiled")
    compiled_results.open_cache(home.settings).put(plan.key, plan.model, plan.fields, folder, {})
