"""A model or data set on a Hugging Face hub: what it holds at one commit, and ranges of its files. The only place that
knows the hub.

Requests go through huggingface_hub's own session and error mapping, but not through its downloads: release 1.33 throws
a partial file away when it stops. The token is read from the environment for each request and kept nowhere; a token
that was saved on the machine by other tools is not used. Where others reach the studio, only one that its owner listed
is: they would read what is his.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, urlsplit

from backend import settings as configuration
from backend.catalog.cards.source import RemoteSource
from backend.domain.errors import (
    AccessRefused,
    InvalidModel,
    RequestError,
    SourceUnreachable,
    UnknownModel,
    WhetstoneError,
)
from backend.transfer import CHUNK_BYTES, Digest, SourceDropped

if TYPE_CHECKING:
    import httpx
    from huggingface_hub import DatasetInfo, ModelInfo

    Info = ModelInfo | DatasetInfo

PUBLIC = "https://huggingface.co"
ID = re.compile(r"(?!.*(--|\.\.))[A-Za-z0-9_][\w.-]{0,95}(/[A-Za-z0-9_][\w.-]{0,95})?", re.ASCII)
TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
CONNECT_SECONDS, READ_SECONDS = 10.0, 30.0
BUSY = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses that may be gone on the next try."""


def is_id(text: str) -> bool:
    """Return whether the text has the form of a hub id: `name` or `org/name`."""
    return ID.fullmatch(text) is not None


def endpoint_from_environment() -> str:
    """HF_ENDPOINT, else the public hub. Raises RequestError where it is none, or carries a password, not to be
    stored."""
    endpoint = (os.environ.get("HF_ENDPOINT") or PUBLIC).rstrip("/")
    parts = urlsplit(endpoint)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise RequestError("HF_ENDPOINT is not an http(s) address: correct it, or unset it to use the public hub.")
    if parts.username or parts.password:
        raise RequestError(
            "HF_ENDPOINT carries a user name or password: give the address alone, and the token in HF_TOKEN."
        )
    return endpoint


class _File(NamedTuple):
    size: int
    digest: Digest | None


class HubSource(RemoteSource):
    """`id` at the commit that `revision` (a branch, tag or commit; None: the default branch) means now.

    `timeout_s` in place of the usual patience with a connection and an answer. Raises UnknownModel, AccessRefused,
    SourceUnreachable.
    """

    noun, api, prefix, nested = "model", "models", "", False
    """Word of messages, parts of the hub's addresses, and whether files in folders count: these differ by kind."""

    def __init__(self, id: str, revision: str | None, endpoint: str, *, timeout_s: float | None = None) -> None:
        self.id, self.endpoint, self._timeout_s = id, endpoint, timeout_s
        self._requested_revision = revision or "main"
        info = self._info()
        assert info.sha is not None
        self.revision: str = info.sha
        self.name = f"{id}@{info.sha[:8]}"
        self.gated = bool(info.gated)
        self.licence = _licence(info)
        self._files = _files(info, nested=self.nested)

    def sizes(self) -> Mapping[str, int]:
        return {name: file.size for name, file in self._files.items()}

    def digest(self, file: str) -> Digest | None:
        return self._files[file].digest

    def fetch(self, file: str, start: int, end: int | None) -> bytes:
        size = self._files[file].size
        end = size if end is None else min(end, size)
        if start >= end:
            return b""
        whole = start == 0 and end == size
        with self._get(file, None if whole else (start, end - 1)) as response:
            if not whole and response.status_code != 206:
                raise SourceUnreachable(
                    f"{self.endpoint} does not answer requests for a part of a file: check HF_ENDPOINT."
                )
            return b"".join(_chunks(response))[: end - start]

    def stream(self, file: str, start: int) -> Iterator[bytes]:
        with self._get(file, (start, None) if start else None) as response:
            ignored = start if response.status_code != 206 else 0
            """A server that does not know ranges begins anew: what is here already is passed over."""
            for chunk in _chunks(response):
                yield chunk[ignored:]
                ignored = max(0, ignored - len(chunk))

    @property
    def page(self) -> str:
        """The address of its page."""
        return f"{self.endpoint}/{self.prefix}{self.id}"

    def _info(self) -> Info:
        url = f"{self.endpoint}/api/{self.api}/{self.id}/revision/{quote(self._requested_revision, safe='')}"
        try:
            with self._request(url, params={"blobs": True}) as response:
                response.read()
                info = self._parsed(response.json())
        except SourceDropped as error:
            raise SourceUnreachable(str(error)) from None
        except (ValueError, KeyError, TypeError):
            raise SourceUnreachable(
                f"{self.endpoint} does not answer as a model hub does: check HF_ENDPOINT."
            ) from None
        # The commit pins what is read from here on.
        if not info.sha or not re.fullmatch(r"[0-9a-f]{40}", info.sha):
            raise SourceUnreachable(f"{self.endpoint} names no commit for {self.id}: check HF_ENDPOINT.")
        return info

    def _parsed(self, document: dict[str, Any]) -> Info:
        from huggingface_hub import ModelInfo

        return ModelInfo(**document)  # type: ignore[no-untyped-call]

    def _get(self, file: str, address: tuple[int, int | None] | None) -> AbstractContextManager[httpx.Response]:
        url = f"{self.page}/resolve/{self.revision}/{quote(file)}"
        headers = {"accept-encoding": "identity"}
        if address is not None:
            headers["range"] = f"bytes={address[0]}-{'' if address[1] is None else address[1]}"
        return self._request(url, headers=headers, file=file)

    @contextmanager
    def _request(
        self, url: str, *, file: str | None = None, headers: Any = None, params: Any = None
    ) -> Iterator[httpx.Response]:
        """A GET whose every failure, also while the answer is read, is one of ours."""
        import httpx
        from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

        # both are public, by a table that mypy does not see
        from huggingface_hub.utils import get_session, hf_raise_for_status  # type: ignore[attr-defined]

        limits = httpx.Timeout(self._timeout_s or READ_SECONDS, connect=self._timeout_s or CONNECT_SECONDS)
        token = _token()
        sent = {"user-agent": "whetstone", **({"authorization": f"Bearer {token}"} if token else {}), **(headers or {})}
        try:
            with get_session().stream("GET", url, headers=sent, params=params, timeout=limits) as response:
                if not response.is_success:
                    response.read()
                hf_raise_for_status(response)
                yield response
        except OfflineModeIsEnabled:
            raise SourceUnreachable("HF_HUB_OFFLINE is set, so no hub is asked: unset it to fetch from one.") from None
        except HfHubHTTPError as error:
            raise self._explained(error, file) from None
        except httpx.ConnectError:
            raise SourceDropped(f"Cannot reach {self.endpoint}: check the network, proxy and HF_ENDPOINT.") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise SourceDropped(
                f"The connection to {self.endpoint} broke ({type(error).__name__}): check the network and try again."
            ) from None

    def _explained(self, error: Any, file: str | None) -> WhetstoneError:
        """Turn the hub's answer into an error that says what it means and what to do."""
        from huggingface_hub import errors

        page, status = self.page, error.response.status_code
        match error:
            case errors.GatedRepoError():
                return AccessRefused(
                    f"{self.id} is gated: ask for access at {page}, then {_give_token('that account')}."
                )
            case errors.RevisionNotFoundError():
                return UnknownModel(
                    f"{self.id} has no revision `{self._requested_revision}`: {page}/commits shows those there are."
                )
            case errors.DisabledRepoError():
                return AccessRefused(f"{self.id} was disabled by the hub: {page} may say why.")
            case errors.RemoteEntryNotFoundError():
                return InvalidModel(f"{self.id} no longer has {file} at this commit: import it again.")
            case errors.RepositoryNotFoundError():
                return UnknownModel(
                    f"{self.endpoint} shows no {self.noun} `{self.id}`: check the id; where it is private, "
                    f"{_give_token('an account that may read it')}."
                )
            case _ if status in BUSY:
                return SourceDropped(f"{self.endpoint} answered with status {status}: wait a minute, then try again.")
            case _ if status in {401, 403}:
                refusal = "the hub does not accept it" if status == 401 else "it does not allow this"
                return AccessRefused(
                    f"The token in {TOKENS[0]} was refused ({refusal}): make one that may read {self.id}."
                )
            case _ if status == 416:
                return InvalidModel(
                    f"{file} of {self.id} is shorter than the hub says: its owner must upload it again."
                )
        return SourceUnreachable(f"{self.endpoint} answered with status {status}: check HF_ENDPOINT, and {page}.")


