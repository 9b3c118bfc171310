"""Endpoints of SageMaker: made, updated in place, and taken away with everything that was made for them (decision
0029).

Each step can be sent again: a command that was killed between any two calls goes on when it is called once more. What
there is stands in AWS alone. Nothing of this was ever run on AWS: it is tested against a server of the published
shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from backend.aws.objects import Objects
from backend.aws.sagemaker import Busy, NameTaken, Refused, ResourceMissing
from backend.domain.deploy import sagemaker_requests
from backend.domain.deploy.deployment import FOLDER, PREFIX, TAG, Deployment, Rollout, idle_alarm, is_version
from backend.domain.deploy.deployment import resource as scaled_resource
from backend.domain.errors import NotNow, WhetstoneError, WorkError
from backend.domain.evaluation.evidence.schema import Finding
from backend.launchers.endpoints import FIRST_PAUSE_S, Endpoint, Endpoints, read_tags

LONGEST_PAUSE_S = 30.0
SEEN_WITHIN_S = 60.0
"""A new endpoint may not be found so long, nor an update be seen: AWS's answers follow its changes late."""
LISTED_WITHIN_S = 15.0
"""A list may lack so long what was made."""
DELETED_WITHIN_S = 1800.0
UNKNOWN = "Unknown"
"""The state while AWS is too busy to say it."""
BUSY_STATES = frozenset({"Creating", "Updating", "SystemUpdating", "RollingBack"})
Say = Callable[[str], None]


class DeployFailed(WorkError):
    """The endpoint did not come into service, or does not serve what it was updated to."""


class OtherVersionServes(DeployFailed):
    """The endpoint serves another configuration than the expected one: AWS took back an update."""


class EndpointDeleted(DeployFailed):
    """Somebody deleted the endpoint meanwhile."""


class EndpointState(NamedTuple):
    state: str
    version: str = ""
    pending: str | None = None
    reason: str | None = None


