"""Environment -> one frozen Settings. Nothing else reads WHETSTONE_* variables."""

from __future__ import annotations

import os
import re
from functools import cached_property
from pathlib import Path

from pydantic import BaseModel, ConfigDict

CHECKOUT = Path(__file__).resolve().parent.parent
ASSETS = CHECKOUT / "assets"


class Settings(BaseModel):
    """All of a user's state is under `home`; engine environments belong to the checkout and are shared by homes."""

    model_config = ConfigDict(frozen=True, ignored_types=(cached_property,))

    home: Path
    database_url: str | None = None
    engines: Path = CHECKOUT / ".engines"
    no_demo: bool = False
    owner: str = "local"
    price_per_hour: float | None = None
    """What an hour of this machine costs, in one's own currency; None where nobody said."""
    silent_s: float = 300.0
    """A worker whose process shows no sign of life for so long is ended."""
    idle_s: float = 3600.0
    """So is one that says nothing of its work and uses no processor for so long."""
    quality_floor: float | None = None
    """Nats a token that an artifact may lose before it is called ruined; 0 is no floor, None `domain.limits.loss.FLOOR`."""

    @cached_property
    def url(self) -> str:
        """As SQLAlchemy takes it; PostgreSQL by psycopg 3."""
        return re.sub(
            r"^postgres(ql)?://", "postgresql+psycopg://", self.database_url or f"sqlite:///{self.home / 'whetstone.db'}"
        )

    @property
    def jobs(self) -> Path:
        return self.home / "jobs"

    @property
    def artifacts(self) -> Path:
        return self.home / "artifacts"

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
        """What originals came to on held-out text, for the next scoring."""
        return self.cache / "scoring"


def load() -> Settings:
    """Read the environment: WHETSTONE_HOME (default ~/.whetstone), DATABASE_URL, WHETSTONE_ENGINES, WHETSTONE_NO_DEMO,
    WHETSTONE_QUALITY_FLOOR, WHETSTONE_PRICE_PER_HOUR, WHETSTONE_SILENT_S, WHETSTONE_IDLE_S."""
    environment = os.environ
    home = Path(environment.get("WHETSTONE_HOME") or "~/.whetstone").expanduser().resolve()
    return Settings(
        home=home,
        database_url=environment.get("DATABASE_URL") or None,
        engines=Path(environment.get("WHETSTONE_ENGINES") or CHECKOUT / ".engines").expanduser().resolve(),
        no_demo=environment.get("WHETSTONE_NO_DEMO", "") not in {"", "0"},
        owner=environment.get("USER") or "local",
        silent_s=_number(environment.get("WHETSTONE_SILENT_S")) or 300.0,
        idle_s=_number(environment.get("WHETSTONE_IDLE_S")) or 3600.0,
        quality_floor=_number(environment.get("WHETSTONE_QUALITY_FLOOR")),
        price_per_hour=_number(environment.get("WHETSTONE_PRICE_PER_HOUR")),
    )


def _number(written: str | None) -> float | None:
    """None where nothing that is a number from 0 on is written."""
    try:
        found = float(written or "none")
    except ValueError:
        return None
    return found if found >= 0 else None
