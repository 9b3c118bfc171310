"""Sign-in: the OIDC provider's settings, and the roles that its claims give.

It is set by environment variables or by `sign-in.toml` in the home, with the same names in small letters; a variable
counts more. The client's secret is in neither: the settings name the file or the variable that holds it.
"""

from __future__ import annotations

import os
import secrets
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field, ValidationError

from backend import settings as configuration
from backend.address import is_loopback
from backend.domain.errors import RequestError
from backend.domain.frozen import Frozen
from backend.domain.roles import Actor, Role
from backend.domain.validation import first_flaw
from backend.service import paths
from backend.settings import SIGN_IN, Settings
from backend.store.home import PRIVATE_FILE

FILE, COOKIE_SECRET = "sign-in.toml", "cookie.secret"
CALLBACK = "/oauth2callback"
HOW = (
    "set WHETSTONE_OIDC_METADATA_URL, WHETSTONE_OIDC_CLIENT_ID, WHETSTONE_OIDC_SECRET_FILE and "
    f"WHETSTONE_OIDC_REDIRECT_URI (https://STUDIO{CALLBACK}), or the same in {FILE} of WHETSTONE_HOME (docs/team.md)"
)


class SignIn(Frozen):
    """`secret_env` names the variable, `secret_file` the file that holds the client's secret: one of both.

    `role_claim`: the claim that names a role, or a list of them, with dots into what is nested. `viewers`, `operators`,
    `admins`: e-mail addresses that the provider has verified, or subjects. `name_claim`: what a person is called and
    owns things by; without it the verified e-mail address, else the subject.
    """

    oidc_metadata_url: str
    oidc_client_id: str
    oidc_redirect_uri: str
    oidc_secret_env: str | None = None
    oidc_secret_file: str | None = None
    role_claim: str | None = None
    name_claim: str | None = None
    viewers: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    admins: tuple[str, ...] = ()
    sign_in_hours: float = Field(default=12.0, gt=0, le=720)

    @property
    def origin(self) -> str:
        """Return the origin of the redirect address as a browser writes it."""
        parts = urlsplit(self.oidc_redirect_uri)
        return f"{parts.scheme}://{parts.netloc}"

    def actor(self, claims: Mapping[str, Any]) -> Actor:
        """Whom these claims of a signed-in person make."""
        verified = str(claims.get("email") or "").lower() if claims.get("email_verified") in (True, "true") else ""
        subject = str(claims.get("sub", ""))
        own = str(claims.get(self.name_claim) or "") if self.name_claim else verified
        return Actor(name=own or subject, role=self._role(claims, {subject, verified} - {""}), origin="page")

    def _role(self, claims: Mapping[str, Any], names: set[str]) -> Role | None:
        """The highest of those that the claim and the lists give."""
        listed = {Role.VIEWER: self.viewers, Role.OPERATOR: self.operators, Role.ADMIN: self.admins}
        lists = {
            role
            for role, people in listed.items()
            if names & {person if person in names else person.lower() for person in people}
        }
        roles = {role for role in Role if {role.value, f"whetstone-{role}"} & set(_values(claims, self.role_claim))}
        return max(lists | roles, key=lambda role: role.rank, default=None)


def _values(claims: Mapping[str, Any], path: str | None) -> list[str]:
    """Return the claim as a list of texts; a claim of exactly that name takes precedence over a nested one."""
    if not path:
        return []
    value: Any = claims.get(path)
    if value is None:
        value = claims
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    if value is None:
        return []
    return [str(item) for item in value] if isinstance(value, list | tuple) else [str(value)]


def read_configuration(settings: Settings) -> SignIn | None:
    """None where nothing of it is set. Raises RequestError, which names what is missing or wrong."""
    # 1. Merge the file with the environment, which takes precedence.
    file = settings.home / FILE
    written = {**(_read(file) if file.is_file() else {}), **settings.sign_in}
    if not any(name.startswith("oidc_") for name in written):
        return None
    try:
        sign_in = SignIn.model_validate(written)
    except ValidationError as error:
        raise RequestError(f"{first_flaw(error).sentence('the sign-in')} To sign in, {HOW}.") from None
    # 2. Check addresses and where the secret is.
    for name, url in (("METADATA_URL", sign_in.oidc_metadata_url), ("REDIRECT_URI", sign_in.oidc_redirect_uri)):
        parts = urlsplit(url)
        if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
            raise RequestError(f"WHETSTONE_OIDC_{name} is `{url[:120]}`: give an https:// address.")
    if not sign_in.oidc_redirect_uri.endswith(CALLBACK):
        raise RequestError(f"WHETSTONE_OIDC_REDIRECT_URI must end with {CALLBACK}.")
    if (sign_in.oidc_secret_env is None) == (sign_in.oidc_secret_file is None):
        raise RequestError("Name the client's secret once: WHETSTONE_OIDC_SECRET_FILE, or WHETSTONE_OIDC_SECRET_ENV.")
    return sign_in


def _read(file: Path) -> dict[str, Any]:
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RequestError(f"{file} cannot be read ({error}): correct it.") from None
    if unknown := set(table) - set(SIGN_IN):
        raise RequestError(
            f"{file} has {', '.join(sorted(unknown))}, which nothing reads: it may have {', '.join(SIGN_IN)}."
        )
    return table


def read_secret(sign_in: SignIn) -> str:
    """The client's. Raises RequestError where it is not there."""
    if sign_in.oidc_secret_env is not None:
        value, where = os.environ.get(sign_in.oidc_secret_env, ""), f"The variable {sign_in.oidc_secret_env}"
    else:
        file = Path(str(sign_in.oidc_secret_file)).expanduser()
        value, where = "", str(file)
        if paths.may_be_named(file.resolve(), configuration.load()):
            raise RequestError(
                f"{where} holds the OIDC client's secret where operators may read files: move it elsewhere."
            )
        with suppress(OSError, ValueError):
            value = file.read_text(encoding="utf-8")
    if not value.strip():
        raise RequestError(f"{where}, which should hold the OIDC client's secret, is empty or cannot be read.")
    return value.strip()


def read_cookie_secret(settings: Settings) -> str:
    """Return the secret that signs cookies, made once in this home, readable by its owner alone and outside the folders
    that people may name."""
    file = settings.home / COOKIE_SECRET
    with (
        suppress(FileExistsError),
        os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE_FILE), "w") as secret_file,
    ):
        secret_file.write(secrets.token_urlsafe(48))
    file.chmod(PRIVATE_FILE)  # one that was restored or copied
    return file.read_text()


def web_configuration() -> tuple[SignIn, dict[str, str]] | None:
    """Return the sign-in of the environment's home and the `auth` section that `st.login` and `st.user` read; None
    without sign-in.

    Raises RequestError as `read_configuration` and `read_secret`.
    """
    settings = configuration.load()
    sign_in = read_configuration(settings)
    if sign_in is None:
        return None
    return sign_in, {
        "redirect_uri": sign_in.oidc_redirect_uri,
        "cookie_secret": read_cookie_secret(settings),
        "client_id": sign_in.oidc_client_id,
        "client_secret": read_secret(sign_in),
        "server_metadata_url": sign_in.oidc_metadata_url,
    }