class Deployments(Endpoints):
    # making

    def deploy(self, deployment: Deployment, folder: Path, files: Mapping[str, int], say: Say) -> Endpoint:
        """Upload what is missing, make the three, wait until it is in service. Called again after it was killed, it
        goes on.

        What fails after the upload takes everything back, but one that was in service before; an upload that breaks
        stays as far as it came, for the next try. Raises DeployFailed, NotNow where that name is taken by another
        deployment.
        """
        there = self.find(deployment.id)
        if there is not None and there.version != deployment.version:
            raise NotNow(
                f"{deployment.id} is served already, as {there.artifact} on {there.instance}: update it with "
                f"`whetstone endpoints update {deployment.id} {deployment.artifact}`, delete it, or give another name."
            )

        # 1. Upload the files.
        self._upload(deployment, folder, files, say)

        # 2. Make model, configuration and endpoint, and wait.
        try:
            self._make(sagemaker_requests.create(deployment), say)
            self._until(deployment.endpoint, deployment.version, sagemaker_requests.longest(deployment), say)
            self._around(deployment)
            return self.show(deployment.id)
        except OtherVersionServes as error:
            self._withdraw(deployment, error, say)
            raise NotNow(f"{deployment.id} is served already, by another deployment: give another name.") from None
        except BaseException as error:
            if there is None or there.state != "InService":
                self._take_back(deployment, error, say)
            raise

    def _make(self, calls: Iterable[sagemaker_requests.Call], say: Say) -> None:
        for call in calls:
            say(call.operation.replace("_", " "))
            with suppress(NameTaken):  # by this very deployment: the name holds its content
                self._patiently(call)

    def _patiently(self, call: sagemaker_requests.Call) -> None:
        """Call AWS, again while it does not see yet what was made a moment ago (documented for `CreateEndpoint`)."""
        waited = 0.0
        while True:
            try:
                self._sagemaker.call(call.operation, **call.parameters)
                return
            except ResourceMissing:
                if waited >= SEEN_WITHIN_S:
                    raise
            self._sleep(FIRST_PAUSE_S)
            waited += FIRST_PAUSE_S

    def _around(self, deployment: Deployment) -> None:
        """Make what belongs to an endpoint in service (autoscaling, alarm) in place of what was there."""
        self._remove_around(deployment.endpoint)
        for call in sagemaker_requests.around(deployment):
            self._service(call.service).call(call.operation, **call.parameters)

    def _upload(self, deployment: Deployment, folder: Path, files: Mapping[str, int], say: Say) -> None:
        bucket = Objects(deployment.bucket_name)
        present = {object_.key: object_.size for object_ in bucket.objects(deployment.key, deep=True)}
        missing = {path: size for path, size in files.items() if present.get(deployment.key + path) != size}
        for number, path in enumerate(sorted(missing), 1):
            say(f"uploading {path} ({number} of {len(missing)}, {missing[path] / 1e6:,.1f} MB)")
            bucket.put(folder / path, deployment.key + path)

    # waiting

    def _until(self, name: str, version: str, patience: float, say: Say) -> None:
        """Wait until it is in service with that configuration. Raises OtherVersionServes, EndpointDeleted,
        DeployFailed."""
        waited, pause, moved = 0.0, FIRST_PAUSE_S, False
        while True:
            # 1. Read its state.
            endpoint = self._read_state(name, patient=waited < SEEN_WITHIN_S)
            moved = moved or endpoint.state in BUSY_STATES
            if endpoint.state == "InService" and endpoint.version == version:
                return
            reason = (endpoint.reason or "AWS gives no reason").rstrip(".")

            # 2. Stop if it will never serve that configuration.
            if endpoint.state == "InService" and (moved or waited >= SEEN_WITHIN_S):
                raise OtherVersionServes(
                    f"AWS {'went back to' if moved else 'stayed at'} what was served before: {reason}."
                )
            if endpoint.state not in BUSY_STATES | {UNKNOWN, "InService"}:
                raise DeployFailed(f"The endpoint is {endpoint.state}: {reason}.")
            if waited >= patience:
                raise DeployFailed(f"The endpoint was still {endpoint.state} after {waited / 60:.0f} minutes.")

            # 3. Wait, longer each time.
            say(f"{endpoint.state}, {waited:.0f} s")
            self._sleep(pause)
            waited, pause = waited + pause, min(pause * 1.5, LONGEST_PAUSE_S)

    def _read_state(self, name: str, *, patient: bool) -> EndpointState:
        """Read the endpoint's state. `patient`: an endpoint that AWS does not know yet is being created. A busy AWS
        says nothing new."""
        try:
            description = self._sagemaker.call("describe_endpoint", EndpointName=name)
        except Busy:
            return EndpointState(UNKNOWN)
        except ResourceMissing:
            if patient:
                return EndpointState("Creating")
            raise EndpointDeleted("The endpoint is gone: somebody deleted it.") from None
        pending = description.get("PendingDeploymentSummary", {}).get("EndpointConfigName")
        return EndpointState(
            description["EndpointStatus"],
            description.get("EndpointConfigName", ""),
            pending,
            description.get("FailureReason"),
        )

    # updating

    def update(
        self, deployment: Deployment, rollout: Rollout, folder: Path, files: Mapping[str, int], say: Say
    ) -> list[Finding]:
        """New instances with that deployment, to which the endpoint goes over; proven, and only then is the old one
        removed.

        Where AWS goes back, or where it serves something else than what was deployed, the old one serves on and
        everything new is taken away. AWS stops no update that it has begun: interrupted then, it goes on there, and the
        same call sees it through. Raises NotFound, NotNow, DeployFailed.
        """
        there = self.show(deployment.id)
        self._check(there, deployment)

        # 1. Begin the update, unless an interrupted call has begun it.
        if deployment.version not in (there.version, there.pending):
            self._upload(deployment, folder, files, say)
            try:
                self._make(sagemaker_requests.content(deployment), say)
            except BaseException as error:
                self._withdraw(deployment, error, say)
                raise
            self._go_over(deployment, sagemaker_requests.update(deployment, rollout)[-1], say)
        try:
            self._until(
                deployment.endpoint, deployment.version, 2 * sagemaker_requests.longest(deployment, rollout), say
            )
        except EndpointDeleted as error:
            self._take_back(deployment, error, say)
            raise
        except OtherVersionServes as error:
            self._withdraw(deployment, error, say)
            raise
        except BaseException:
            say("the update goes on at AWS: the same command again sees it through")
            raise
        return self._settle(deployment, there, say)

    def _check(self, there: Endpoint, deployment: Deployment) -> None:
        """Raise NotNow if the endpoint cannot be updated to that deployment now."""
        if there.state != "InService" and deployment.version not in (there.version, there.pending):
            raise NotNow(
                f"{there.id} is {there.state}, and only what is in service can be updated: see it again later."
            )
        if there.pending not in (None, deployment.version):
            raise NotNow(f"{there.id} is being updated to something else: see it again later.")
        if there.instance not in (None, deployment.instance) and self._scaled(there.name):
            raise NotNow(
                "AWS cannot change the instance of an endpoint that scales by itself: leave it on "
                f"{there.instance}, or deploy it under another name and delete this one."
            )

    def _scaled(self, name: str) -> bool:
        """Return whether Application Auto Scaling has the endpoint."""
        target = sagemaker_requests.scaled(scaled_resource(name))
        query = {"ServiceNamespace": target["ServiceNamespace"], "ResourceIds": [target["ResourceId"]]}
        pages = self._service("application-autoscaling").pages("describe_scalable_targets", **query)
        return any(page["ScalableTargets"] for page in pages)

    def _go_over(self, deployment: Deployment, call: sagemaker_requests.Call, say: Say) -> None:
        """Begin the update. If AWS refuses it, nothing stays. If interrupted here, nobody knows whether it has begun,
        so nothing is removed."""
        try:
            self._shift(call, say)
        except WhetstoneError as error:
            self._withdraw(deployment, error, say)
            raise

    def _shift(self, call: sagemaker_requests.Call, say: Say) -> None:
        """Call the update. One whose answer was lost may have begun, and is refused a second time; waiting shows what
        became of it."""
        say(call.operation.replace("_", " "))
        try:
            self._patiently(call)
        except Busy:
            return
        except Refused as error:
            if "in-progress" not in str(error):
                raise

    def _settle(self, deployment: Deployment, there: Endpoint, say: Say) -> list[Finding]:
        """Prove the update; then remove what was served before, or go back to it."""
        findings = self.prove(deployment.id)
        wrong = " ".join(item.words for item in findings if item.proven is False)
        older = [item for item in self._configurations(deployment.id) if item != deployment.version]
        # Go back to what was served before.
        if wrong and older:
            before = there.version if there.version in older else older[0]
            say("going back: it does not serve what was deployed")
            self._shift(sagemaker_requests.shift(deployment.endpoint, before, sagemaker_requests.AT_ONCE), say)
            self._until(deployment.endpoint, before, 2 * sagemaker_requests.longest(deployment), say)
            self._discard(deployment.id, deployment, alone=True)
            raise DeployFailed(f"{wrong} What was served before serves on; the new one is taken away.")
        # The update is proven: nobody needs the older version.
        if not wrong:
            say("removing what was served before")
            self._discard(deployment.id, keep=deployment)
        return findings

    # taking away

    def delete(self, endpoint_id: str) -> None:
        """Delete the endpoint, its autoscaling and alarm, configurations, models and weights.

        Raises NotFound if there is nothing, even a little later: what was just made may be listed late.
        """
        waited = 0.0
        while not self._remove(endpoint_id):
            if waited >= LISTED_WITHIN_S:
                self.show(endpoint_id)
                return
            self._sleep(FIRST_PAUSE_S)
            waited += FIRST_PAUSE_S

    def _take_back(self, deployment: Deployment, error: BaseException, say: Say) -> None:
        """Remove everything of the endpoint after a failure."""
        say("taking back what was made")
        try:
            self._remove(deployment.id, deployment)
        except WhetstoneError as left:
            raise DeployFailed(
                f"{error} What was made is still there and may cost money, since it could not be taken back ({left}): "
                "run "
                f"`whetstone endpoints delete {deployment.id}`."
            ) from error

    def _withdraw(self, deployment: Deployment, error: BaseException, say: Say) -> None:
        """Remove the model, the configuration and the weights of that deployment alone, which nothing runs."""
        say("taking back what was made")
        try:
            self._discard(deployment.id, deployment, alone=True)
        except WhetstoneError as left:
            raise DeployFailed(
                f"{error} What was served before serves on. Model, configuration and weights of the new one could "
                f"not be taken back ({left}): the next update of {deployment.id} removes them, or its deletion."
            ) from error

    def _remove(self, endpoint_id: str, known: Deployment | None = None) -> bool:
        """Remove everything that bears the tag of this endpoint. Return whether anything was there."""
        name = PREFIX + endpoint_id
        ours, foreign = self._ours(name)
        around = False if foreign else self._remove_around(name)
        # one that was just made may not be found yet: what was made for it says that it may be there
        if ours or (not foreign and (known or self._configurations(endpoint_id))):
            self._delete_endpoint(name)
        return self._discard(endpoint_id, known) or ours or around

    def _remove_around(self, name: str) -> bool:
        """Remove autoscaling and alarm of an endpoint, also of one that somebody else deleted. Return whether there
        were any."""
        scaled, watched = False, idle_alarm(name) in self.alarms(idle_alarm(name))
        with suppress(ResourceMissing):  # its policies and scheduled actions go with it
            where = sagemaker_requests.scaled(scaled_resource(name))
            self._service("application-autoscaling").call("deregister_scalable_target", **where)
            scaled = True
        with suppress(ResourceMissing):  # one that was just made may not be listed yet
            self._service("cloudwatch").call("delete_alarms", AlarmNames=[idle_alarm(name)])
        return scaled or watched

    def _ours(self, name: str) -> tuple[bool, bool]:
        """Return whether there is one of ours, and whether there is one of somebody else's."""
        try:
            arn = self._sagemaker.call("describe_endpoint", EndpointName=name)["EndpointArn"]
        except ResourceMissing:
            return False, False
        ours = TAG in read_tags(self._sagemaker, arn)
        return ours, not ours

    def _discard(
        self, endpoint_id: str, known: Deployment | None = None, *, keep: Deployment | None = None, alone: bool = False
    ) -> bool:
        """Remove configurations, weights, and last the models, by which the weights are found. Return whether there
        were any.

        `known` is removed whether lists have it yet or not, and with `alone` nothing else; `keep` stays, and so do
        weights that a remaining model is served from. If nothing remains, the endpoint's folder goes too, with uploads
        that broke off.
        """
        # 1. Decide which models and configurations go.
        models = self._list_made("list_models", "Models", "Model", endpoint_id)
        configurations = self._configurations(endpoint_id)
        own = {known.version} if known else set()
        going = own if alone else ({*models, *configurations} | own) - ({keep.version} if keep else set())

        # 2. Decide which weights go.
        data = {name: self._data(name, endpoint_id) for name in {*models, *configurations}}
        staying = {uri for name, uris in data.items() if name not in going for uri in uris} | (
            {keep.data} if keep else set()
        )
        weights = {uri for name in going for uri in data.get(name, ())} | ({known.data} if known else set())
        if not (alone or keep):
            weights = {uri.rsplit("/", 2)[0] + "/" for uri in weights}

        # 3. Remove them; models last.
        self._delete_each("delete_endpoint_config", "EndpointConfigName", going)
        for uri in sorted(weights - staying):
            bucket, _, key = uri.removeprefix("s3://").partition("/")
            Objects(bucket).remove_below(key)
        self._delete_each("delete_model", "ModelName", going)
        return bool(models or configurations)

    def _delete_each(self, operation: str, field: str, names: Iterable[str]) -> None:
        for name in sorted(names):
            with suppress(ResourceMissing):
                self._sagemaker.call(operation, **{field: name})

    def _configurations(self, endpoint_id: str) -> list[str]:
        """Return the configurations made for it, the newest first."""
        return self._list_made("list_endpoint_configs", "EndpointConfigs", "EndpointConfig", endpoint_id)

    def _list_made(self, operation: str, members: str, kind: str, endpoint_id: str) -> list[str]:
        """Return the names of models or configurations made for it, the newest first."""
        pages = self._sagemaker.pages(
            operation, NameContains=PREFIX + endpoint_id, SortBy="CreationTime", SortOrder="Descending"
        )
        rows = [(row[f"{kind}Name"], row[f"{kind}Arn"]) for page in pages for row in page[members]]
        named = [(name, arn) for name, arn in rows if is_version(name, PREFIX + endpoint_id)]
        return [name for name, arn in named if read_tags(self._sagemaker, arn).get(TAG) == endpoint_id]

    def _data(self, model: str, endpoint_id: str) -> set[str]:
        """Return the folder of the model's weights, if it is one of ours."""
        try:
            uri = self._model(model)["PrimaryContainer"]["ModelDataSource"]["S3DataSource"]["S3Uri"]
        except ResourceMissing:
            return set()
        before, folder, after = uri.partition(f"/{FOLDER}/{endpoint_id}/")
        return {f"{before}{folder}{after.partition('/')[0]}/"} if folder else set()

    def _delete_endpoint(self, name: str) -> None:
        """Delete the endpoint. AWS refuses while it is being made or changed, so this tries again until it is gone."""
        waited = 0.0
        while waited < DELETED_WITHIN_S:
            try:
                self._sagemaker.call("delete_endpoint", EndpointName=name)
            except ResourceMissing:
                return
            except Busy:
                pass
            except Refused as error:
                if "in-progress" not in str(error):
                    raise
            self._sleep(FIRST_PAUSE_S)
            waited += FIRST_PAUSE_S
        raise WorkError(f"{name} was not gone after {waited / 60:.0f} minutes and may cost money: delete it again.")
