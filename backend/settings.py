"""Environment -> one frozen Settings. Nothing else reads WHETSTONE_* variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict

CHECKOUT = Path(__file__).resolve().parent.parent
ASSETS = CHECKOUT / "assets"
TOKEN_PREFIX = "WHETSTONE_TOKEN_"
SIGN_IN = (
    "oidc_metadata_url",
    "oidc_client_id",
    "oidc_secret_env",
    "oidc_secret_file",
    "oidc_redirect_uri",
    "role_claim",
    "name_claim",
    "viewers",
    "operators",
    "admins",
    "sign_in_hours",
)
"""Settings of who may sign in and with which role (`service.studio.sign_in`): WHETSTONE_ and these in capitals."""
AWS = ("role", "output", "upload", "kms_key", "subnets", "security_groups", "max_runtime", "image", "region")
"""Settings that jobs on SageMaker need (`domain.managed.aws_settings`): WHETSTONE_AWS_ and these in capitals."""
IMPORTS_GB, UPLOADS_GB = 500.0, 10.0
"""Limits of one person's imports and of a home's uploads, where others reach the studio and nothing else is set."""
LISTS = ("viewers", "operators", "admins")
GUARD = Path(__file__).parent / "serving" / "vllm_guard"
"""The folder of the layer that asks for a server's key; its docstring says how."""
PLUGIN = Path(__file__).parent / "serving" / "vllm_plugin"
"""A vLLM plugin that every process of a server loads, and classes that propose tokens within it; its docstrings say
what they do."""


