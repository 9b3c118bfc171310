"""Objects of one S3 bucket: listing, ranges of bytes, checksums. Failures come back as sentences.

Credentials are found by boto3 as everywhere else (environment, profile, role) and kept nowhere. Knows nothing of
models.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

from backend.domain.errors import AccessRefused, SourceUnreachable, UnknownModel, WhetstoneError, WorkError
from backend.transfer import SourceDropped

CONNECT_SECONDS, READ_SECONDS = 10, 30
CHUNK_BYTES = 1 << 20
CREDENTIALS = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, in the environment of this command and of "
    "`whetstone up`"
)
REFUSED = frozenset({"AccessDenied", "403", "Forbidden", "AllAccessDisabled", "AccountProblem"})
BAD_KEYS = frozenset(
    {"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "TokenRefreshRequired"}
)
CHANGED_OBJECT = frozenset({"NoSuchKey", "PreconditionFailed", "404", "412", "InvalidRange", "416"})
"""Codes of an object that is not what the listing said."""


class ObjectChanged(WorkError):
    """An object was changed or removed while it was read; import the model again."""


class ConnectionLost(SourceDropped):
    """The connection to S3 broke; resume the job to carry on where it stopped."""


class S3Object(NamedTuple):
    """`tag` is the ETag with its quotes: another content has another. Empty for a key under which there is ever only
    one."""

    key: str
    size: int
    tag: str


def client(name: str, region: str | None, config: Any) -> Any:
    """botocore's own for that service, in a region (None: that of the environment)."""
    from botocore.session import get_session

    session = get_session()
    session.register_component("data_loader", _loader())
    return session.create_client(name, region_name=region, config=config)


@cache
def _loader() -> Any:
    """Shared, since a service's model is long: SageMaker's takes half a second to read."""
    from botocore.loaders import create_loader

    return create_loader()


class Bucket:
    """One bucket of S3. Every method raises AccessRefused, UnknownModel (no such bucket), SourceUnreachable or
    ConnectionLost."""

    rights = "read {place}: you need s3:ListBucket and s3:GetObject there"
    tries = 3

    def __init__(self, name: str) -> None:
        from botocore.config import Config

        self.name = name
        retries = {"max_attempts": self.tries, "mode": "standard"}
        config = Config(
            connect_timeout=CONNECT_SECONDS, read_timeout=READ_SECONDS, retries=retries, max_pool_connections=32
        )
        with self._explained():
            self._client = client("s3", None, config)

    def objects(self, prefix: str, *, deep: bool = False) -> list[S3Object]:
        """The objects directly below the prefix (which ends with a slash, or is empty for the whole bucket), or however
        deep."""
        with self._explained():
            rows = self._listed("list_objects_v2", "Contents", Prefix=prefix, **({} if deep else {"Delimiter": "/"}))
        return [S3Object(one["Key"], one["Size"], one["ETag"]) for one in rows]

    def _listed(self, operation: str, member: str, **where: Any) -> list[dict[str, Any]]:
        """Return the rows of all pages of a listing."""
        pages = self._client.get_paginator(operation).paginate(**{"Bucket": self.name, **where})
        items = []
        for page in pages:
            items += page.get(member, [])
        return items

    def read(self, entry: S3Object, start: int, end: int) -> bytes:
        """The bytes [start, end). Raises ObjectChanged too."""
        with self._explained(entry.key):
            content: bytes = self._get(entry, start, end)["Body"].read()
        return content

    def stream(self, entry: S3Object, start: int) -> Iterator[bytes]:
        """The bytes from `start` on, a megabyte at most at a time. Raises ObjectChanged too."""
        with self._explained(entry.key):
            yield from self._get(entry, start, entry.size)["Body"].iter_chunks(CHUNK_BYTES)

    def checksum(self, entry: S3Object) -> tuple[str, str] | None:
        """(`sha256` or `md5`, hex) where S3 has one over the whole object: a tag is its md5 unless it came in parts or
        is encrypted with a key of KMS or the customer's own."""
        with self._explained(entry.key):
            head = self._client.head_object(Bucket=self.name, Key=entry.key, IfMatch=entry.tag, ChecksumMode="ENABLED")
        if head.get("ChecksumSHA256") and head.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT":
            return "sha256", base64.b64decode(head["ChecksumSHA256"].split("-")[0]).hex()
        keyed = head.get("SSECustomerAlgorithm") or head.get("ServerSideEncryption", "AES256") != "AES256"
        return None if keyed or "-" in entry.tag else ("md5", entry.tag.strip('"'))

    def _get(self, entry: S3Object, start: int, end: int) -> Any:
        same = {"IfMatch": entry.tag} if entry.tag else {}
        return self._client.get_object(Bucket=self.name, Key=entry.key, Range=f"bytes={start}-{end - 1}", **same)

    @contextmanager
    def _explained(self, key: str | None = None) -> Iterator[None]:
        from botocore import exceptions

        try:
            yield
        except exceptions.ClientError as error:
            raise self._sentence(str(error.response.get("Error", {}).get("Code", "")), key) from None
        except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.CredentialRetrievalError):
            raise AccessRefused(f"There are no AWS credentials for s3://{self.name}: {CREDENTIALS}.") from None
        except exceptions.ProfileNotFound:
            raise AccessRefused("AWS_PROFILE names a profile that does not exist: correct or unset it.") from None
        except exceptions.EndpointConnectionError as error:
            raise ConnectionLost(
                f"Cannot reach {error.kwargs.get('endpoint_url')}: check the network and region."
            ) from None
        except exceptions.ParamValidationError:
            raise UnknownModel(f"`{self.name}` is not a bucket name: give s3://bucket/prefix.") from None
        except (exceptions.HTTPClientError, exceptions.IncompleteReadError, exceptions.ReadTimeoutError) as error:
            raise ConnectionLost(
                f"The connection to s3://{self.name} broke ({type(error).__name__}): check the network and try again."
            ) from None
        except (exceptions.BotoCoreError, ValueError) as error:
            raise SourceUnreachable(
                f"S3 cannot be asked ({error}): check the AWS settings in the environment."
            ) from None

    def _sentence(self, code: str, key: str | None) -> WhetstoneError:
        place = f"s3://{self.name}" + (f"/{key}" if key else "")
        if code in REFUSED:
            return AccessRefused(f"AWS refuses to let you {self.rights.format(place=place)}.")
        if code in BAD_KEYS:
            return AccessRefused(f"AWS does not accept the credentials in use ({code}): {CREDENTIALS}.")
        if code == "NoSuchBucket":
            return UnknownModel(f"There is no bucket `{self.name}`: check the name and the AWS account.")
        if code in CHANGED_OBJECT:
            return ObjectChanged(f"{place} was changed or removed since it was listed: import the model again.")
        if code in {"SlowDown", "InternalError", "ServiceUnavailable", "500", "503", "RequestTimeout"}:
            return ConnectionLost(f"S3 is busy ({code}): try again in a minute.")
        return SourceUnreachable(
            f"S3 answered {code or 'with an error'} for {place}: check the region and the address."
        )
