"""Endpoints of SageMaker that are ours: made, waited for, listed, asked, and taken away with everything that was made for them.

What there is stands in AWS alone, marked by tags; nothing of it is kept here. Nothing of this was ever run on AWS: it is tested
against a server of the published shapes (decision 0029).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from backend.aws.objects import Objects
from backend.aws.sagemaker import Busy, Lacking, Refused, Service, Taken
from backend.domain.deploy import proof, requests
from backend.domain.deploy.deployment import ARTIFACT, FOLDER, NAME, OWNER, PREFIX, QUANTIZED, TAG, Deployment, is_version
from backend.domain.deploy.deployment import resource as scaled_resource
from backend.domain.errors import NotFound, NotNow, WhetstoneError, WorkError

FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 30.0
SEEN_WITHIN_S = 60.0
"""A new endpoint may not be found so long: AWS's lists follow its creations late."""
PROVISIONING_S = 900.0
"""On top of download and start, for the instance itself."""
DELETED_WITHIN_S = 1800.0
LOGGED_WITHIN_S = 60.0
"""The engine writes its counts every ten seconds, and CloudWatch takes some more."""
BUSY_STATES = frozenset({"Creating", "Updating", "SystemUpdating", "RollingBack"})
Say = Callable[[str], None]


class DeployFailed(WorkError):
    """The endpoint did not come into service; nothing of it is left."""


class Endpoint(NamedTuple):
    """As AWS has it now. `instances` are those that run; None where AWS does not say the instance (yet)."""

    id: str
    name: str
    region: str
    state: str
    reason: str | None
    since: datetime
    version: str
    instance: str | None
    instances: int
    artifact: str
    owner: str | None
    variant: str
    quantized: str | None


def home_region(region: str | None) -> str:
    """The one given, else that of the environment. Raises Refused where there is none."""
    service = Service("sagemaker", region)
    with service.explained():
        return str(service.client.meta.region_name)


