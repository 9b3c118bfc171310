"""Settings of a job on AWS beside its recipe, as a person writes them.

`NAME=VALUE`, or WHETSTONE_AWS_NAME in the environment.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated

from pydantic import Field, ValidationError

from backend.domain.deploy.deployment import KEY, KEY_WORDS, REGION, REGION_WORDS, ROLE, ROLE_WORDS
from backend.domain.errors import InvalidOptions
from backend.domain.frozen import Frozen
from backend.domain.jobs import terms
from backend.domain.similar_names import nearest
from backend.domain.validation import BUCKET, first_flaw, matching

LONGEST_S = 36_000
"""The toolkit's own default of a job's runtime."""
MOST_VARIABLES, MOST_TAGS = 25, 50
S3_PATTERN = rf"s3://{BUCKET}(/\S*)?"
S3 = "it must be an address such as s3://bucket/prefix/, the bucket in small letters, digits, dots and dashes"
SOURCE_PATTERN = rf"{S3_PATTERN}|model:[a-zA-Z0-9](-*[a-zA-Z0-9])*"
WORDS = {
    "role": "the role that SageMaker takes on, by its ARN",
    "output": "where the result goes, s3://BUCKET/PREFIX",
    "source": "where the weights are, s3://BUCKET/PREFIX, or model:NAME, a model of SageMaker",
    "upload": "where weights on this machine are copied first, s3://BUCKET/PREFIX",
    "fetch": "no: the result stays in S3 alone",
    "accept-eula": "yes: you accept the model's licence",
    "kms-key": "the key that encrypts the result",
    "subnets": "of the VPC, with commas",
    "security-groups": "of the VPC, with commas",
    "max-runtime": "such as 10h",
    "image": "of the container that optimizes",
    "training-data": "prompts for an EAGLE head, s3://BUCKET/PREFIX",
    "region": "where the job runs",
    "tag.KEY": "a tag",
    "env.NAME": "an environment variable of the container",
}
"""Every setting, and what it is."""
LISTS = {"subnets", "security_groups"}
SECRET = re.compile(r"(?i)secret|password|token|api_?key|credential")


class AwsSettings(Frozen):
    """The settings of one job. Empty fields are left out of the request."""

    role: Annotated[str, matching(ROLE, ROLE_WORDS)]
    output: Annotated[str, matching(S3_PATTERN, S3)]
    source: Annotated[str, matching(SOURCE_PATTERN, f"{S3}, or model:NAME")] | None = None
    """None: the weights are on this machine, and are first copied below `upload`."""
    upload: Annotated[str, matching(S3_PATTERN, S3)] | None = None
    fetch: bool = True
    """A result that can be served here becomes an artifact."""
    accept_eula: bool = False
    kms_key: Annotated[str, matching(KEY, KEY_WORDS)] | None = None
    subnets: tuple[str, ...] = Field((), max_length=16)
    security_groups: tuple[str, ...] = Field((), max_length=5)
    max_runtime_s: int = Field(LONGEST_S, ge=1)
    image: Annotated[str, matching(r"\S+", "it must be the address of an image")] | None = Field(None, max_length=255)
    training_data: Annotated[str, matching(S3_PATTERN, S3)] | None = None
    region: Annotated[str, matching(REGION, REGION_WORDS)] | None = None
    tags: dict[str, str] = Field(default_factory=dict, max_length=MOST_TAGS)
    environment: dict[str, str] = Field(default_factory=dict, max_length=MOST_VARIABLES)


def read_settings(lines: Iterable[str], environment: Mapping[str, str], *, here: bool = False) -> AwsSettings:
    """Read the settings of a job: `lines` of NAME=VALUE, then `environment` by the names of WORDS in small letters.

    `here`: the model's weights are on this machine.

    Raises InvalidOptions with one sentence on the first that lacks, is unknown or is wrong.
    """
    # 1. Lines count before the environment.
    written = {**environment, **dict(_pair(line) for line in lines)}
    values: dict[str, object] = {"tags": {}, "environment": {}}
    for name, value in written.items():
        _put(values, name, value.strip())
    # 2. What every job needs.
    missing = next((name for name in ("role", "output") if not values.get(name)), None)
    if missing:
        remedy = f"give {{}} {missing}=... or set WHETSTONE_AWS_{missing.upper()}"
        raise InvalidOptions(f"A job on SageMaker needs {WORDS[missing]}: {remedy}.", "aws")
    if not (values.get("source") or (here and values.get("upload"))):
        sent = " or, since they are on this machine, upload=s3://BUCKET/PREFIX" if here else ""
        raise InvalidOptions(
            f"A job on SageMaker needs {WORDS['source']}: give {{}} source=s3://BUCKET/PREFIX{sent}.", "aws"
        )
    if bool(values.get("subnets")) != bool(values.get("security_groups")):
        raise InvalidOptions("A VPC needs both: give {} subnets=... and {} security-groups=... together.", "aws", "aws")
    # 3. The form of each value.
    try:
        return AwsSettings.model_validate(values)
    except ValidationError as error:
        flaw = first_flaw(error)
        name = (flaw.field or "").replace("max_runtime_s", "max_runtime").replace("_", "-")
        raise InvalidOptions(f"{{}} {name} {flaw.problem}.", "aws") from None


def _pair(written: str) -> tuple[str, str]:
    name, equals, value = written.partition("=")
    if not equals:
        raise InvalidOptions(f"{{}} {name[:60]} needs a value: write NAME=VALUE.", "aws")
    return name.strip(), value


def _put(values: dict[str, object], name: str, value: str) -> None:
    # 1. Tags and variables of the environment, by names of their own.
    kind, dot, rest = name.partition(".")
    if dot and kind in {"tag", "env"} and rest:
        if kind == "env" and SECRET.search(rest):
            raise InvalidOptions(
                f"{{}} env.{rest[:60]} looks like a secret that all see who see the job: leave it out.", "aws"
            )
        values["tags" if kind == "tag" else "environment"][rest] = value  # type: ignore[index]
        return
    # 2. A known setting.
    if name not in WORDS or dot:
        near = ", ".join(nearest(name, WORDS))
        raise InvalidOptions(f"There is no AWS setting `{name[:60]}`: the nearest are {near}.")
    # 3. Its value, in the form of its field.
    field = name.replace("-", "_")
    if field in LISTS:
        values[field] = tuple(filter(None, map(str.strip, value.split(","))))
    elif field in {"accept_eula", "fetch"}:
        if value:
            values[field] = _yes(name, value)
    elif field == "max_runtime":
        values["max_runtime_s"] = _seconds(value)
    else:
        values[field] = value or None


def _seconds(value: str) -> int:
    try:
        return int(terms.parse_seconds(value, "max-runtime"))
    except InvalidOptions as error:
        raise InvalidOptions(f"{{}} max-runtime {error.problem}", "aws") from None


def _yes(name: str, value: str) -> bool:
    if value.lower() not in {"yes", "true", "1", "no", "false", "0"}:
        raise InvalidOptions(f"{{}} {name} is yes or no, not `{value[:20]}`.", "aws")
    return value.lower() in {"yes", "true", "1"}
