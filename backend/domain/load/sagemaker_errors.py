"""Explains why SageMaker's runtime did not answer an invocation, in one sentence for each error of AWS. Pure.

By its published service model (botocore 1.44.5, sagemaker-runtime 2017-05-13) and the errors common to AWS's services.
A ModelError wraps the status that the container gave.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

ERROR_TYPE_HEADER = "x-amzn-errortype"
"""The header that names an error."""
MODEL_ERROR = 424
EXPIRED_CODES = frozenset({"ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"})
UNKNOWN_CODES = frozenset(
    {
        "UnrecognizedClientException",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "IncompleteSignature",
    }
)
DENIED_CODES = frozenset({"AccessDenied", "AccessDeniedException", "UnauthorizedOperation", "OptInRequired", "403"})
THROTTLED_CODES = frozenset(
    {"Throttling", "ThrottlingException", "ThrottledException", "TooManyRequestsException", "SlowDown"}
)
NEEDED_ACTIONS = ("sagemaker:InvokeEndpoint", "sagemaker:InvokeEndpointWithResponseStream")
"""Two permissions: the first does not include streaming."""
ACTION = re.compile(r"sagemaker:Invoke\w+")
BROKEN_ANSWERS = {
    "ModelInvocationTimeExceeded": "the container did not end its answer in the time that SageMaker allows",
    "StreamBroken": "the connection between SageMaker and the container broke",
    "ModelStreamError": "the container broke off its answer",
    "InternalStreamFailure": "SageMaker itself failed while the answer was streamed",
}
"""Why an answer broke off, by ErrorCode or the name of the exception."""


def error_name(fields: Mapping[str, str], body: bytes) -> str:
    """Return the name of an error, from the answer's header fields (names in lower case) or its body; empty without
    one."""
    stated = fields.get(ERROR_TYPE_HEADER) or str(json_document(body).get("__type") or "")
    return stated.partition(":")[0].rpartition("#")[2]


def container_status(status: int, body: bytes) -> int:
    """Return the status that the container gave, where SageMaker wrapped it; else `status`."""
    original = json_document(body).get("OriginalStatusCode") if status == MODEL_ERROR else None
    return original if type(original) is int else status


def container_body(body: bytes) -> bytes:
    """Return the container's own answer inside a ModelError, else `body`."""
    original = json_document(body).get("OriginalMessage")
    return original.encode() if isinstance(original, str) and original else body


def describe_refusal(status: int, fields: Mapping[str, str], body: bytes) -> str:
    """Say in one sentence why the request was refused."""
    kind, document = error_name(fields, body), json_document(body)
    message = " ".join(str(document.get("Message") or document.get("message") or "").split()).rstrip(".")[:200]
    # 1. Credentials and permissions.
    if kind in EXPIRED_CODES or "security token included in the request is expired" in message:
        return "The AWS credentials in use have expired: renew them, then measure again."
    if kind in UNKNOWN_CODES:
        return f"AWS does not accept the credentials in use ({kind}): set valid ones."
    if kind in DENIED_CODES or status == 403:
        named = ACTION.search(message)
        needed = named[0] if named else " and ".join(sorted(NEEDED_ACTIONS))
        return f"AWS refuses: the credentials in use need {needed} for this endpoint."
    # 2. The endpoint and its container.
    if kind == "ModelNotReadyException":
        return "The endpoint's model is not ready (ModelNotReadyException): wait until it is loaded."
    if kind in THROTTLED_CODES or status == 429:
        return (
            f"SageMaker throttles the requests ({kind or status}): send fewer requests, or have the account's quota "
            "raised."
        )
    if status == MODEL_ERROR:
        inner = " ".join(str(document.get("OriginalMessage") or "").split()).rstrip(".")[:120] or "no reason given"
        return f"The container answered with HTTP {document.get('OriginalStatusCode', 'an error')}: {inner}."
    if "not found" in message.lower() or "could not find" in message.lower():
        return "There is no such endpoint in service in this region: see `whetstone endpoints list`."
    if status >= 500:
        return f"SageMaker itself failed (HTTP {status}{f', {kind}' if kind else ''}): try again in a minute."
    return f"SageMaker refuses the request ({kind or status}): {message or 'no reason given'}."


def broken_answer(kind: str, words: str) -> str:
    """Say in one sentence why an answer broke off."""
    detail = " ".join(words.split()).rstrip(".")[:200]
    reason = BROKEN_ANSWERS.get(kind, "SageMaker gave no other reason")
    return f"The answer broke off ({kind}): {reason}{f'; {detail}' if detail else ''}."


def json_document(body: bytes) -> dict[str, Any]:
    """Parse a JSON object; empty where it is none."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
