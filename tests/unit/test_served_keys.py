"""The key of a server on loopback: random for each start, this user's alone, found by whoever asks by its port."""

from __future__ import annotations

import stat
import tempfile
from pathlib import Path

import pytest

from backend import served_keys
from backend.domain.errors import RequestError, WorkError
from backend.endpoint import bearer, parse_address
from backend.serving import vllm_options
from backend.settings import GUARD


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return served_keys.file(1).parent


def test_each_start_has_a_key_of_its_own_that_only_this_user_reads(folder: Path) -> None:
    first, second = served_keys.make(8001), served_keys.make(8002)
    assert first != second and len(first) > 40 and served_keys.find(8001) == first
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    again = served_keys.make(8001)
    assert again != first and served_keys.find(8001) == again
    served_keys.forget(8001, first)  # a server that ends late takes no other's
    assert served_keys.find(8001) == again
    served_keys.forget(8001, again)
    assert served_keys.find(8001) is None and [file.name for file in folder.iterdir()] == ["8002.key"]


@pytest.mark.parametrize("kind", ["open to others", "a link", "a file"])
def test_a_folder_that_is_not_this_users_alone_is_not_used(folder: Path, tmp_path: Path, kind: str) -> None:
    if kind == "a file":
        folder.write_text("")
    elif kind == "a link":
        (tmp_path / "elsewhere").mkdir(0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.mkdir()
        folder.chmod(0o755)
        (folder / "8001.key").write_text("known to others")
    with pytest.raises(WorkError, match="is not this user's alone: remove it"):
        served_keys.make(8001)
    assert served_keys.find(8001) is None


@pytest.mark.parametrize("url", ["http://127.0.0.1:8001", "http://localhost:8001/v1"])
def test_a_server_of_ours_is_given_its_key_and_no_other_token(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHETSTONE_TOKEN_A", "a-secret-of-somebody")
    assert (
        bearer(None, parse_address(url)) is None
        and bearer("WHETSTONE_TOKEN_A", parse_address(url)) == "a-secret-of-somebody"
    )
    key = served_keys.make(8001)
    assert bearer(None, parse_address(url)) == key and bearer("WHETSTONE_TOKEN_A", parse_address(url)) == key
    monkeypatch.setenv("WHETSTONE_SHARED", "1")  # servers of our own are measured there too
    assert bearer(None, parse_address(url)) == key


@pytest.mark.parametrize(
    "url", ["http://10.0.0.7:8001", "https://127.0.0.1:8001", "http://127.0.0.1.example.org:8001", "http://127.0.0.1"]
)
def test_its_key_goes_nowhere_else(url: str) -> None:
    served_keys.make(8001)
    assert bearer(None, parse_address(url)) is None


def test_another_server_on_loopback_still_needs_a_named_variable() -> None:
    with pytest.raises(RequestError, match="HF_TOKEN is not sent"):
        bearer("HF_TOKEN", parse_address("http://127.0.0.1:8003"))


def test_the_key_is_in_the_servers_environment_and_not_in_its_command() -> None:
    chosen = vllm_options.with_key({"PATH": "/bin", "PYTHONPATH": "/plugin"}, "the-key")
    assert chosen == {"PATH": "/bin", "PYTHONPATH": f"{GUARD}:/plugin", "VLLM_API_KEY": "the-key"}
    assert vllm_options.with_key({}, "the-key")["PYTHONPATH"] == str(GUARD) and (GUARD / "whetstone_guard.py").is_file()
