"""The launcher of SageMaker's optimization jobs. It never waits for AWS: each attempt has a follower, and `poll`
returns what the follower saw.

`start` sends AWS nothing: the handle, with the name by which the job is found again, is in the store before the first
`poll` has the job created. So no job ever runs there that no row names, and a supervisor that dies at any point submits
none twice.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from backend import channel as channels
from backend.aws.s3 import ConnectionLost
from backend.aws.sagemaker import Busy, Expired, NameTaken, Refused, ResourceMissing, Service
from backend.channel import Channel, JobChannel
from backend.domain.errors import AccessRefused, RequestError, WhetstoneError, WorkError
from backend.domain.jobs.jobs import Event, Handle, ManagedSpec, WorkerState
from backend.domain.managed import optimization_job_status, optimization_requests
from backend.domain.managed.optimization_job_status import JobDescription, PollingPace
from backend.launchers import weight_upload
from backend.launchers.base import Launcher
from backend.settings import Settings

SLICE_S = 2.0
"""Between two signs of life of a follower."""
POLLED_S = 15.0
"""A follower whose supervisor asks no more creates nothing: that one has lost the job, and another may have it."""
SETTLE_S = 20.0
"""Seconds that a job that was perhaps created may be unknown to AWS (eventual consistency) before it counts as never
created."""
GONE_S = 180.0
"""Seconds that one that was certainly created may be unknown before it counts as deleted."""
REPORT_S = 60.0
"""Between two events about what a running job has cost."""
SILENT_POLLS = 3
"""Polls in a row without an answer after which the job says so."""
SWEEP_S = 3.0
"""Seconds that a round of the supervisor may wait for AWS to accept a stop."""


class Interrupted(WorkError):
    """The upload was stopped; what has arrived stays for the next one."""


class StillRunning(WorkError):
    """A job may still run at AWS; it is stopped again."""


def is_managed(channel: Channel) -> bool:
    """Return whether AWS runs the job of that channel."""
    return bool(json.loads(channel.spec()).get("kind") == "managed")


class SageMakerLauncher(Launcher):
    """A handle's data: `name` of the optimization job, `folder` and `attempt` of the channel. Its place becomes the
    job's ARN."""

    name = "sagemaker"

    def __init__(
        self,
        settings: Settings,
        *,
        pace: Callable[[], PollingPace] = PollingPace,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._settings, self._pace, self._clock = settings, pace, clock
        self._followers: dict[str, ManagedJobFollower] = {}
        self._stops: dict[str, Stop] = {}

    def start(self, job_id: str, channel: Channel) -> Handle:
        handle = self._handle(job_id, Path(channel.address))
        self._follow(handle, fresh=True)
        return handle

    def poll(self, handle: Handle) -> WorkerState:
        return self._follow(handle).poll()

    def cancel(self, handle: Handle, *, force: bool) -> None:
        """Ask AWS to stop the job; it has no harder way."""
        self._follow(handle).cancel()

    def sweep(self, job_id: str, handle: Handle | None) -> None:
        """Stop what runs at AWS. Raises StillRunning while AWS has not accepted the stop."""
        for attempt in [handle] if handle else self._begun(job_id):
            follower = self._follow(attempt)
            if not follower.settled.is_set():
                follower.cancel()
            if not follower.settled.wait(SWEEP_S):
                raise StillRunning(
                    f"{attempt.data['name']} may still run at AWS ({follower.why}): it is stopped again."
                )
            follower.stop()
            del self._followers[str(attempt.data["name"])]

    def ended_elsewhere(self, spec: str, handle: Handle) -> bool:
        name = str(handle.data["name"])
        if name not in self._stops:
            self._stops[name] = Stop(ManagedSpec.model_validate_json(spec).region, name, self._pace())
        return self._stops[name].accepted.is_set()

    def _begun(self, job_id: str) -> list[Handle]:
        """Return handles, by name, of attempts that no row names."""
        handles = []
        for path in (path for path in (self._settings.jobs / job_id).glob("*") if path.name.isdigit()):
            with suppress(OSError):  # it was not opened to its end, so nothing was begun
                if is_managed(channels.attempt_channel(self._settings, job_id, int(path.name))):
                    handles.append(self._handle(job_id, path))
        return handles

    def _handle(self, job_id: str, folder: Path) -> Handle:
        name = optimization_requests.job_name(job_id, int(folder.name))
        return Handle(
            launcher=self.name,
            place=f"optimization job {name} of SageMaker",
            data={"name": name, "folder": str(folder.parent), "attempt": int(folder.name)},
        )

    def _follow(self, handle: Handle, *, fresh: bool = False) -> ManagedJobFollower:
        name = str(handle.data["name"])
        if name not in self._followers:
            channel = Channel(Path(str(handle.data["folder"])), int(str(handle.data["attempt"])))
            spec = ManagedSpec.model_validate_json(channel.spec())
            worker = JobChannel(Path(channel.address))
            self._followers[name] = ManagedJobFollower(spec, name, worker, self._pace(), self._clock, fresh=fresh)
            result = channel.result()

            if result is not None and result.outcome == "succeeded":  # its result is being put in its place
                self._followers[name].over()
        return self._followers[name]


class Stop:
    """Asks AWS, in a thread of its own, to stop a job whose follower is gone. `accepted` is set once AWS does, or the
    job has ended."""

    def __init__(self, region: str | None, name: str, pace: PollingPace) -> None:
        self.accepted = threading.Event()
        self._service, self._name, self._pace = Service(region=region), name, pace
        threading.Thread(target=self._ask, daemon=True, name=f"stop {name}").start()

    def _ask(self) -> None:
        while not self.accepted.is_set():
            try:
                with suppress(Refused, ResourceMissing):  # it has ended, or was never created
                    self._service.call("stop_optimization_job", OptimizationJobName=self._name)
                self.accepted.set()
            except WhetstoneError as error:
                logging.warning("%s may still run at AWS, and its supervisor is gone: %s", self._name, error)
                time.sleep(self._pace.after_silence())


class ManagedJobFollower:
    """Follows one attempt in a thread of its own: creates its job, polls it, stops it, and writes what happened to the
    job's channel.

    `settled`: nothing of it runs at AWS, or it is stopping there.
    """

    def __init__(
        self,
        spec: ManagedSpec,
        name: str,
        channel: JobChannel,
        pace: PollingPace,
        clock: Callable[[], datetime],
        *,
        fresh: bool,
    ) -> None:
        self._spec, self._name, self._channel, self._pace, self._clock = spec, name, channel, pace, clock
        self._service, self._once = Service(region=spec.region), Service(region=spec.region, tries=1)
        self._state, self.why, self.settled = WorkerState(alive=True), "it was not asked yet", threading.Event()
        self._tried = not fresh
        """It may have been created: by a request whose answer was lost, or by an earlier supervisor."""
        self._refused: str | None = None
        """Why AWS refused a later request, which says nothing about the first."""
        self._known, self._asked, self._stopped, self._ended = False, False, False, False
        self._status, self._missing_since_s, self._reported_s, self._failed = "", 0.0, 0.0, 0
        self._content = ""
        """The folder of the weights that were uploaded."""
        self._polled, self._woken, self._lock = time.monotonic(), threading.Event(), threading.Lock()
        self._thread: threading.Thread | None = None

    def poll(self) -> WorkerState:
        self._polled = time.monotonic()
        self._begin()
        return self._state

    def over(self) -> None:
        """Send AWS no more requests: the attempt has ended."""
        self._ended, self._state = True, WorkerState(alive=False, place=self._state.place)
        self.settled.set()

    def cancel(self) -> None:
        if not self._asked:
            self._asked = True
            self._woken.set()
        self._begin()

    def stop(self) -> None:
        """Stop following."""
        self._stopped = True
        self._woken.set()

    def _begin(self) -> None:
        with self._lock:
            if not (self._ended or self._stopped or (self._thread and self._thread.is_alive())):
                self._thread = threading.Thread(target=self._run, daemon=True, name=self._name)
                self._thread.start()

    def _run(self) -> None:
        while not (self._ended or self._stopped):
            self._pause(self.step())

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not (self._ended or self._stopped) and (left := until - time.monotonic()) > 0:
            self._channel.beat()
            if self._woken.wait(min(left, SLICE_S)):
                self._woken.clear()
                return

    def step(self) -> float:
        """Poll once and act on it. Return the seconds until the next poll."""
        try:
            changed = self._poll_aws()
        except WhetstoneError as error:
            return self._not_answered(error)
        self._failed = 0
        return self._pace.after_answer(changed=changed)

    def _not_answered(self, error: Exception) -> float:
        """Note that AWS is away or busy, the credentials are no longer valid, or the disk is full: the job goes on, and
        so does this."""
        self._failed, self.why = self._failed + 1, str(error).rstrip(".")
        logging.warning("%s: %s", self._name, error)
        if self._failed >= SILENT_POLLS or not isinstance(error, Busy):
            missing = (
                "AWS" if isinstance(error, AccessRefused | Refused | Busy | ConnectionLost) else "room for its record"
            )
            self._state = WorkerState(alive=True, waiting=f"for {missing}: {self.why}")
        return self._pace.after_silence()

    def _poll_aws(self) -> bool:
        """Poll the job. Return whether anything has changed."""
        if not (self._known or self._tried):
            return self._create()
        try:
            answer = self._service.call("describe_optimization_job", OptimizationJobName=self._name)
        except ResourceMissing:
            return self._absent()
        self._known, self._missing_since_s = True, 0.0
        return self._record_status(optimization_job_status.read_description(answer))

    def _create(self) -> bool:
        """Create the job. Sent once: botocore's own second try would hide what became of the first."""
        # 1. Give up a job that was cancelled, or that nobody polls.
        if self._asked:
            return self._end_uncreated()
        if time.monotonic() - self._polled > POLLED_S:
            return False

        # 2. Upload the weights first.
        if self._spec.weights is not None and not self._content:
            return self._upload(Path(self._spec.weights))

        # 3. Create the job.
        request = optimization_requests.with_source(self._spec.request, self._content)
        try:
            self._once.call("create_optimization_job", **optimization_requests.with_name(request, self._name))
        except NameTaken:  # an answer that was lost, or a supervisor before this one
            pass
        except Expired:
            raise
        except Busy:
            self._tried, self._missing_since_s = True, time.monotonic()
            raise
        except (AccessRefused, Refused) as error:
            self._refused = str(error)
            return False if self._tried else self._end_uncreated()
        self._known = True
        self._channel.emit(
            Event(kind="phase", phase="sagemaker", message=f"SageMaker has the optimization job {self._name}.")
        )
        return True

    def _upload(self, folder: Path) -> bool:
        """Upload the weights. What broke off goes on at the next poll, and the job is created at the one after."""
        place = str(self._spec.request["ModelSource"]["S3"]["S3Uri"]).partition(f"/{optimization_requests.CONTENT}")[0]
        message = f"Uploading the weights to {place}."
        self._channel.emit(Event(kind="phase", phase="upload", message=message))
        try:
            self._content = weight_upload.upload(folder, place, self._report_upload)
        except Interrupted:
            return True
        # Access may be granted later: the next polls try again.
        except AccessRefused:
            raise
        except (weight_upload.WeightsMissing, RequestError) as error:
            self._refused = str(error)
            return self._end_uncreated()
        self._channel.emit(Event(kind="phase", phase="upload", message=f"The weights are in {place}/{self._content}/."))
        return True

    def _report_upload(self, done: int, total: int) -> None:
        """Show a sign of life, and every other second the progress. Raises Interrupted."""
        if self._asked or self._stopped:
            raise Interrupted
        if time.monotonic() - self._reported_s > SLICE_S:
            self._reported_s = time.monotonic()
            self._channel.beat()
            if total:
                counted = {"done": float(done), "total": float(total), "unit": "bytes"}
                self._channel.emit(Event(kind="progress", phase="upload", **counted))

    def _absent(self) -> bool:
        now = time.monotonic()
        self._missing_since_s = self._missing_since_s or now
        lacking_s = now - self._missing_since_s
        if self._known and lacking_s > GONE_S:
            error = (
                f"SageMaker does not know {self._name} any more: somebody deleted the optimization job; resume this job"
            )
            self._finish({"outcome": "failed", "error": error})
        elif not self._known and not self._asked and self._refused is None:
            return self._create()
        elif not self._known and lacking_s > SETTLE_S:
            return self._end_uncreated()
        return False

    def _end_uncreated(self) -> bool:
        """End an attempt whose job was not created, and will not be."""
        if self._refused is not None and not self._asked:
            self._finish({"outcome": "failed", "error": self._refused})
        else:
            self._finish({"outcome": "cancelled", "error": "The job was cancelled before SageMaker had begun it."})
        return True

    def _record_status(self, description: JobDescription) -> bool:
        now, changed = self._clock(), description.status != self._status

        # 1. End the attempt with the job.
        if description.final:
            self._end(description, now)
            return True

        # 2. Stop the job if a person asked for that.
        self._status = description.status
        self._state = WorkerState(alive=True, place=description.arn)
        if self._asked and description.status != "STOPPING":
            with suppress(Refused, ResourceMissing):  # it has ended meanwhile
                self._service.call("stop_optimization_job", OptimizationJobName=self._name)
            changed = True
        if description.status == "STOPPING":
            self.settled.set()

        # 3. Report status and cost.
        if changed or time.monotonic() - self._reported_s > REPORT_S:
            self._reported_s = time.monotonic()
            message, cost = (
                description.sentence(self._spec.price_per_hour, now),
                description.cost(self._spec.price_per_hour, now),
            )
            data = {"status": description.status, **({} if cost is None else {"usd": round(cost, 4)})}
            self._channel.emit(
                Event(kind="progress", phase="sagemaker", message=message if changed else None, data=data)
            )
        return changed

    def _end(self, description: JobDescription, now: datetime) -> None:
        price = self._spec.price_per_hour
        if description.status == "COMPLETED":
            message = f"{description.sentence(price, now)} The result is in {description.output}."
            self._channel.emit(Event(kind="phase", phase="sagemaker", message=message, progress=1.0))
            self._finish({"outcome": "succeeded", "document": description.result(price, now)})
        elif description.status == "STOPPED" and self._asked:
            self._finish(
                {"outcome": "cancelled", "error": f"{description.sentence(price, now)} Nothing of it runs any more."}
            )
        else:
            self._finish({"outcome": "failed", "error": description.failure(price, now)})

    def _finish(self, result: dict[str, object]) -> None:
        """Write the result, then end: whoever sees the end finds the result."""
        self._channel.result(result)
        self.over()