class Settings(BaseModel):
    """All of a user's state is under `home`; engine environments belong to the checkout and are shared by homes."""

    model_config = ConfigDict(frozen=True)

    home: Path
    database_url: str | None = None
    engines: Path = CHECKOUT / ".engines"
    builds: Path = Path("~/.cache/whetstone")
    """The folder of what is built once on this machine and shared by checkouts and homes."""
    ray_address: str | None = None
    """HOST:PORT of a Ray cluster's head, of which this machine is a node; jobs that compute then run on its nodes."""
    no_demo: bool = False
    recorded: str | None = None
    """The recorded demonstration to show, by its folder in assets/demo; None is of the machine most like this one."""
    node: str | None = None
    """The node of a cluster that a worker runs on, as its keeper there names it."""
    owner: str = "local"
    role: str = "admin"
    """The role of whoever uses the command line, or the pages without signing in."""
    sign_in: dict[str, str | tuple[str, ...]] = {}
    """Values of SIGN_IN that the environment sets."""
    aws: dict[str, str] = {}
    """Values of AWS that the environment sets, with dashes, as `--aws` has them."""
    price_per_hour: float | None = None
    """The price of an hour of this machine, in the person's own currency; None if unknown."""
    discount: float = 0.0
    price_region: str | None = None
    """The AWS region whose prices are used, chosen on a page; None: those that were refreshed last, over the
    snapshot's."""
    """Share, 0 to 1, that a Savings Plan or an agreement takes off AWS's on-demand prices, wherever one is shown."""
    max_jobs: float | None = None
    """Jobs that one person may have queued and running."""
    max_artifacts_gb: float | None = None
    """Gigabytes (10^9 bytes) of artifacts that one person may have before another job that makes one is refused."""
    max_imports_gb: float | None = None
    """Gigabytes of imported models that one person may have."""
    max_uploads_gb: float | None = None
    """Gigabytes of uploads that the home may hold."""
    silent_s: float = 300.0
    """A worker whose process shows no sign of life for so long is ended."""
    idle_s: float = 3600.0
    """So is one that says nothing of its work and uses no processor for so long."""
    bearer_env: tuple[str, ...] = ()
    """Environment variables besides `TOKEN_PREFIX...` whose value may be sent to an endpoint as its bearer token;
    NAME@HOST: only to that host."""
    hosts: tuple[str, ...] = ()
    """Names, or whole origins such as https://NAME:8443, besides those of loopback under which the web studio
    answers."""
    import_folders: tuple[Path, ...] = ()
    """Folders of this machine from which models and files are taken where others reach the studio, links resolved."""
    shared: bool = False
    """Others reach the studio: no request goes out to addresses that only this machine is meant to reach."""
    alone: bool = False
    """The owner says that nobody else reaches the studio under the names in `hosts` (WHETSTONE_SHARED=0)."""
    shared_tokens: tuple[str, ...] = ()
    """Environment variables with a hub's token that imports use there too."""
    shared_buckets: tuple[str, ...] = ()
    """BUCKET or BUCKET/PREFIX from which models are imported there, with the owner's AWS credentials."""
    artifact_store: str | None = None
    """The place of artifacts: s3://BUCKET/PREFIX or a folder; None for one in the home."""
    artifacts_quota: str | None = None
    """The most that artifacts may take, as written (`artifacts.places.size`)."""
    artifacts_cache: str | None = None
    """The most that copies of artifacts from a bucket take on this machine, as written."""
    metrics_port: int | None = None
    """The port at which the supervisor answers Prometheus, on `metrics_host`; None: it does not."""
    metrics_host: str = "127.0.0.1"
    allowed_addresses: tuple[str, ...] = ()
    """Addresses, networks and names that are asked all the same, in small letters."""
    proposers: str | None = None
    """The folder of classes that may propose tokens within servers, whose code then runs there; None: nowhere."""
    quality_floor: float | None = None
    """Nats a token that an artifact may lose before it is called ruined; 0 is no floor, None
    `domain.limits.quality_loss.QUALITY_FLOOR`."""

    def classes(self, method: str) -> str | None:
        """Return the folder of the class that proposes tokens for a `speculate` step of that method."""
        return self.proposers if method == "custom" else str(PLUGIN)

    def may_send(self, variable: str, host: str) -> bool:
        """Return whether the owner of this environment lets that variable's value be sent to that host.

        Where others reach the studio, only to a host that is listed with it, since whoever may submit chooses the
        address.
        """
        hosts = {entry.partition("@")[2].lower() for entry in self.bearer_env if entry.startswith(f"{variable}@")}
        if hosts or self.shared:
            return host.lower() in hosts
        return variable.startswith(TOKEN_PREFIX) or variable in self.bearer_env

    def may_import_with(self, variable: str) -> bool:
        """Return whether whoever reaches the studio may import with the token in that variable."""
        return not self.shared or variable in self.shared_tokens

    def may_import_from(self, prefix: str) -> bool:
        """Return whether whoever reaches the studio may import from that BUCKET/PREFIX."""
        listed = (f"{bucket.removeprefix('s3://').strip('/')}/" for bucket in self.shared_buckets)
        return not self.shared or any(f"{prefix}/".startswith(bucket) for bucket in listed)

    @property
    def imports_gb(self) -> float | None:
        """Return `max_imports_gb`, else a generous limit where others reach the studio; None is no limit."""
        return IMPORTS_GB if self.max_imports_gb is None and self.shared else self.max_imports_gb

    @property
    def uploads_gb(self) -> float | None:
        """Return `max_uploads_gb`, else a generous limit where others reach the studio; None is no limit."""
        return UPLOADS_GB if self.max_uploads_gb is None and self.shared else self.max_uploads_gb

    @property
    def jobs(self) -> Path:
        return self.home / "jobs"

    @property
    def artifacts(self) -> Path:
        """Return the folder of artifacts on this machine."""
        elsewhere = self.artifact_store is None or self.artifact_store.startswith("s3:")
        return self.home / "artifacts" if elsewhere else Path(str(self.artifact_store)).expanduser().resolve()

    @property
    def evaluations(self) -> Path:
        return self.home / "evaluations"

    @property
    def models(self) -> Path:
        return self.home / "models"

    @property
    def cache(self) -> Path:
        return self.home / "cache"

    @property
    def kept_scoring(self) -> Path:
        """Return the folder of cached scores of originals on held-out text."""
        return self.cache / "scoring"


