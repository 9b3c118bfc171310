"""A deployment to a SageMaker endpoint: one frozen document, and the names that follow from it.

Every name is derived from the endpoint's id and the content of the deployment, so that a deploy that was killed finds
what it made, and makes nothing twice. Knows nothing of AWS's calls (`requests`) and of the containers' variables
(`container`).
"""

from __future__ import annotations

import re
from typing import Annotated, Literal, TypeVar

from pydantic import Field, model_validator

from backend.domain.evaluation.document import Speculation
from backend.domain.frozen import Frozen, digest
from backend.domain.recipe.recipe import Serving
from backend.domain.validation import BUCKET, matching

PREFIX = "whetstone-"
"""The prefix of all our names: AWS can filter a list only by it."""
TAG = "whetstone:endpoint"
"""The tag whose value is the endpoint's id; what bears it is ours."""
ARTIFACT, OWNER, NAME, QUANTIZED = "whetstone:artifact", "whetstone:owner", "whetstone:name", "whetstone:quantized"
FOLDER = "whetstone-endpoints"
"""The folder below a bucket or its prefix that has a folder of weights for each endpoint's id."""
VARIANT = "AllTraffic"
CHANNEL = "draft"
ID = r"[a-z0-9](-?[a-z0-9])*"
ROLE, ROLE_WORDS = (
    r"arn:aws[a-z-]*:iam::\d{12}:role/[a-zA-Z0-9_+=,.@/-]+",
    "it must be a role such as arn:aws:iam::123456789012:role/NAME",
)
REGION, REGION_WORDS = r"[a-z]{2}(-[a-z]+)+-\d", "it must be a region such as us-east-1"
KEY, KEY_WORDS = r"[a-zA-Z0-9:/_-]+", "it must be the id, the alias or the ARN of a key"
WHEN = r"(cron|rate|at)\([^()]+\)"
TOPIC = r"arn:aws[a-z-]*:sns:[a-z0-9-]+:\d{12}:[\w.-]+"
UNTAGGED = re.compile(r"[^\w\s.:/=+@-]")
"""Characters that a tag's value must not contain."""

Container = Literal["lmi", "vllm"]
HOST = "al2023-ami-sagemaker-inference-gpu-4-1"
"""The host's image with the driver that CUDA 13 needs; the older families' own would not start these containers."""


Bounded = TypeVar("Bounded", "Capacity", "Scheduled")


def ordered(bounds: Bounded) -> Bounded:
    """Raises ValueError."""
    if bounds.maximum < bounds.minimum:
        raise ValueError(f"at most {bounds.maximum} instances are fewer than at least {bounds.minimum}")
    return bounds


class Capacity(Frozen):
    """So many instances that each serves about `invocations` a minute, between the fewest and the most."""

    minimum: int = Field(ge=1)
    """SageMaker keeps one at least: an endpoint that nobody may pay for is deleted."""
    maximum: int = Field(ge=1)
    invocations: float = Field(gt=0)

    _ordered = model_validator(mode="after")(ordered)


class Scheduled(Frozen):
    """The number of instances at set times, between the fewest and the most."""

    at: Annotated[str, matching(WHEN, "it must be cron(...), rate(...) or at(...), such as cron(0 8 ? * MON-FRI *)")]
    """Application Auto Scaling's own expression."""
    minimum: int = Field(ge=1)
    maximum: int = Field(ge=1)

    _ordered = model_validator(mode="after")(ordered)


class Idle(Frozen):
    """An alarm that goes off when nothing was asked for so many minutes."""

    minutes: int = Field(ge=1, le=1440)
    topic: Annotated[str, matching(TOPIC, "it must be the ARN of an SNS topic")] | None = None
    """The topic that is notified."""


class Rollout(Frozen):
    """The move of an update to the new instances, which run beside the old ones: all at once, then watched."""

    alarms: tuple[str, ...] = Field((), max_length=10)
    """Alarms of CloudWatch: if one goes off within `bake_s`, AWS goes back to the old instances by itself."""
    bake_s: int = Field(0, ge=0, le=3600)
    keep_count: bool = True
    """Use the number of instances that run now instead of the deployment's."""


AROUND = ("capacity", "schedule", "timezone", "idle")
"""Fields that can be changed without a change of what is served."""


