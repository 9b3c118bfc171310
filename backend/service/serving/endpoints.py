"""Endpoints on SageMaker: what a deployment of an artifact would be, making it, and those that there are, by tags."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from backend.artifacts import locations
from backend.domain.deploy import container, iam_policy, sagemaker_requests, templates
from backend.domain.deploy.deployment import Capacity, Container, Deployment, Idle, Rollout, Scheduled, idle_alarm
from backend.domain.deploy.endpoint_metrics import Traffic
from backend.domain.errors import (
    ImpossibleStack,
    InvalidOptions,
    NotEnoughMemory,
    NotFound,
    RequestError,
    WhetstoneError,
)
from backend.domain.evaluation.evidence.schema import Finding
from backend.domain.frozen import Frozen
from backend.domain.jobs.artifact import Manifest
from backend.domain.machine.device import GIB, Instance
from backend.domain.machine.targets import HardwareTables
from backend.domain.recipe import quantize_step
from backend.domain.recipe.recipe import Serving
from backend.domain.recipe.speculation import SPECULATE
from backend.domain.roles import Action
from backend.domain.rules import kernel_rules
from backend.domain.similar_names import nearest
from backend.domain.validation import first_flaw
from backend.launchers.deployments import Deployments, Say
from backend.launchers.endpoints import Endpoint, Endpoints, home_region
from backend.service.jobs import artifacts
from backend.service.machines import targets
from backend.service.models import variants
from backend.service.workspace import Workspace

VPC = ("subnets", "security-groups")
FORMS = {"cloudformation": templates.cloudformation, "terraform": templates.terraform, "policy": iam_policy.text}
"""Formats in which a deployment can be written."""


class DeploymentRequest(Frozen):
    """A person's choices for a deployment; None leaves a field to the recipe, the environment (WHETSTONE_AWS_...) or
    AWS."""

    instance: str
    role: str | None = None
    bucket: str | None = None
    name: str | None = None
    region: str | None = None
    instances: int = 1
    container: Container = "lmi"
    image: str | None = None
    tensor_parallel: int | None = None
    capacity: Capacity | None = None
    schedule: tuple[Scheduled, ...] = ()
    timezone: str | None = None
    idle: Idle | None = None
    kms_key: str | None = None
    subnets: tuple[str, ...] | None = None
    security_groups: tuple[str, ...] | None = None


class UpdateRequest(Frozen):
    """A person's choices for an update, besides the artifact; None leaves a field as it is at AWS, whatever the
    environment says."""

    instance: str | None = None
    instances: int | None = None
    container: Container | None = None
    image: str | None = None
    tensor_parallel: int | None = None
    alarms: tuple[str, ...] = ()
    bake_s: int = 0


class EndpointView(Frozen):
    """An endpoint as screens and tools see it. Prices are on demand, in USD; `usd_so_far` is at the instances that run
    now."""

    id: str
    name: str
    region: str
    state: str
    reason: str | None
    since: datetime
    artifact: str
    variant: str
    owner: str | None
    instance: str | None
    instances: int
    usd_per_hour: float | None
    usd_so_far: float | None
    price_region: str | None
    """The region of the price, which may differ from the endpoint's."""
    discount: float = 0.0
    """The share that is off the price already."""
    idle: bool | None
    """True if the idle alarm is on; None without an alarm or if it cannot be read."""
    traffic: Traffic | None = None
    """Its requests; None if CloudWatch refuses or is busy."""


def plan(workspace: Workspace, artifact_id: str, request: DeploymentRequest, *, anyway: bool = False) -> Deployment:
    """Return the deployment of an artifact without asking AWS. `anyway` allows quality below the floor.

    Raises NotFound, ImpossibleStack, NotEnoughMemory, BelowFloor, InvalidOptions, RequestError.
    """
    return _make_deployment(workspace, artifact_id, _with_environment(request, workspace.settings.aws), anyway=anyway)


def _with_environment(request: DeploymentRequest, environment: Mapping[str, str]) -> DeploymentRequest:
    """With what is left open from the environment. Raises InvalidOptions where role or bucket are in neither."""
    # 1. Read the environment.
    listed = {name: tuple(filter(None, map(str.strip, environment.get(name, "").split(",")))) for name in VPC}
    own: dict[str, Any] = {
        "role": environment.get("role"),
        "bucket": environment.get("output"),
        "region": environment.get("region"),
        "kms_key": environment.get("kms-key"),
        "subnets": listed["subnets"],
        "security_groups": listed["security-groups"],
    }
    # 2. Fill in what the request leaves open.
    filled = request.model_copy(update={name: value for name, value in own.items() if getattr(request, name) is None})
    # 3. Require a role and a bucket.
    for name, variable, what in (("role", "ROLE", "a role"), ("bucket", "OUTPUT", "a bucket")):
        if not getattr(filled, name):
            raise InvalidOptions(f"An endpoint needs {what}: give {{}}, or set WHETSTONE_AWS_{variable}.", name)
    return filled