class DataSetSource(HubSource):
    """A data set at one commit, with its files in folders too. Raises as `HubSource` does."""

    noun, api, prefix, nested = "data set", "datasets", "datasets/", True

    def _parsed(self, document: dict[str, Any]) -> Info:
        from huggingface_hub import DatasetInfo

        return DatasetInfo(**document)  # type: ignore[no-untyped-call]


def _chunks(response: httpx.Response) -> Iterator[bytes]:
    """Yield the bytes as they arrive, at most a megabyte at a time, so that progress is reported early."""
    for chunk in response.iter_bytes():
        for start in range(0, len(chunk), CHUNK_BYTES):
            yield chunk[start : start + CHUNK_BYTES]


def _token() -> str | None:
    allowed = filter(configuration.load().may_import_with, TOKENS)
    return next((token for name in allowed if (token := os.environ.get(name, "").strip())), None)


def _give_token(action: str) -> str:
    variable = next((name for name in TOKENS if os.environ.get(name, "").strip()), None)
    if variable and not _token():
        where = "where `whetstone up` is started, since others reach this studio"
        return f"list {variable} in WHETSTONE_SHARED_TOKENS {where}"
    where = "in the environment of this command and of `whetstone up`"
    return f"set {TOKENS[0]} {where} to a token of {action}" + (
        " (the one there now has no access)" if _token() else ""
    )


def _files(info: Info, *, nested: bool) -> dict[str, _File]:
    """The files whose size is known: those at the top level, or `nested` all."""
    files = {}
    for sibling in info.siblings or []:
        size = sibling.lfs.size if sibling.lfs is not None else sibling.size
        if size is None or (not nested and "/" in sibling.rfilename):
            continue
        digest = Digest("git", sibling.blob_id) if sibling.blob_id else None
        files[sibling.rfilename] = _File(
            size, Digest("sha256", sibling.lfs.sha256) if sibling.lfs is not None else digest
        )
    return files


def _licence(info: Info) -> str | None:
    """The model card's `license` (`license_name` where it is `other`), else the tag of that name."""
    data: dict[str, Any] = {}
    if info.card_data is not None:
        data = info.card_data.to_dict()  # type: ignore[no-untyped-call]
    stated = data.get("license")
    if stated in {None, "other"}:
        stated = data.get("license_name") or stated
    if isinstance(stated, list):
        stated = " and ".join(map(str, stated))
    tagged = (tag.removeprefix("license:") for tag in info.tags or [] if tag.startswith("license:"))
    return str(stated) if stated else next(tagged, None)