class Deployment(Frozen):
    """A variant on a SageMaker endpoint: what is served, in which container, where, and on how many of which
    instance."""

    id: Annotated[str, matching(ID, "it must be of small letters, digits and single dashes")] = Field(max_length=32)
    region: Annotated[str, matching(REGION, REGION_WORDS)]
    role: Annotated[str, matching(ROLE, ROLE_WORDS)]
    artifact: str
    owner: str = ""
    name: str
    """The variant's name."""
    instance: str
    instances: int = Field(1, ge=1)
    container: Container = "lmi"
    image: str
    host: str = HOST
    bucket: Annotated[
        str, matching(rf"{BUCKET}(/[\w.=-]+)*", "it must be BUCKET or BUCKET/PREFIX, the bucket in small letters")
    ]
    serving: Serving = Serving()
    speculation: Speculation | None = None
    quantized: str | None = None
    """The `quant_method` of the weights' own configuration; None of 16-bit weights."""
    capacity: Capacity | None = None
    schedule: tuple[Scheduled, ...] = Field((), max_length=20)
    timezone: str | None = None
    """Time zone of the schedule, such as Europe/Berlin; None: UTC."""
    idle: Idle | None = None
    kms_key: Annotated[str, matching(KEY, KEY_WORDS)] | None = None
    """Encrypts the volume of the instances; a disk within the instance is encrypted by its own hardware."""
    subnets: tuple[str, ...] = Field((), max_length=16)
    security_groups: tuple[str, ...] = Field((), max_length=5)
    """The VPC that the containers are in; both or none."""
    download_s: int = Field(1800, ge=60, le=3600)
    """AWS gives up on fetching the weights then, and on a container that does not answer after `start_s`."""
    start_s: int = Field(1800, ge=60, le=3600)

    @model_validator(mode="after")
    def _whole(self) -> Deployment:
        if bool(self.subnets) != bool(self.security_groups):
            raise ValueError("needs both subnets and security groups for a VPC")
        return self

    @property
    def draft(self) -> bool:
        """Tell whether a draft's weights are served with the model's."""
        return self.speculation is not None and self.speculation.draft_path is not None

    @property
    def endpoint(self) -> str:
        return PREFIX + self.id

    @property
    def version(self) -> str:
        """The name of model and configuration: a new one for every content, since AWS lets neither be changed."""
        document = self.model_dump(mode="json", exclude={"owner", *AROUND})
        return f"{self.endpoint}-{digest(document)[:8]}"

    @property
    def key(self) -> str:
        """The prefix in the bucket under which `model/` lies, and `draft/` where there is one; it ends with a slash."""
        return f"{self.prefix}{FOLDER}/{self.id}/{self.artifact}/"

    @property
    def bucket_name(self) -> str:
        return self.bucket.partition("/")[0]

    @property
    def prefix(self) -> str:
        """The folder below the bucket; empty, or with a slash at its end."""
        below = self.bucket.partition("/")[2]
        return f"{below}/" if below else ""

    @property
    def data(self) -> str:
        return f"s3://{self.bucket_name}/{self.key}"

    @property
    def key_arn(self) -> str | None:
        """The ARN of the key, or of its alias."""
        partition, account = self.role.split(":")[1], self.role.split(":")[4]
        return None if self.kms_key is None else key_arn(self.kms_key, partition, self.region, account)

    @property
    def resource(self) -> str:
        """The endpoint's name in Application Auto Scaling."""
        return resource(self.endpoint)

    @property
    def marks(self) -> dict[str, str]:
        """The tags of everything that is made."""
        own = {
            TAG: self.id,
            ARTIFACT: self.artifact,
            OWNER: self.owner,
            NAME: self.name,
            QUANTIZED: self.quantized or "",
        }
        return {name: UNTAGGED.sub("_", value)[:256] for name, value in own.items() if value}


def key_arn(key: str, partition: str, region: str, account: str) -> str:
    """Return the ARN of a key by its id, its alias, or that ARN itself."""
    kind = "" if key.startswith("alias/") else "key/"
    return key if key.startswith("arn:") else f"arn:{partition}:kms:{region}:{account}:{kind}{key}"


def idle_alarm(endpoint: str) -> str:
    return f"{endpoint}-idle"


def resource(endpoint: str) -> str:
    """The endpoint's name in Application Auto Scaling."""
    return f"endpoint/{endpoint}/variant/{VARIANT}"


def is_version(name: str, endpoint: str) -> bool:
    """Return whether a model or configuration of that name was made for the endpoint."""
    return re.fullmatch(rf"{re.escape(endpoint)}-[0-9a-f]{{8}}", name) is not None
