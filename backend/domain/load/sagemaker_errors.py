"""The names of AWS's errors, and what SageMaker's runtime means when it does not answer an invocation: one sentence
each. Pure.

By its published service model (botocore 1.44.5, sagemaker-runtime 2017-05-13) and the errors common to AWS's services.
A status that the container gave stands inside a ModelError.
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
"""Two rights: the first gives none to stream."""
ACTION = re.compile(r"sagemaker:Invoke\w+")
BROKEN_ANSWERS = {
    "ModelInvocationTimeExceeded": "the container did not end its answer in the time that SageMaker allows",
    "StreamBroken": "the connection between SageMaker and the container broke",
    "ModelStreamError": "the container broke off its answer",
    "InternalStreamFailure": "SageMaker itself failed while the answer was streamed",
}
"""Of an answer under way, by ErrorCode or the exception's own name."""


def error_name(fields: Mapping[str, str], body: bytes) -> str:
    """The name of an error, from the answer's header fields (names in lower case) or its body; empty where neither has
    one."""
    stated = fields.get(ERROR_TYPE_HEADER) or str(json_document(body).get("__type") or "")
    return stated.partition(":")[0].rpartition("#")[2]


def container_status(status: int, body: bytes) -> int:
    """The status that the container gave, where SageMaker wrapped it; else `status`."""
    found = json_document(body).get("OriginalStatusCode") if status == MODEL_ERROR else None
    return found if type(found) is int else status


def container_body(body: bytes) -> bytes:
    """The container's own answer inside a ModelError, else `body`."""
    found = json_document(body).get("OriginalMessage")
    return found.encode() if isinstance(found, str) and found else body


def describe_refusal(status: int, fields: Mapping[str, str], body: bytes) -> str:
    """One sentence, with the full stop."""
    kind, told = error_name(fields, body), json_document(body)
    said = " ".join(str(told.get("Message") or told.get("message") or "").split()).rstrip(".")[:200]
    if kind in EXPIRED_CODES or "security token included in the request is expired" in said:
        return "The AWS credentials in use have expired: renew them, then measure again."
    if kind in UNKNOWN_CODES:
        return f"AWS does not accept the credentials in use ({kind}): set valid ones."
    if kind in DENIED_CODES or status == 403:
        needed = named[0] if (named := ACTION.search(said)) else " and ".join(sorted(NEEDED_ACTIONS))
        return f"AWS refuses: the credentials in use need {needed} for this endpoint."
    if kind == "ModelNotReadyException":
        return "The endpoint's model is not ready (ModelNotReadyException): wait until it is loaded."
    if kind in THROTTLED_CODES or status == 429:
        return f"SageMaker throttles the requests ({kind or status}): ask less, or have the account's quota raised."
    if status == MODEL_ERROR:
        inner = " ".join(str(told.get("OriginalMessage") or "").split()).rstrip(".")[:120] or "no reason given"
        return f"The container answered with HTTP {told.get('OriginalStatusCode', 'an error')}: {inner}."
    if "not found" in said.lower() or "could not find" in said.lower():
        return "There is no such endpoint in service in this region: see `whetstone endpoints list`."
    if status >= 500:
        return f"SageMaker itself failed (HTTP {status}{f', {kind}' if kind else ''}): try again in a minute."
    return f"SageMaker refuses the request ({kind or status}): {said or 'no reason given'}."


def broken_answer(kind: str, words: str) -> str:
    """Why an answer under way ended, in one sentence."""
    said = " ".join(words.split()).rstrip(".")[:200]
    return f"The answer was broken off ({kind}): {BROKEN_ANSWERS.get(kind, 'SageMaker gave no other reason')}{f'; {said}' if said else ''}."


def json_document(body: bytes) -> dict[str, Any]:
    """The JSON object that it is; empty where it is none."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
