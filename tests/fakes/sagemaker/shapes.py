"""Requests and answers held to botocore's service model, and to what the service checks and botocore does not: enum
values, patterns and most lengths."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import cache
from typing import Any

import botocore.session
from botocore.model import OperationModel, ServiceModel, Shape
from botocore.validate import ParamValidator

from tests.fakes.sagemaker.account import Refused

CLASSES = {
    r"\p{L}": r"\w",
    r"\p{N}": r"\d",
    r"\p{Z}": r"\s",
    r"\p{M}": "",
    r"\p{S}": "",
    r"\p{P}": "",
    r"\p{Print}": r"\S",
    r"\p{Alnum}": r"\w",
    r"\uD800\uDC00-\uDBFF\uDFFF": "",
}
"""Java's classes of letters, numbers and spaces as Python has them, near enough; its surrogates are no characters
here."""


@cache
def service(name: str) -> ServiceModel:
    return botocore.session.get_session().get_service_model(name)


@cache
def by_target(prefix: str) -> str | None:
    """botocore's name of the service whose requests carry that prefix in X-Amz-Target."""
    known = ("sagemaker", "application-autoscaling", "pricing", "events", "logs", "cloudwatch")
    return next((name for name in known if service(name).metadata.get("targetPrefix") == prefix), None)


def signing_name(name: str) -> str:
    metadata = service(name).metadata
    return str(metadata.get("signingName", metadata["endpointPrefix"]))


def model(name: str, operation: str) -> OperationModel:
    return service(name).operation_model(operation)


def check(request: dict[str, Any], shape: Shape) -> None:
    """Raises Refused as the service would."""
    report = ParamValidator().validate(request, shape)
    errors = [report.generate_report()] if report.has_errors() else list(_errors(request, shape, ""))
    if errors:
        raise Refused("ValidationException", f"{len(errors)} validation error detected: {'; '.join(errors)}")


def _errors(value: Any, shape: Shape, name: str) -> Any:
    kind = shape.type_name
    if kind == "structure":
        for key, each in value.items():
            yield from _errors(each, shape.members[key], f"{name}.{key}".lstrip("."))
        return
    if kind == "list":
        for number, each in enumerate(value):
            yield from _errors(each, shape.member, f"{name}[{number}]")
    elif kind == "map":
        for key, each in value.items():
            yield from _errors(key, shape.key, f"{name}.{key}")
            yield from _errors(each, shape.value, f"{name}.{key}")
    elif kind == "string":
        yield from _text_errors(value, shape, name)
    most = shape.metadata.get("max")
    if (
        most is not None
        and kind != "blob"
        and (value if kind in {"integer", "long", "float", "double"} else len(value)) > most
    ):
        yield f"Value '{value}' at '{name}' failed to satisfy constraint: Member must be at most {most}"


def _text_errors(value: str, shape: Shape, name: str) -> Any:
    enum, pattern = shape.metadata.get("enum"), shape.metadata.get("pattern")
    if enum and value not in enum:
        yield f"Value '{value}' at '{name}' failed to satisfy constraint: Member must satisfy enum value set: {enum}"
    if pattern and not _pattern(pattern).fullmatch(value):
        yield (
            f"Value '{value}' at '{name}' failed to satisfy constraint: Member must satisfy regular expression: "
            f"{pattern}"
        )


@cache
def _pattern(written: str) -> re.Pattern[str]:
    for java, ours in CLASSES.items():
        written = written.replace(java, ours)
    return re.compile(written, re.DOTALL)


def answer(value: Any, shape: Shape) -> Any:
    """Without what is None; a name that the model does not have is a mistake of the fake."""
    if shape.type_name == "structure":
        missing = [name for name in shape.required_members if name not in value]
        assert not missing, f"the fake's answer lacks {missing}"
        return {key: answer(each, shape.members[key]) for key, each in value.items() if each is not None}
    if shape.type_name == "list":
        return [answer(each, shape.member) for each in value]
    if shape.type_name == "map":
        return {key: answer(each, shape.value) for key, each in value.items()}
    return value


def moment(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