class Endpoints:
    """Those of one region (None: the environment's). Methods raise what `aws.sagemaker.Service` and `aws.s3.Bucket` do."""

    def __init__(self, region: str | None = None, sleep: Callable[[float], None] | None = None) -> None:
        self._region, self._sleep = region, sleep or time.sleep
        self._sagemaker = Service("sagemaker", region)

    # what there is

    def listing(self) -> list[Endpoint]:
        """The newest first. One that goes away meanwhile is left out."""
        pages = self._sagemaker.pages("list_endpoints", NameContains=PREFIX, SortBy="CreationTime", SortOrder="Descending")
        names = [each["EndpointName"] for page in pages for each in page["Endpoints"]]
        endpoints = [self._read(name) for name in names if name.startswith(PREFIX)]
        return [each for each in endpoints if each is not None]

    def find(self, endpoint_id: str) -> Endpoint | None:
        return self._read(PREFIX + endpoint_id)

    def show(self, endpoint_id: str) -> Endpoint:
        """Raises NotFound."""
        endpoint = self.find(endpoint_id)
        if endpoint is None:
            raise NotFound(
                f"There is no endpoint `{endpoint_id[:60]}` of Whetstone's in this region: see `whetstone endpoints list`."
            )
        return endpoint

    def _read(self, name: str) -> Endpoint | None:
        """None where there is none, or where it is not ours."""
        try:
            stated = self._sagemaker.call("describe_endpoint", EndpointName=name)
            tags = self._tags(stated["EndpointArn"])
        except Lacking:
            return None
        if TAG not in tags:
            return None
        version = stated.get("EndpointConfigName", "")
        running = sum(each.get("CurrentInstanceCount") or 0 for each in stated.get("ProductionVariants", []))
        return Endpoint(
            id=tags[TAG], name=name, region=stated["EndpointArn"].split(":")[3], state=stated["EndpointStatus"],
            reason=stated.get("FailureReason"), since=stated["CreationTime"], version=version, instance=self._instance(version),
            instances=running, artifact=tags.get(ARTIFACT, ""), owner=tags.get(OWNER), variant=tags.get(NAME, ""),
            quantized=tags.get(QUANTIZED),
        )  # fmt: skip

    def _instance(self, version: str) -> str | None:
        with suppress(Lacking):
            found = self._sagemaker.call("describe_endpoint_config", EndpointConfigName=version)
            return str(found["ProductionVariants"][0]["InstanceType"])
        return None

    def _tags(self, arn: str) -> dict[str, str]:
        pages = self._sagemaker.pages("list_tags", ResourceArn=arn)
        return {each["Key"]: each["Value"] for page in pages for each in page["Tags"]}

    # making

    def deploy(self, deployment: Deployment, folder: Path, files: Mapping[str, int], say: Say) -> Endpoint:
        """Upload what is missing, make the three, wait until it is in service. Called again after it was killed, it goes on.

        What fails after the upload takes everything back; an upload that breaks stays as far as it came, for the next try.
        Raises DeployFailed, NotNow where that name is taken by another deployment.
        """
        there = self.find(deployment.id)
        if there is not None and there.version != deployment.version:
            raise NotNow(
                f"{deployment.id} is served already, as {there.artifact} on {there.instance}: delete it, or give another name."
            )
        self._upload(deployment, folder, files, say)
        try:
            return self._create(deployment, say)
        except BaseException as error:
            self._take_back(deployment, error, say)
            raise

    def _create(self, deployment: Deployment, say: Say) -> Endpoint:
        for call in requests.create(deployment):
            say(call.operation.replace("_", " "))
            with suppress(Taken):  # by this very deployment: the name holds its content
                self._sagemaker.call(call.operation, **call.parameters)
        self._wait(deployment, say)
        scaling = Service("application-autoscaling", self._region)
        for call in requests.scaling(deployment):
            scaling.call(call.operation, **call.parameters)
        return self.show(deployment.id)

    def _upload(self, deployment: Deployment, folder: Path, files: Mapping[str, int], say: Say) -> None:
        bucket = Objects(deployment.bucket_name)
        present = {each.key: each.size for each in bucket.below(deployment.key)}
        missing = {path: size for path, size in files.items() if present.get(deployment.key + path) != size}
        for number, path in enumerate(sorted(missing), 1):
            say(f"uploading {path} ({number} of {len(missing)}, {missing[path] / 1e6:,.1f} MB)")
            bucket.put(folder / path, deployment.key + path)

    def _wait(self, deployment: Deployment, say: Say) -> None:
        patience, waited, pause = deployment.download_s + deployment.start_s + PROVISIONING_S, 0.0, FIRST_PAUSE_S
        while True:
            state, reason = self._state(deployment.endpoint, patient=waited < SEEN_WITHIN_S)
            if state == "InService":
                return
            if state not in BUSY_STATES:
                raise DeployFailed(f"The endpoint is {state}: {(reason or 'AWS gives no reason').rstrip('.')}.")
            if waited >= patience:
                raise DeployFailed(f"The endpoint was still {state} after {waited / 60:.0f} minutes.")
            say(f"{state}, {waited:.0f} s")
            self._sleep(pause)
            waited, pause = waited + pause, min(pause * 1.5, LONGEST_PAUSE_S)

    def _state(self, name: str, *, patient: bool) -> tuple[str, str | None]:
        """`patient`: one that is not found yet is being created. AWS that is busy knows nothing new."""
        try:
            found = self._sagemaker.call("describe_endpoint", EndpointName=name)
        except Busy:
            return "Creating", None
        except Lacking:
            if patient:
                return "Creating", None
            raise DeployFailed("The endpoint is gone: somebody deleted it.") from None
        return found["EndpointStatus"], found.get("FailureReason")

    def _take_back(self, deployment: Deployment, error: BaseException, say: Say) -> None:
        say("taking back what was made")
        try:
            self._remove(deployment.id, {deployment.data})
        except WhetstoneError as left:
            raise DeployFailed(
                f"{error} What was made is still there and may cost money, since it could not be taken back ({left}): run "
                f"`whetstone endpoints delete {deployment.id}`."
            ) from error

    # taking away

    def delete(self, endpoint_id: str) -> None:
        """The endpoint, its autoscaling, configurations, models and weights. Raises NotFound where there is nothing."""
        if not self._remove(endpoint_id, set()):
            self.show(endpoint_id)

    def _remove(self, endpoint_id: str, data: set[str]) -> bool:
        """Whether anything was there. What is not ours stays: everything must bear the tag of this endpoint."""
        name = PREFIX + endpoint_id
        there = self.find(endpoint_id) is not None
        models = self._made("list_models", "Models", "Model", endpoint_id)
        configurations = self._made("list_endpoint_configs", "EndpointConfigs", "EndpointConfig", endpoint_id)
        data = data | {uri for model in models for uri in self._data(model, endpoint_id)}
        if there:
            with suppress(Lacking):
                where = requests.scaled(scaled_resource(name))
                Service("application-autoscaling", self._region).call("deregister_scalable_target", **where)
            self._delete_endpoint(name)
        for operation, field, names in (
            ("delete_endpoint_config", "EndpointConfigName", configurations), ("delete_model", "ModelName", models),
        ):  # fmt: skip
            for each in names:
                with suppress(Lacking):
                    self._sagemaker.call(operation, **{field: each})
        for uri in sorted(data):
            bucket, _, key = uri.removeprefix("s3://").partition("/")
            Objects(bucket).remove_below(key)
        return there or bool(models or configurations or data)

    def _made(self, operation: str, members: str, kind: str, endpoint_id: str) -> list[str]:
        """The names of models or configurations that were made for it."""
        pages = self._sagemaker.pages(operation, NameContains=PREFIX + endpoint_id)
        rows: Iterable[dict[str, Any]] = (each for page in pages for each in page[members])
        named = [(each[f"{kind}Name"], each[f"{kind}Arn"]) for each in rows]
        return [name for name, arn in named if is_version(name, PREFIX + endpoint_id) and self._tags(arn).get(TAG) == endpoint_id]

    def _data(self, model: str, endpoint_id: str) -> set[str]:
        """The folder of its weights, where it is one of ours."""
        found = self._model(model)["PrimaryContainer"]["ModelDataSource"]["S3DataSource"]["S3Uri"]
        before, folder, _ = found.partition(f"/{FOLDER}/{endpoint_id}/")
        return {before + folder} if folder else set()

    def _model(self, name: str) -> dict[str, Any]:
        return self._sagemaker.call("describe_model", ModelName=name)

    def _delete_endpoint(self, name: str) -> None:
        """AWS refuses while it is being made or changed: asked again until it is gone."""
        waited = 0.0
        while waited < DELETED_WITHIN_S:
            try:
                if self._sagemaker.call("describe_endpoint", EndpointName=name)["EndpointStatus"] != "Deleting":
                    self._sagemaker.call("delete_endpoint", EndpointName=name)
            except Lacking:
                return
            except Refused as error:
                if "in-progress" not in str(error):
                    raise
            self._sleep(FIRST_PAUSE_S)
            waited += FIRST_PAUSE_S
        raise WorkError(f"{name} was not gone after {waited / 60:.0f} minutes and may cost money: delete it again.")

    # proving

    def prove(self, endpoint_id: str, patience_s: float = LOGGED_WITHIN_S) -> list[proof.Finding]:
        """Ask it once, and read in the engine's log what it serves. Raises NotFound, NotNow where it is not in service."""
        endpoint = self.show(endpoint_id)
        if endpoint.state != "InService":
            raise NotNow(f"{endpoint_id} is {endpoint.state}, so it cannot be asked.")
        environment = self._model(endpoint.version)["PrimaryContainer"].get("Environment", {})
        expected = proof.Expected(quantized=endpoint.quantized, speculation=proof.speculation_of(environment))
        probed = proof.answered(self.ask(endpoint.name, proof.QUESTION))
        lines, waited = self._log(endpoint.name), 0.0
        while not proof.settled(expected, lines) and waited < patience_s:
            self._sleep(FIRST_PAUSE_S)
            waited += FIRST_PAUSE_S
            lines = self._log(endpoint.name)
        return [probed, *proof.logged(expected, lines)]

    def ask(self, name: str, body: Mapping[str, Any]) -> bytes:
        """The container's answer to one request."""
        runtime = Service("sagemaker-runtime", self._region)
        with runtime.explained():
            answer = runtime.client.invoke_endpoint(EndpointName=name, ContentType="application/json", Body=json.dumps(body))
            content: bytes = answer["Body"].read()
            return content

    def _log(self, name: str) -> list[str]:
        """None of it where there is no log, or where the credentials may not read it: then nothing is proven by it."""
        logs = Service("logs", self._region)
        with suppress(WhetstoneError):
            pages = logs.pages("filter_log_events", logGroupName=f"/aws/sagemaker/Endpoints/{name}", filterPattern=proof.PATTERN)
            return [str(each.get("message", "")) for page in pages for each in page.get("events", [])]
        return []
