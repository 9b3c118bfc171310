"""Our endpoints of SageMaker: listed, read and proven. `deployments` makes and changes them.

AWS alone records what exists, marked by tags. Nothing of this was ever run on AWS: it is tested against a server of the
published shapes (decision 0029).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

from backend.aws.sagemaker import Busy, ResourceMissing, Service
from backend.domain.deploy import deployment_evidence, sagemaker_requests
from backend.domain.deploy import endpoint_metrics as metrics
from backend.domain.deploy.deployment import ARTIFACT, NAME, OWNER, PREFIX, QUANTIZED, TAG
from backend.domain.errors import NotFound, NotNow, WhetstoneError
from backend.domain.evaluation.evidence.schema import Finding

FIRST_PAUSE_S = 5.0
LOGGED_WITHIN_S = 60.0
"""The engine writes its counts every ten seconds, and CloudWatch takes some more."""


class Endpoint(NamedTuple):
    """An endpoint as AWS has it now. `instances` are those that run; None if AWS does not say the instance (yet).

    What is served is read from the tags of the configuration in use, since an update changes that and not the
    endpoint's own tags.
    """

    id: str
    name: str
    region: str
    state: str
    reason: str | None
    since: datetime
    version: str
    pending: str | None
    """The configuration that it is being updated to."""
    configured: datetime | None
    """When the configuration was made: what serves it started later."""
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


def read_tags(sagemaker: Service, arn: str) -> dict[str, str]:
    """Return the tags of that resource."""
    return {tag["Key"]: tag["Value"] for page in sagemaker.pages("list_tags", ResourceArn=arn) for tag in page["Tags"]}


class Endpoints:
    """The endpoints of one region (None: the environment's). Methods raise what `aws.sagemaker.Service` and
    `aws.s3.Bucket` raise."""

    def __init__(self, region: str | None = None, sleep: Callable[[float], None] | None = None) -> None:
        self._region, self._sleep = region, sleep or time.sleep
        self._services: dict[str, Service] = {}
        self._sagemaker = self._service("sagemaker")

    def _service(self, name: str) -> Service:
        return self._services.setdefault(name, Service(name, self._region))

    # what there is

    def listing(self) -> list[Endpoint]:
        """Return our endpoints, the newest first. One that is deleted meanwhile is left out."""
        pages = self._sagemaker.pages(
            "list_endpoints", NameContains=PREFIX, SortBy="CreationTime", SortOrder="Descending"
        )
        names = [endpoint["EndpointName"] for page in pages for endpoint in page["Endpoints"]]
        endpoints = [self._read(name) for name in names if name.startswith(PREFIX)]
        return [endpoint for endpoint in endpoints if endpoint is not None]

    def find(self, endpoint_id: str) -> Endpoint | None:
        return self._read(PREFIX + endpoint_id)

    def show(self, endpoint_id: str) -> Endpoint:
        """Return the endpoint. Raises NotFound."""
        endpoint = self.find(endpoint_id)
        if endpoint is None:
            raise NotFound(
                f"There is no endpoint `{endpoint_id[:60]}` of Whetstone's in this region: "
                "see `whetstone endpoints list`."
            )
        return endpoint

    def _read(self, name: str) -> Endpoint | None:
        """Return the endpoint; None if there is none, or if it is not ours."""
        # 1. Read the endpoint and its tags.
        try:
            description = self._sagemaker.call("describe_endpoint", EndpointName=name)
            tags = read_tags(self._sagemaker, description["EndpointArn"])
        except ResourceMissing:
            return None
        if TAG not in tags:
            return None

        # 2. Read the configuration in use, whose tags say what is served.
        version = description.get("EndpointConfigName", "")
        configuration: dict[str, Any] = {}
        with suppress(ResourceMissing):  # AWS has it not (yet)
            configuration = self._sagemaker.call("describe_endpoint_config", EndpointConfigName=version)
        served = read_tags(self._sagemaker, configuration["EndpointConfigArn"]) if configuration else tags
        running = sum(variant.get("CurrentInstanceCount") or 0 for variant in description.get("ProductionVariants", []))
        return Endpoint(
            id=tags[TAG],
            name=name,
            region=description["EndpointArn"].split(":")[3],
            state=description["EndpointStatus"],
            reason=description.get("FailureReason"),
            since=description["CreationTime"],
            version=version,
            pending=description.get("PendingDeploymentSummary", {}).get("EndpointConfigName"),
            configured=configuration.get("CreationTime"),
            instances=running,
            instance=configuration["ProductionVariants"][0]["InstanceType"] if configuration else None,
            artifact=served.get(ARTIFACT, ""),
            owner=tags.get(OWNER),
            variant=served.get(NAME, ""),
            quantized=served.get(QUANTIZED),
        )

    def _model(self, name: str) -> dict[str, Any]:
        return self._sagemaker.call("describe_model", ModelName=name)

    def deployed(self, endpoint: Endpoint) -> dict[str, Any]:
        """Return what an update of it keeps, as fields of a deployment. Raises NotFound if model or configuration are
        gone."""
        configuration = self._sagemaker.call("describe_endpoint_config", EndpointConfigName=endpoint.version)
        return sagemaker_requests.read(self._model(configuration["ProductionVariants"][0]["ModelName"]), configuration)

    def alarms(self, prefix: str = PREFIX) -> dict[str, bool]:
        """Return for every alarm whose name begins so whether it went off."""
        pages = self._service("cloudwatch").pages("describe_alarms", AlarmNamePrefix=prefix)
        return {
            alarm["AlarmName"]: alarm["StateValue"] == "ALARM"
            for page in pages
            for alarm in page.get("MetricAlarms", [])
        }

    def traffic(self, endpoint: Endpoint, now: datetime) -> metrics.Traffic:
        """Return the requests that it got. CloudWatch is some minutes behind."""
        since = metrics.query(endpoint.name, endpoint.since, now, metrics.COUNTED)
        hour = metrics.query(endpoint.name, max(endpoint.since, now - metrics.HOUR), now)
        return metrics.traffic(self._metrics(since), self._metrics(hour))

    def _metrics(self, query: Mapping[str, Any]) -> dict[str, list[float]]:
        try:
            return metrics.values(self._service("cloudwatch").pages("get_metric_data", **query))
        except ValueError as error:
            raise Busy(f"CloudWatch could not answer ({error}): try again in a minute.") from None

    # proving

    def prove(self, endpoint_id: str, patience_s: float = LOGGED_WITHIN_S) -> list[Finding]:
        """Send one request, and read in the engine's log what it serves. Raises NotFound, NotNow if it is not in
        service."""
        endpoint = self.show(endpoint_id)
        if endpoint.state != "InService":
            raise NotNow(f"{endpoint_id} is {endpoint.state}, so it cannot be asked.")

        # 1. Send a request.
        environment = self._model(endpoint.version)["PrimaryContainer"].get("Environment", {})
        expected = deployment_evidence.ExpectedServing(
            quantized=endpoint.quantized, speculation=deployment_evidence.read_speculation(environment)
        )
        probed = deployment_evidence.check_answer(self.ask(endpoint.name, deployment_evidence.QUESTION))

        # 2. Read the log until it says enough.
        lines, waited = self._log(endpoint), 0.0
        while not deployment_evidence.is_settled(expected, lines) and waited < patience_s:
            self._sleep(FIRST_PAUSE_S)
            waited += FIRST_PAUSE_S
            lines = self._log(endpoint)
        return [probed, *deployment_evidence.check_log(expected, lines)]

    def ask(self, name: str, body: Mapping[str, Any]) -> bytes:
        """The container's answer to one request."""
        runtime = Service("sagemaker-runtime", self._region)
        with runtime.explained():
            answer = runtime.client.invoke_endpoint(
                EndpointName=name, ContentType="application/json", Body=json.dumps(body)
            )
            content: bytes = answer["Body"].read()
            return content

    def _log(self, endpoint: Endpoint) -> list[str]:
        """Return the log lines of what serves it now. Empty if there is no log, or if the credentials may not read it:
        nothing is proven then."""
        logs = self._service("logs")
        with suppress(WhetstoneError):
            group = f"/aws/sagemaker/Endpoints/{endpoint.name}"
            since = {"startTime": int(endpoint.configured.timestamp() * 1000)} if endpoint.configured else {}
            pages = logs.pages(
                "filter_log_events", logGroupName=group, filterPattern=deployment_evidence.PATTERN, **since
            )
            return [str(event.get("message", "")) for page in pages for event in page.get("events", [])]
        return []