def _make_deployment(workspace: Workspace, artifact_id: str, request: DeploymentRequest, *, anyway: bool) -> Deployment:
    # 1. Check the artifact: quality, hardware, memory and kernels.
    shown = artifacts.show(workspace, artifact_id)
    variant = variants.resolve(workspace, artifact_id)
    variants.check_floor(workspace, [variant], anyway=anyway)
    if shown.manifest.for_neuron:
        raise ImpossibleStack(
            f"{artifact_id} is compiled for Neuron, and these containers serve on NVIDIA GPUs: choose another."
        )
    step = shown.manifest.recipe.step("quantize")
    if why := quantize_step.unserved_reason(step, "cuda", model_type=shown.manifest.parent.model_type):
        raise ImpossibleStack(f"{artifact_id} cannot be served there: {why[0]}.")
    parallel = request.tensor_parallel or variant.serving.tensor_parallel
    serving = variant.serving.model_copy(update={"tensor_parallel": parallel})
    _check_instance(_instance(workspace, request.instance), serving, variant.bytes_on_disk or 0)
    _check_kernels(workspace, shown.manifest, request.instance, parallel)
    # 2. Choose the container's image.
    region = home_region(request.region)
    image = request.image or container.image(request.container, region)
    if image is None:
        raise RequestError(
            f"AWS keeps the images for {region} in another account: give the address of one with {{}}.", "image"
        )
    # 3. Check the draft, which must come with the artifact.
    speculation = variant.speculation
    if speculation is not None and SPECULATE[speculation.method].engine_method == "custom_class":
        code = "code of your own" if speculation.proposer else f"`method: {speculation.method}`, whose code is here"
        raise ImpossibleStack(
            f"{artifact_id} proposes tokens by {code}, which runs on this machine alone: serve it here, or deploy one "
            "with `method: ngram`."
        )
    if speculation is not None and speculation.draft_path:
        # its place here is not part of the deployment
        speculation = speculation.model_copy(update={"draft_path": "draft"})
    # 4. Validate the whole.
    try:
        return Deployment(
            id=request.name or artifact_id,
            region=region,
            role=request.role or "",
            artifact=artifact_id,
            owner=workspace.actor.name,
            name=variant.name,
            instance=request.instance,
            instances=request.instances,
            container=request.container,
            image=image,
            bucket=(request.bucket or "").removeprefix("s3://").rstrip("/"),
            speculation=speculation,
            serving=variant.serving.model_copy(update={"tensor_parallel": parallel}),
            quantized=_weights_quantization(variant.model_path),
            capacity=request.capacity,
            schedule=request.schedule,
            timezone=request.timezone,
            idle=request.idle,
            kms_key=request.kms_key,
            subnets=request.subnets or (),
            security_groups=request.security_groups or (),
        )
    except ValidationError as error:
        flaw = first_flaw(error)
        raise InvalidOptions(f"{flaw.problem}.", field="name" if flaw.field == "id" else flaw.field) from None


def _check_kernels(workspace: Workspace, manifest: Manifest, instance: str, parallel: int) -> None:
    """Raises ImpossibleStack where no kernel of vLLM takes the artifact's matrices on that instance."""
    where = targets.find(workspace, instance)
    serving = manifest.recipe.serving.model_copy(update={"tensor_parallel": parallel})
    recipe = manifest.recipe.model_copy(update={"serving": serving})
    if why := kernel_rules.find_unserved(manifest.parent, recipe, targets.rule_facts(where, manifest.parent, None)):
        raise ImpossibleStack(f"{manifest.id} cannot be served there: {why}.")


def _instance(workspace: Workspace, name: str) -> Instance:
    """Raises RequestError: botocore itself takes any name."""
    rows = targets.hardwares(workspace)
    if name not in rows.instances:
        raise NotFound(
            f"There is no instance `{name[:80]}`: the nearest are {', '.join(nearest(name, rows.instances))}."
        )
    if why := _unknown_instance(rows, rows.instances[name]):
        raise RequestError(why)
    return rows.instances[name]


def _unknown_instance(rows: HardwareTables, instance: Instance) -> str | None:
    if not instance.sagemaker_endpoint:
        return f"SageMaker serves no endpoint on {instance.name}: choose another instance."
    if rows.accelerators[instance.accelerator].vendor != "NVIDIA":
        named = f"{instance.name} has {instance.accelerator}s"
        return f"{named}, which these containers do not serve on: choose one with NVIDIA GPUs."
    return None