def load() -> Settings:
    """Read the environment: WHETSTONE_HOME (default ~/.whetstone), DATABASE_URL, WHETSTONE_ENGINES, WHETSTONE_BUILDS
    (default $XDG_CACHE_HOME/whetstone), WHETSTONE_NO_DEMO, WHETSTONE_RECORDED,
    WHETSTONE_BEARER_ENV, WHETSTONE_HOSTS, WHETSTONE_ALLOWED_ADDRESSES and WHETSTONE_IMPORT_FOLDERS (with commas
    between), WHETSTONE_SHARED, WHETSTONE_SHARED_TOKENS, WHETSTONE_SHARED_BUCKETS, WHETSTONE_ROLE, those of SIGN_IN and
    of AWS (WHETSTONE_AWS_...), WHETSTONE_MAX_JOBS, WHETSTONE_MAX_ARTIFACTS_GB, WHETSTONE_MAX_IMPORTS_GB,
    WHETSTONE_MAX_UPLOADS_GB, WHETSTONE_QUALITY_FLOOR, WHETSTONE_PRICE_PER_HOUR, WHETSTONE_DISCOUNT (percent),
    WHETSTONE_SILENT_S, WHETSTONE_IDLE_S, WHETSTONE_ARTIFACTS, WHETSTONE_ARTIFACTS_QUOTA, WHETSTONE_ARTIFACTS_CACHE,
    WHETSTONE_METRICS_PORT, WHETSTONE_METRICS_HOST, WHETSTONE_RAY_ADDRESS, WHETSTONE_NODE, WHETSTONE_PROPOSERS."""
    environment = os.environ
    home = Path(environment.get("WHETSTONE_HOME") or "~/.whetstone").expanduser().resolve()
    return Settings(
        home=home,
        database_url=environment.get("DATABASE_URL") or None,
        engines=Path(environment.get("WHETSTONE_ENGINES") or CHECKOUT / ".engines").expanduser().resolve(),
        builds=Path(
            environment.get("WHETSTONE_BUILDS") or Path(environment.get("XDG_CACHE_HOME") or "~/.cache") / "whetstone"
        )
        .expanduser()
        .resolve(),
        ray_address=environment.get("WHETSTONE_RAY_ADDRESS") or None,
        node=environment.get("WHETSTONE_NODE") or None,
        no_demo=environment.get("WHETSTONE_NO_DEMO", "") not in {"", "0"},
        recorded=environment.get("WHETSTONE_RECORDED") or None,
        bearer_env=_listed(environment.get("WHETSTONE_BEARER_ENV")),
        hosts=_listed(environment.get("WHETSTONE_HOSTS")),
        import_folders=tuple(
            Path(folder).expanduser().resolve() for folder in _listed(environment.get("WHETSTONE_IMPORT_FOLDERS"))
        ),
        allowed_addresses=tuple(map(str.lower, _listed(environment.get("WHETSTONE_ALLOWED_ADDRESSES")))),
        shared=environment.get("WHETSTONE_SHARED", "") not in {"", "0"},
        alone=environment.get("WHETSTONE_SHARED") == "0",
        shared_tokens=_listed(environment.get("WHETSTONE_SHARED_TOKENS")),
        shared_buckets=_listed(environment.get("WHETSTONE_SHARED_BUCKETS")),
        owner=environment.get("USER") or "local",
        role=(environment.get("WHETSTONE_ROLE") or "admin").strip().lower(),
        sign_in=_sign_in(environment),
        aws={
            name.replace("_", "-"): value for name in AWS if (value := environment.get(f"WHETSTONE_AWS_{name.upper()}"))
        },
        discount=min(_number(environment.get("WHETSTONE_DISCOUNT")) or 0.0, 99.0) / 100,
        max_jobs=_number(environment.get("WHETSTONE_MAX_JOBS")),
        max_artifacts_gb=_number(environment.get("WHETSTONE_MAX_ARTIFACTS_GB")),
        max_imports_gb=_number(environment.get("WHETSTONE_MAX_IMPORTS_GB")),
        max_uploads_gb=_number(environment.get("WHETSTONE_MAX_UPLOADS_GB")),
        silent_s=_number(environment.get("WHETSTONE_SILENT_S")) or 300.0,
        idle_s=_number(environment.get("WHETSTONE_IDLE_S")) or 3600.0,
        artifact_store=environment.get("WHETSTONE_ARTIFACTS") or None,
        artifacts_quota=environment.get("WHETSTONE_ARTIFACTS_QUOTA") or None,
        artifacts_cache=environment.get("WHETSTONE_ARTIFACTS_CACHE") or None,
        proposers=str(Path(code).expanduser().resolve()) if (code := environment.get("WHETSTONE_PROPOSERS")) else None,
        quality_floor=_number(environment.get("WHETSTONE_QUALITY_FLOOR")),
        price_per_hour=_number(environment.get("WHETSTONE_PRICE_PER_HOUR")),
        metrics_port=int(_number(environment.get("WHETSTONE_METRICS_PORT")) or 0) or None,
        metrics_host=environment.get("WHETSTONE_METRICS_HOST") or "127.0.0.1",
    )


def _sign_in(environment: Mapping[str, str]) -> dict[str, str | tuple[str, ...]]:
    options = {name: value for name in SIGN_IN if (value := environment.get(f"WHETSTONE_{name.upper()}"))}
    return {name: _listed(value) if name in LISTS else value for name, value in options.items()}


def _listed(written: str | None) -> tuple[str, ...]:
    """Split names with commas between."""
    return tuple(filter(None, map(str.strip, (written or "").split(","))))


def _number(written: str | None) -> float | None:
    """Return the number that is written, or None if it is no number from 0 on."""
    try:
        number = float(written or "none")
    except ValueError:
        return None
    return number if number >= 0 else None
