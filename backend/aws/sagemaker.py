"""Calls of SageMaker and its neighbours, with timeouts and retries; failures come back as one clear sentence.

Credentials and region are found by boto3 as everywhere else (environment, profile, role) and kept nowhere. Knows
nothing of jobs, models or endpoints.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from backend.aws.s3 import BAD_KEYS, CREDENTIALS, READ_SECONDS, client
from backend.domain.errors import AccessRefused, NotFound, RequestError, WhetstoneError, WorkError
from backend.domain.load.sagemaker_errors import DENIED_CODES, EXPIRED_CODES, THROTTLED_CODES, UNKNOWN_CODES

CONNECT_SECONDS = 5
TRIES = 3
UNKNOWN_KEYS = BAD_KEYS | UNKNOWN_CODES
BROKEN = frozenset({"InternalFailure", "InternalServerException", "ServiceUnavailable", "ServiceUnavailableException"})
LACKING = frozenset({"ResourceNotFound", "ResourceNotFoundException", "ObjectNotFoundException"})
NAME_IN_USE = frozenset({"ResourceInUse", "ResourceInUseException", "ConflictException"})
PERFORM = re.compile(r"not authorized to perform:? (?P<action>[a-z-]+:[A-Za-z]+)")
PREFIXES = {"sagemaker-runtime": "sagemaker"}
"""Prefix of an action in IAM policies, where it is not the service's name."""


class Busy(WorkError):
    """AWS is busy, or away; nothing is known of whether it did what it was asked. Try again in a minute."""


class Expired(AccessRefused):
    """The AWS credentials in use have expired: renew them."""


class ResourceMissing(NotFound):
    """AWS has nothing of that name."""


class NameTaken(RequestError):
    """AWS has something of that name already."""


class Refused(RequestError):
    """AWS does not accept the request."""


class Service:
    """A client of one AWS service, by botocore's name, in a region (None: that of the environment).

    Every method raises AccessRefused (Expired among it), Busy, Lacking, Taken or Refused.
    """

    def __init__(self, name: str = "sagemaker", region: str | None = None, *, tries: int = TRIES) -> None:
        self.name, self._region, self._tries = name, region, tries
        self._client: Any = None

    @property
    def client(self) -> Any:
        """botocore's own, for answers that are streams: to be used inside `explained`."""
        if self._client is None:
            from botocore.config import Config

            retries = {"total_max_attempts": self._tries, "mode": "standard"}
            config = Config(connect_timeout=CONNECT_SECONDS, read_timeout=READ_SECONDS, retries=retries)
            self._client = client(self.name, self._region, config)
            self._client.meta.events.register("before-parse", _check_whole)
        return self._client

    def call(self, operation: str, **parameters: Any) -> dict[str, Any]:
        """The answer to `operation`, in Python's spelling (`create_model`)."""
        with self.explained():
            answer: dict[str, Any] = getattr(self.client, operation)(**parameters)
        return answer

    def pages(self, operation: str, **parameters: Any) -> list[dict[str, Any]]:
        """All pages of the answer."""
        with self.explained():
            return list(self.client.get_paginator(operation).paginate(**parameters))

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn what botocore raises inside into one sentence. Credentials that AWS does not accept are then looked for
        anew."""
        from botocore import exceptions
        from botocore.parsers import ResponseParserError

        try:
            yield
        except exceptions.ClientError as error:
            raise self._sentence(error) from None
        except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError):
            self._client = None
            raise AccessRefused(f"There are no AWS credentials: {CREDENTIALS}.") from None
        except (
            exceptions.CredentialRetrievalError,
            exceptions.TokenRetrievalError,
            exceptions.UnauthorizedSSOTokenError,
        ):
            self._client = None
            raise Expired(f"The AWS credentials in use cannot be renewed: sign in again, or {CREDENTIALS}.") from None
        except exceptions.ProfileNotFound:
            raise AccessRefused("AWS_PROFILE names a profile that does not exist: correct or unset it.") from None
        except exceptions.NoRegionError:
            raise Refused("No AWS region is given: set AWS_DEFAULT_REGION, such as us-east-1.") from None
        except exceptions.ParamValidationError as error:
            raise Refused(
                f"{self._words} does not take the request: {_line(str(error.kwargs.get('report', error)))}."
            ) from None
        except ResponseParserError:
            raise Busy(f"The answer of {self._words} broke off: check the network.") from None
        except (exceptions.HTTPClientError, exceptions.ConnectionError) as error:
            raise Busy(
                f"The answer of {self._words} did not arrive ({type(error).__name__}): check the network."
            ) from None
        except (exceptions.BotoCoreError, ValueError) as error:
            raise Refused(f"{self._words} cannot be asked ({_line(str(error))}): check the AWS settings.") from None

    @property
    def _words(self) -> str:
        return "SageMaker" if self.name.startswith("sagemaker") else f"AWS ({self.name})"

    def _sentence(self, error: Any) -> WhetstoneError:
        stated = error.response.get("Error", {})
        code, message = str(stated.get("Code", "")), _line(str(stated.get("Message", "")))
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        if code in EXPIRED_CODES or "token included in the request is expired" in message:
            self._client = None
            return Expired(f"The AWS credentials in use have expired ({code}): renew them, or {CREDENTIALS}.")
        if code in UNKNOWN_KEYS:
            self._client = None
            return AccessRefused(f"AWS does not accept the credentials in use ({code}): {CREDENTIALS}.")
        if code in DENIED_CODES:
            return AccessRefused(f"AWS refuses: the credentials in use need {self._action(error, message)}.")
        # a number: the answer names no code
        if code in THROTTLED_CODES or code in BROKEN or status >= 500 or code in {"429", "400"}:
            return Busy(f"{self._words} is busy ({code or status}): try again in a minute.")
        if code in LACKING or message.startswith("Could not find"):
            return ResourceMissing(f"{self._words} knows nothing of that name: {message}.")
        if code in NAME_IN_USE or "already exist" in message:
            return NameTaken(f"{self._words} has that name already: {message}.")
        return Refused(f"{self._words} refuses {error.operation_name} ({code}): {message}.")

    def _action(self, error: Any, message: str) -> str:
        """Return the action as an IAM policy names it: the message does where it is another than the one asked for,
        such as iam:PassRole."""
        named = PERFORM.search(message)
        return named["action"] if named else f"{PREFIXES.get(self.name, self.name)}:{error.operation_name}"


def _check_whole(response_dict: dict[str, Any], operation_model: Any, **_: Any) -> None:
    """botocore takes JSON that breaks off for an empty answer. Raises ResponseParserError."""
    from botocore.parsers import ResponseParserError

    if response_dict["status_code"] < 300 and operation_model.service_model.resolved_protocol == "json":
        try:
            json.loads(response_dict["body"] or b"{}")
        except ValueError as error:
            raise ResponseParserError(str(error)) from None


def _line(text: str) -> str:
    """On one line, without the full stop at its end."""
    return " ".join(text.split()).rstrip(".")[:600]
