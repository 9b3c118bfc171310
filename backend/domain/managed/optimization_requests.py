"""Builds the exact requests of `create_optimization_job` from a recipe, by the toolkit's stacking table.

Environment by the container's names (AWS documentation, "Create an inference optimization job";
aws/sagemaker-python-sdk a248126).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from backend.domain.errors import ImpossibleStack, InvalidOptions
from backend.domain.frozen import Facts, Frozen
from backend.domain.machine.device import Hardware
from backend.domain.managed import instance_types
from backend.domain.managed.aws_settings import AwsSettings
from backend.domain.recipe import sagemaker_toolkit
from backend.domain.recipe.recipe import Compile, Quantize, Recipe, Shard, Speculate, run_order

LONGEST_NAME = 63
CONTENT = "SHA256-OF-THE-FILES"
"""Stands in an address for the content of weights that are still to be uploaded."""
UNSAID = frozenset({"technique", "method", "calibration", "samples", "length", "engine", "format"})
"""Fields of a quantize step that the toolkit decides by itself. Calibration text is its own (`NOTE`)."""
OWN: dict[str, dict[str, Any]] = {
    "awq": {"bits": 4, "group_size": 128, "symmetric": False},
    "fp8": {"bits": 8, "activations": "dynamic"},
    "smoothquant": {"bits": 8, "activations": "dynamic"},
}
"""The toolkit's settings of each method: a recipe may state them, but no others."""
NOTE = "The toolkit calibrates on text of its own: calibration, samples and length of the recipe do not count there."


class OptimizationRequests(Frozen):
    """`create` are the parameters of each call, none where no job is needed; `notes` say what else happens."""

    create: tuple[Facts, ...]
    notes: tuple[str, ...]


def build_requests(
    recipe: Recipe, instance: str, hardware: Hardware, settings: AwsSettings, *, tensor_parallel: int = 1
) -> OptimizationRequests:
    """Return the requests for the instance that the result is to be served on. `with_name` completes them.

    `tensor_parallel`: the degree of the plan. Raises ImpossibleStack for what the toolkit does not stack or does
    otherwise, InvalidRecipe for an instance that it does not know.
    """
    # 1. Refuse what the toolkit does not do.
    instance_types.check(instance)
    _, refusal = sagemaker_toolkit.find_stack(recipe, hardware)
    if refusal:
        raise ImpossibleStack(refusal)
    # 2. One request for all steps of the job, in the order of the toolkit.
    ordered = sorted(recipe.steps, key=run_order)
    configs = [_config(step, recipe, hardware, settings, tensor_parallel) for step in ordered if _of_job(step)]
    create = (_request(configs, instance, settings),) if configs else ()
    return OptimizationRequests(create=create, notes=notes(recipe, hardware))


def needs_job(recipe: Recipe) -> bool:
    """Return whether a job is created: an existing draft is set up at deployment."""
    return any(map(_of_job, recipe.steps))


def _of_job(step: Any) -> bool:
    return not (isinstance(step, Speculate) and step.method == "draft")