def _check_instance(instance: Instance, serving: Serving, weights: int) -> None:
    """Raises RequestError for more GPUs than it has, NotEnoughMemory where the weights alone fill them."""
    parallel = serving.model_devices
    if serving.devices > instance.accelerator_count:
        has = f"{instance.name} has {instance.accelerator_count}"
        copies = f", {serving.data_parallel} times" if serving.data_parallel else ""
        raise RequestError(
            f"The weights are to be split over {parallel} GPUs{copies}, and {has}: give another {{}}.",
            "tensor_parallel",
        )
    room = parallel * instance.memory_gib_per_accelerator * GIB
    if weights > room:
        raise NotEnoughMemory(
            f"The weights take {weights / 1e9:.1f} GB, and {parallel} of {instance.name}'s "
            f"{instance.accelerator_count} GPUs hold {room / 1e9:.1f} GB: split them over more, or choose a larger "
            "instance."
        )


def _weights_quantization(folder: str | None) -> str | None:
    """Return the quantization method in the weights' own configuration, which the server reads."""
    try:
        document = json.loads((Path(folder or "") / "config.json").read_bytes())
    except (OSError, ValueError):
        raise NotFound(f"The files of the artifact are not at {folder}: make it again.") from None
    method = (document.get("quantization_config") or {}).get("quant_method")
    return None if method is None else str(method)


def preview(workspace: Workspace, deployment: Deployment, rollout: Rollout | None = None) -> dict[str, Any]:
    """The exact requests in order, with `rollout` those of an update, and what the endpoint would cost an hour; while
    both run, it costs both."""
    # 1. Build the requests.
    if rollout is None:
        calls = [*sagemaker_requests.create(deployment), *sagemaker_requests.around(deployment)]
    else:
        calls = [*sagemaker_requests.update(deployment, rollout)]
    # 2. Price the instances.
    row = targets.hardwares(workspace).instances[deployment.instance]
    price = row.sagemaker_usd_per_hour
    return {
        "deployment": deployment.model_dump(mode="json"),
        "weights": deployment.data,
        "requests": [call._asdict() for call in calls],
        "usd_per_hour": None if price is None else price * deployment.instances,
        "price_region": row.price_region,
        "discount": workspace.settings.discount,
    }


def deploy(workspace: Workspace, deployment: Deployment, say: Say) -> EndpointView:
    """Make it and wait until it is in service. Raises NotAllowed, ReadOnly, ArtifactCorrupt, DeployFailed, NotNow, and
    what AWS refuses."""
    detail = f"{deployment.artifact} on {deployment.instance}"
    with (
        workspace.changing(Action.DEPLOY, deployment.id, detail=detail),
        _weights_to_upload(workspace, deployment) as (folder, files),
    ):
        endpoint = Deployments(deployment.region).deploy(deployment, folder, files, say)
    watched, now = {idle_alarm(endpoint.name): False} if deployment.idle else {}, datetime.now(UTC)
    return _view(Endpoints(deployment.region), endpoint, targets.hardwares(workspace).instances, now, watched)


@contextmanager
def _weights_to_upload(workspace: Workspace, deployment: Deployment) -> Iterator[tuple[Path, dict[str, int]]]:
    """The folder of the artifact, and the sizes of what is uploaded of it."""
    shown = artifacts.show(workspace, deployment.artifact)
    place = locations.location_of(workspace.settings, shown.path)
    parts = ("model/", "draft/") if deployment.draft else ("model/",)
    with place.use(shown.path, deployment.artifact) as folder:
        yield folder, {file.path: file.size for file in shown.manifest.files if file.path.startswith(parts)}


def plan_update(
    workspace: Workspace,
    endpoint_id: str,
    artifact_id: str,
    changes: UpdateRequest,
    region: str | None = None,
    *,
    anyway: bool = False,
) -> tuple[Deployment, Rollout]:
    """Return the deployment after an update, with unchanged fields read from AWS; nothing is changed.

    Raises as `plan`, and NotNow where it was not deployed from an artifact.
    """
    # 1. Read what is deployed now.
    endpoints = Endpoints(_region(workspace, region))
    endpoint = endpoints.show(endpoint_id)
    deployed = endpoints.deployed(endpoint)
    # 2. Apply the changes; another instance or container resets what hangs on it.
    changed = changes.model_dump(exclude={"alarms", "bake_s"}, exclude_none=True)
    if changes.instance not in (None, deployed["instance"]):
        del deployed["tensor_parallel"]
    if changes.container not in (None, deployed["container"]):
        del deployed["image"]
    # 3. Plan it like a new deployment.
    request = DeploymentRequest(**{**deployed, **changed}, name=endpoint_id, region=endpoint.region)
    planned = _make_deployment(workspace, artifact_id, request, anyway=anyway).model_copy(
        update={"owner": endpoint.owner or ""}
    )
    return planned, Rollout(alarms=changes.alarms, bake_s=changes.bake_s, keep_count=changes.instances is None)


