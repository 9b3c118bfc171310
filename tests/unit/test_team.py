"""The compose file for a team: it is one, and what it starts is there."""

from __future__ import annotations

import re

import yaml

from backend.cli.main import app
from backend.settings import CHECKOUT

TEAM = CHECKOUT / "assets" / "team"


def test_what_the_compose_file_starts_is_there() -> None:
    services = yaml.safe_load((TEAM / "compose.yaml").read_text())["services"]
    assert set(services) == {"database", "studio", "ray-head"}
    assert services["studio"]["depends_on"]["database"]["condition"] == "service_healthy"
    program, *arguments = services["studio"]["command"]
    assert program == "whetstone" and app([*arguments, "--help"], standalone_mode=False) in (None, 0)
    assert all(port.startswith("127.0.0.1:") for service in services.values() for port in service.get("ports", []))


def test_what_the_compose_file_sets_is_read_somewhere() -> None:
    """A variable that nothing reads would be a promise that nothing keeps."""
    named = set(re.findall(r"^    (WHETSTONE_\w+|DATABASE_URL):", (TEAM / "compose.yaml").read_text(), re.MULTILINE))
    read = "".join(path.read_text() for path in (CHECKOUT / "backend").rglob("*.py"))
    unread = {name for name in named if name not in read and f'"{name.removeprefix("WHETSTONE_").lower()}"' not in read}
    assert named and not unread
