"""What the probe says of this machine, checked against the machine; and the list of engines."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from backend.domain.errors import EngineMissing, NotFound
from backend.domain.machine.environments import ENVIRONMENTS
from backend.hardware import engine_status, probe
from backend.settings import ASSETS, Settings

# As nvidia-smi writes it.
TABLE = """0, NVIDIA H200, 143771, 9.0, 570.86.15
1, NVIDIA GeForce RTX 4090, 24564, 8.9, 570.86.15
"""


def test_the_probe_is_json_and_agrees_with_the_kernel() -> None:
    parsed = json.loads(json.dumps(probe.probe()))
    cpuinfo = Path("/proc/cpuinfo").read_text()
    assert parsed["cpu"] in cpuinfo
    assert all(f" {flag}" in cpuinfo for flag in parsed["flags"])
    assert parsed["cores"] == len(os.sched_getaffinity(0))
    total = int(Path("/proc/meminfo").read_text().split()[1]) << 10
    assert 0 < parsed["memory_bytes"] <= total
    assert 0 < probe.free_memory() <= parsed["memory_bytes"]


def test_gpus_are_read_from_nvidia_smi() -> None:
    first, second = probe.parse_nvidia(TABLE)
    assert (first.kind, first.number, first.name, first.memory_bytes) == ("cuda", 0, "NVIDIA H200", 143771 << 20)
    assert (second.number, second.compute_capability) == (1, "8.9")


@pytest.mark.parametrize("text", ["", "\n", "No devices were found\n", "0, NVIDIA A10G\n", "0, X, [N/A], 8.6, 1\n"])
def test_what_is_not_a_row_is_no_gpu(text: str) -> None:
    assert probe.parse_nvidia(text) == ()


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine has an NVIDIA driver")
def test_a_machine_without_a_driver_has_no_accelerator() -> None:
    assert probe.accelerators() == ()


@pytest.mark.gpu
def test_a_machine_with_a_gpu_lists_it() -> None:
    probe.accelerators.cache_clear()
    accelerators = probe.accelerators()
    assert accelerators and all(gpu.memory_bytes > 1 << 30 and "." in gpu.compute_capability for gpu in accelerators)
    assert probe.has_nvidia()


def test_free_disk_is_asked_of_the_nearest_folder_that_exists(tmp_path: Path) -> None:
    assert probe.free_disk(tmp_path / "not" / "yet") == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.05)


def test_a_compiler_needs_the_program_and_the_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = bool(shutil.which("g++")) and (probe.python_include() / "Python.h").exists()
    monkeypatch.delenv("CXX", raising=False)
    assert probe.has_compiler(Path(sys.executable)) == expected
    assert not probe.has_compiler(tmp_path / "no-python")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert probe.compiler() is None
    assert not probe.has_compiler()


def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", engines=tmp_path / "engines")


def test_every_environment_is_listed_with_what_it_can_or_why_not(tmp_path: Path) -> None:
    by_name = {engine.name: engine for engine in engine_status.list_engines(settings(tmp_path))}
    assert list(by_name) == [environment.name for environment in ENVIRONMENTS]
    assert by_name["studio"].installed and by_name["studio"].version and by_name["studio"].reason is None
    assert "quantize awq" in by_name["studio"].can
    assert not by_name["serve"].installed and "whetstone engines install serve" in str(by_name["serve"].reason)
    assert "speculate draft" in by_name["serve"].can
    assert "whetstone engines install compress" in str(by_name["compress"].reason)
    assert "quantize awq by autoawq" in by_name["compress"].can and "gptq" in by_name["compress"].can
    assert "speculate" not in by_name["compress"].can and "llm-compressor" not in by_name["studio"].can
    assert not by_name["neuron"].installed and "whetstone engines install neuron --index URL" in str(
        by_name["neuron"].reason
    )


def test_a_marker_and_an_interpreter_make_an_engine_installed(tmp_path: Path) -> None:
    chosen = settings(tmp_path)
    folder = chosen.engines / "serve"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").symlink_to(sys.executable)
    with pytest.raises(EngineMissing, match="whetstone engines install serve"):
        engine_status.engine_python(chosen, "serve")
    (folder / engine_status.MARKER).write_text(json.dumps({"version": "0.32.0"}))
    assert engine_status.engine_python(chosen, "serve") == folder / "bin" / "python"
    listed = {engine.name: engine for engine in engine_status.list_engines(chosen)}["serve"]
    assert (listed.installed, listed.version, listed.reason) == (True, "0.32.0", None)


def test_an_engine_that_this_version_has_not_says_why(tmp_path: Path) -> None:
    with pytest.raises(EngineMissing, match="whetstone engines install neuron"):
        engine_status.engine_python(settings(tmp_path), "neuron")
    with pytest.raises(
        NotFound, match="the engines are studio, serve, llama-cpp, openvino, compress, quality, ray, neuron"
    ):
        engine_status.engine_python(settings(tmp_path), "tensorrt")


def test_the_wheel_of_an_earlier_version_is_not_current(tmp_path: Path) -> None:
    """Its server is started by our script, which an earlier version wrote with other arguments."""
    settings = Settings(home=tmp_path, engines=tmp_path / "engines")
    folder, lock = settings.engines / "llama-cpp", ASSETS / "locks" / "llama-cpp-wheel.txt"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "llama-server").touch()
    marker = {"build": "wheel", "lock": lock.name, "lock_sha256": hashlib.sha256(lock.read_bytes()).hexdigest()}
    (folder / engine_status.MARKER).write_text(json.dumps(marker))
    script = folder / "bin" / engine_status.WHEEL_SERVER.name
    assert not engine_status.is_current(settings, "llama-cpp")
    script.write_text("# of an earlier version")
    assert not engine_status.is_current(settings, "llama-cpp")
    script.write_bytes(engine_status.WHEEL_SERVER.read_bytes())
    assert engine_status.is_current(settings, "llama-cpp")