def update(workspace: Workspace, deployment: Deployment, rollout: Rollout, say: Say) -> list[Finding]:
    """Wait until it serves that, prove it, and remove what was served before. Raises NotFound, NotAllowed, ReadOnly,
    ArtifactCorrupt, DeployFailed, NotNow, and what AWS refuses."""
    with workspace.changing(
        Action.UPDATE_ENDPOINT, deployment.id, detail=f"{deployment.artifact} on {deployment.instance}"
    ):
        endpoints = Deployments(deployment.region)
        workspace.check(Action.UPDATE_ENDPOINT, endpoints.show(deployment.id).owner)
        with _weights_to_upload(workspace, deployment) as (folder, files):
            return endpoints.update(deployment, rollout, folder, files, say)


def listing(workspace: Workspace, region: str | None = None) -> list[EndpointView]:
    """Return the endpoints with our tags in a region (None: the environment's), newest first. Raises the errors of
    AWS."""
    aws_endpoints, now = Endpoints(_region(workspace, region)), datetime.now(UTC)
    endpoints = aws_endpoints.listing()
    instances, alarms = (targets.hardwares(workspace).instances, _alarms(aws_endpoints)) if endpoints else ({}, {})
    return [_view(aws_endpoints, each, instances, now, alarms) for each in endpoints]


def _alarms(endpoints: Endpoints) -> dict[str, bool]:
    """None where the credentials may not read them, or AWS is busy: what costs money is listed all the same."""
    with suppress(WhetstoneError):
        return endpoints.alarms()
    return {}


def _traffic(endpoints: Endpoints, endpoint: Endpoint, now: datetime) -> Traffic | None:
    """None as of alarms."""
    with suppress(WhetstoneError):
        return endpoints.traffic(endpoint, now)
    return None


def show(workspace: Workspace, endpoint_id: str, region: str | None = None) -> EndpointView:
    """Raises NotFound, and what AWS refuses."""
    aws_endpoints, now = Endpoints(_region(workspace, region)), datetime.now(UTC)
    endpoint = aws_endpoints.show(endpoint_id)
    return _view(aws_endpoints, endpoint, targets.hardwares(workspace).instances, now, _alarms(aws_endpoints))


def prove(workspace: Workspace, endpoint_id: str, region: str | None = None) -> list[Finding]:
    """Return findings on whether it serves what was deployed; sends it one request. Raises NotFound, NotNow,
    NotAllowed, and the errors of AWS."""
    workspace.check(Action.ASK)
    return Endpoints(_region(workspace, region)).prove(endpoint_id)


def delete(workspace: Workspace, endpoint_id: str, region: str | None = None) -> None:
    """With everything that was made for it. Raises NotFound, NotAllowed, ReadOnly, and what AWS refuses."""
    with workspace.changing(Action.DELETE_ENDPOINT, endpoint_id):
        endpoints = Deployments(_region(workspace, region))
        endpoint = endpoints.find(endpoint_id)
        if endpoint is not None:
            workspace.check(Action.DELETE_ENDPOINT, endpoint.owner)
        endpoints.delete(endpoint_id)


def _region(workspace: Workspace, region: str | None) -> str | None:
    return region or workspace.settings.aws.get("region")


def _view(
    aws_endpoints: Endpoints,
    endpoint: Endpoint,
    known: Mapping[str, Instance],
    now: datetime,
    alarms: Mapping[str, bool],
) -> EndpointView:
    row = known.get(endpoint.instance or "")
    each = row.sagemaker_usd_per_hour if row else None
    hour = None if each is None else each * endpoint.instances
    hours = max(0.0, (now - endpoint.since).total_seconds() / 3600)
    return EndpointView(
        id=endpoint.id,
        name=endpoint.name,
        region=endpoint.region,
        state=endpoint.state,
        reason=endpoint.reason,
        since=endpoint.since,
        artifact=endpoint.artifact,
        variant=endpoint.variant,
        owner=endpoint.owner,
        instance=endpoint.instance,
        instances=endpoint.instances,
        usd_per_hour=hour,
        usd_so_far=None if hour is None else hour * hours,
        price_region=row.price_region if row else None,
        idle=alarms.get(idle_alarm(endpoint.name)),
        discount=row.discount if row else 0.0,
        traffic=_traffic(aws_endpoints, endpoint, now),
    )


def deployable_instances(workspace: Workspace) -> dict[str, float | None]:
    """The instances that an endpoint of ours can be on, with their price an hour."""
    rows = targets.hardwares(workspace)
    return {
        name: row.sagemaker_usd_per_hour for name, row in rows.instances.items() if _unknown_instance(rows, row) is None
    }
