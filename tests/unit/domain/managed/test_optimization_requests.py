"""A recipe as the exact requests of SageMaker: every row of the stacking table against its golden form and botocore's
model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import botocore
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.errors import ImpossibleStack, InvalidOptions, InvalidRecipe
from backend.domain.machine.device import Hardware
from backend.domain.managed import instance_types, optimization_requests
from backend.domain.managed.aws_settings import AwsSettings, read_settings
from backend.domain.managed.optimization_requests import OptimizationRequests, with_name
from backend.domain.recipe import recipe, sagemaker_toolkit
from tests.fakes.sagemaker import shapes
from tests.properties import examples

GOLDEN = Path(__file__).parent / "golden"
SETTINGS = (
    "role=arn:aws:iam::123456789012:role/service-role/optimizer",
    "output=s3://made/here",
    "source=s3://models/llama",
)
GPU, NEURON = "ml.g6.12xlarge", "ml.inf2.48xlarge"
AWQ, FP8, SMOOTH = ({"quantize": {"method": method}} for method in ("awq", "fp8", "smoothquant"))
DRAFT: dict[str, Any] = {"speculate": {"method": "draft", "draft": "auto"}}
EAGLE, COMPILE, SHARD = {"speculate": {"method": "eagle3"}}, {"compile": {}}, {"shard": {}}
ROWS: dict[str, tuple[list[Any], str]] = {
    "awq": ([AWQ], GPU),
    "fp8": ([FP8], GPU),
    "awq-draft": ([AWQ, DRAFT], GPU),
    "fp8-eagle": ([FP8, EAGLE], GPU),
    "draft": ([DRAFT], GPU),
    "eagle": ([EAGLE], GPU),
    "nothing": ([], GPU),
    "compile": ([COMPILE], GPU),
    "compile-neuron": ([COMPILE], NEURON),
    "compile-awq": ([COMPILE, AWQ], GPU),
    "compile-fp8": ([FP8, COMPILE], GPU),
    "compile-smoothquant": ([SMOOTH, COMPILE], GPU),
    "shard": ([SHARD], GPU),
}
REFUSED: dict[str, tuple[list[Any], str, str]] = {
    "awq on Neuron": ([AWQ], NEURON, "only compiles"),
    "draft on Neuron": ([DRAFT], NEURON, "only compiles"),
    "compile and awq on Neuron": ([COMPILE, AWQ], NEURON, "only compiles"),
    "smoothquant alone": ([SMOOTH], GPU, "add it"),
    "compile and draft": ([COMPILE, DRAFT], GPU, "keep one"),
    "shard and awq": ([SHARD, AWQ], GPU, "keep one"),
    "shard on Neuron": ([SHARD], NEURON, "leave it out"),
    "compile and EAGLE": ([COMPILE, EAGLE], GPU, "keep one"),
    "gptq": ([{"quantize": {"method": "gptq"}}], GPU, "use awq, fp8"),
    "ngram": ([{"speculate": {"method": "ngram"}}], GPU, "a draft model"),
}


def requests_of(steps: list[Any], instance: str = GPU, *inputs: str, **serving: Any) -> OptimizationRequests:
    chosen = recipe.read({"name": "r", "steps": steps, "serving": serving})
    hardware: Hardware = "neuron" if "inf" in instance else "cuda"
    return optimization_requests.build_requests(
        chosen, instance, hardware, read_settings((*SETTINGS, *inputs), {}), tensor_parallel=4
    )


def validated(requests: OptimizationRequests) -> list[dict[str, Any]]:
    whole = [with_name(each, optimization_requests.job_name("j-0123456789", 1)) for each in requests.create]
    for each in whole:
        shapes.check(each, shapes.model("sagemaker", "CreateOptimizationJob").input_shape)
    return whole


@pytest.mark.parametrize("row", ROWS)
def test_a_row_of_the_table_is_exactly_this(row: str) -> None:
    result = requests_of(*ROWS[row], max_model_len=4096)
    document = {"requests": validated(result), "notes": list(result.notes)}
    assert document == json.loads((GOLDEN / f"{row}.json").read_text())


def test_the_rows_are_those_of_the_table() -> None:
    """Each that the toolkit takes on one of the two."""
    parts = {(frozenset(map(sagemaker_toolkit.part_of, recipe.read({"steps": s}).steps)), i) for s, i in ROWS.values()}
    pairs = {(row.parts, GPU) for row in sagemaker_toolkit.TABLE if row.gpu is None}
    pairs |= {(row.parts, NEURON) for row in sagemaker_toolkit.TABLE if row.neuron is None and row.parts}
    assert parts == pairs


@pytest.mark.parametrize("row", REFUSED)
def test_what_does_not_stack_is_refused(row: str) -> None:
    steps, instance, words = REFUSED[row]
    with pytest.raises(ImpossibleStack, match=words):
        requests_of(steps, instance)


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("awq", {"group_size": 64}, "its own is 128"),
        ("awq", {"target_bits": 5.0}, "no such option"),
        ("fp8", {"kv_cache": "fp8"}, "no such option"),
        ("fp8", {"activations": "static"}, "its own is dynamic"),
    ],
)
def test_what_the_toolkit_does_otherwise_is_refused(method: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ImpossibleStack, match=words):
        requests_of([{"quantize": {"method": method, **options}}])
    assert (
        requests_of([{"quantize": {"method": "awq", "bits": 4, "group_size": 128}}]).create == requests_of([AWQ]).create
    )


def test_every_setting_arrives() -> None:
    result = requests_of(
        [FP8, COMPILE],
        GPU,
        "accept-eula=yes",
        "kms-key=alias/k",
        "subnets=subnet-1,subnet-2",
        "security-groups=sg-1",
        "max-runtime=2h",
        "image=123456789012.dkr.ecr.us-east-1.amazonaws.com/i:1",
        "tag.team=a b",
        "env.OPTION_X=1",
        max_num_seqs=8,
        dtype="bfloat16",
    )
    assert {"requests": validated(result)} == json.loads((GOLDEN / "every-setting.json").read_text())
    (other,) = validated(requests_of([AWQ], GPU, "source=model:m-1"))
    assert other["ModelSource"] == {"SageMakerModel": {"ModelName": "m-1"}}
    (eagle,) = validated(requests_of([EAGLE], GPU, "training-data=s3://b/prompts/"))
    (config,) = eagle["OptimizationConfigs"]
    assert config["ModelSpeculativeDecodingConfig"]["TrainingDataSource"]["S3Uri"] == "s3://b/prompts/"


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("role=me", "role is wrong: it must be a role such as"),
        ("output=b/out", "it must be an address such as s3://"),
        ("output=s3://Made/out", "the bucket in small letters"),
        ("upload=s3://Made", "the bucket in small letters"),
        ("source=here", "or model:NAME"),
        ("subnets=s-1", "needs both"),
        ("accept-eula=perhaps", "is yes or no"),
        ("max-runtime=long", "max-runtime is wrong: .long. is no time"),
        ("rolle=x", "the nearest are role"),
        ("role", "needs a value"),
        ("env.HF_TOKEN=x", "looks like a secret"),
        ("region=here", "such as us-east-1"),
        ("role=", "needs the role"),
        ("output=", "WHETSTONE_AWS_OUTPUT"),
        ("security-groups=" + ",".join("abcdef"), "needs both"),
        ("tag.=x", "nearest"),
    ],
)
def test_a_setting_that_is_wrong_is_one_sentence(wrong: str, words: str) -> None:
    with pytest.raises(InvalidOptions, match=words) as error:
        read_settings((*SETTINGS, wrong), {})
    assert "\n" not in str(error.value)


def test_options_count_before_the_environment_and_there_are_25_variables_at_most() -> None:
    settings = read_settings(
        ("source=s3://b/m",), {"role": SETTINGS[0].partition("=")[2], "output": "s3://a", "max-runtime": "1h"}
    )
    assert (settings.output, settings.max_runtime_s) == ("s3://a", 3600)
    assert read_settings((*SETTINGS, "output=s3://c"), {"output": "s3://a"}).output == "s3://c"
    many = tuple(f"env.OPTION_{number}=1" for number in range(26))
    assert len(read_settings((*SETTINGS, *many[:25]), {}).environment) == 25
    with pytest.raises(InvalidOptions, match="at most 25"):
        read_settings((*SETTINGS, *many), {})


def test_the_instances_are_botocores() -> None:
    shape = shapes.model("sagemaker", "CreateOptimizationJob").input_shape.members["DeploymentInstanceType"]
    assert (instance_types.BOTOCORE, list(instance_types.INSTANCE_TYPES)) == (botocore.__version__, shape.enum)
    with pytest.raises(InvalidRecipe, match=r"the nearest instances that it does are .*ml\.g6\.12xlarge"):
        requests_of([AWQ], "ml.g6.13xlarge")


@given(st.lists(st.sampled_from([AWQ, FP8, SMOOTH, DRAFT, EAGLE, COMPILE, SHARD]), max_size=4), st.booleans())
@examples(200)
def test_any_stack_is_refused_with_a_sentence_or_valid(steps: list[Any], neuron: bool) -> None:
    try:
        result = requests_of(steps, NEURON if neuron else GPU)
    except ImpossibleStack as error:
        assert str(error).endswith(".")
        return
    assert len(validated(result)) <= 1
    assert result.create or result.notes


def test_a_name_has_63_characters_at_most() -> None:
    (request,) = requests_of([AWQ]).create
    assert with_name(request, "a" * 63)["OptimizationJobName"] == "a" * 63
    for wrong in ("a" * 64, "-a", "a_b", ""):
        with pytest.raises(InvalidOptions, match="up to 63"):
            with_name(request, wrong)


def test_settings_are_plain() -> None:
    assert AwsSettings.model_validate_json(read_settings(SETTINGS, {}).model_dump_json()) == read_settings(SETTINGS, {})