def with_name(request: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the request for a job of that name, whose result has a folder of that name.

    Raises InvalidOptions for an invalid name.
    """
    if len(name) > LONGEST_NAME or not re.fullmatch(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*", name):
        raise InvalidOptions(
            f"SageMaker takes no job called {name[:80]}: up to {LONGEST_NAME} letters, digits and dashes."
        )
    output = request["OutputConfig"]
    whole = {**output, "S3OutputLocation": f"{output['S3OutputLocation']}{name}/"}
    return {"OptimizationJobName": name, **request, "OutputConfig": whole}


def with_source(request: Mapping[str, Any], content: str) -> dict[str, Any]:
    """Return the request with the weights in the folder of that content, where it names one by CONTENT."""
    if CONTENT not in request["ModelSource"].get("S3", {}).get("S3Uri", ""):
        return dict(request)
    where = request["ModelSource"]["S3"]
    return {**request, "ModelSource": {"S3": {**where, "S3Uri": where["S3Uri"].replace(CONTENT, content)}}}


def is_servable(recipe: Recipe) -> bool:
    """Return whether the result is weights that a server can read.

    Quantized, not compiled, sharded or with a head of its own.
    """
    speculate = recipe.step("speculate")
    plain = not isinstance(speculate, Speculate) or speculate.method in {"draft", "ngram"}
    return plain and bool(recipe.step("quantize")) and not (recipe.step("compile") or recipe.step("shard"))


def job_name(job_id: str, attempt: int) -> str:
    """Return the name of an attempt. It is always the same, so that a job that was begun can be recognized."""
    return f"whetstone-{job_id}-{attempt}"


def _request(configs: list[dict[str, Any]], instance: str, settings: AwsSettings) -> dict[str, Any]:
    # 1. What every request has.
    key = {"KmsKeyId": settings.kms_key} if settings.kms_key else {}
    request: dict[str, Any] = {
        "RoleArn": settings.role,
        "ModelSource": _source(settings),
        "DeploymentInstanceType": instance,
    }
    if settings.environment:
        request["OptimizationEnvironment"] = dict(settings.environment)
    request |= {
        "OptimizationConfigs": configs,
        "OutputConfig": {**key, "S3OutputLocation": f"{settings.output.rstrip('/')}/"},
        "StoppingCondition": {"MaxRuntimeInSeconds": settings.max_runtime_s},
    }
    # 2. What only some settings ask for.
    if settings.tags:
        request["Tags"] = [{"Key": tag, "Value": value} for tag, value in sorted(settings.tags.items())]
    if settings.subnets:
        request["VpcConfig"] = {
            "SecurityGroupIds": list(settings.security_groups),
            "Subnets": list(settings.subnets),
        }
    return request


def _source(settings: AwsSettings) -> dict[str, Any]:
    source = settings.source or f"{(settings.upload or '').rstrip('/')}/{CONTENT}"
    kind, _, named = source.partition(":")
    if kind == "model":
        return {"SageMakerModel": {"ModelName": named}}
    accepted = {"ModelAccessConfig": {"AcceptEula": True}} if settings.accept_eula else {}
    return {"S3": {"S3Uri": f"{source.rstrip('/')}/", **accepted}}


def _config(step: Any, recipe: Recipe, hardware: Hardware, settings: AwsSettings, degree: int) -> dict[str, Any]:
    """Return one item of OptimizationConfigs."""
    match step:
        case Quantize():
            _check_quantize(step)
            return _container("ModelQuantizationConfig", {"OPTION_QUANTIZE": step.method}, settings)
        case Compile():
            return _container("ModelCompilationConfig", _compiled(recipe, hardware, degree), settings)
        case Shard():
            return _container("ModelShardingConfig", {"OPTION_TENSOR_PARALLEL_DEGREE": str(degree)}, settings)
        case _:
            return _eagle(settings)


def _container(kind: str, environment: dict[str, str], settings: AwsSettings) -> dict[str, Any]:
    return {kind: {**({"Image": settings.image} if settings.image else {}), "OverrideEnvironment": environment}}


def _compiled(recipe: Recipe, hardware: Hardware, degree: int) -> dict[str, str]:
    """Return the settings of a compilation.

    An artifact is specific to its shapes, precision and degree, so those that the recipe states are given.
    """
    serving, names = recipe.serving, {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
    stated: dict[str, object] = {
        "OPTION_N_POSITIONS": serving.max_model_len if hardware == "neuron" else None,
        "OPTION_MAX_ROLLING_BATCH_SIZE": serving.max_num_seqs,
        "OPTION_DTYPE": names.get(serving.dtype),
    }
    return {"OPTION_TENSOR_PARALLEL_DEGREE": str(degree)} | {
        name: str(value) for name, value in stated.items() if value
    }


def _eagle(settings: AwsSettings) -> dict[str, Any]:
    data = {"S3Uri": settings.training_data, "S3DataType": "S3Prefix"}
    more = {"TrainingDataSource": data} if settings.training_data else {}
    return {"ModelSpeculativeDecodingConfig": {"Technique": "EAGLE", **more}}


def _check_quantize(step: Quantize) -> None:
    """Raise ImpossibleStack where the recipe states an option that the toolkit does otherwise."""
    own, fields = OWN[step.method], type(step).model_fields
    for name, value in ((name, getattr(step, name)) for name in fields if name not in UNSAID):
        if value not in {fields[name].default, None} and value != own.get(name):
            does = f"its own is {own[name]}" if name in own else "it has no such option"
            raise ImpossibleStack(
                f"The SageMaker toolkit cannot do {step.method} with `{name}: {value}` ({does}): leave it out, or "
                "optimize here."
            )


def notes(recipe: Recipe, hardware: Hardware) -> tuple[str, ...]:
    """Return what happens beside the requests, a sentence each."""
    quantize, speculate = recipe.step("quantize"), recipe.step("speculate")
    # 1. What the job does by itself, or that there is none.
    sentences = [NOTE] if isinstance(quantize, Quantize) and quantize.method != "fp8" else []
    if not recipe.steps:
        sentences.append("The recipe has no steps: no optimization job is created, the model is deployed as it is.")
    # 2. What happens at deployment, or not at all.
    if isinstance(speculate, Speculate) and speculate.method == "draft":
        sentences.append(
            "The draft is set up at deployment, beside the result of the job."
            if needs_job(recipe)
            else sagemaker_toolkit.NO_JOB
        )
    if recipe.step("compile") and hardware == "cuda" and recipe.serving.max_model_len:
        sentences.append(
            "TensorRT-LLM is not given `serving.max_model_len`: give the AWS setting env.NAME where its default does "
            "not do."
        )
    return tuple(sentences)
