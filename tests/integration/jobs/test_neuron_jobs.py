"""A compilation for Neuron by the fake SDK: planned, compiled, cached, fetched, and a miss that names its field."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import tarfile
from pathlib import Path

import pytest

from backend.artifacts import compiled_results
from backend.domain.errors import RequestError, WorkError
from backend.domain.jobs.progress import NoProgress
from backend.domain.machine.environments import NEURON, require_index, resolve
from backend.engines import environments
from backend.hardware.engine_status import read_marker
from backend.settings import CHECKOUT
from tests.integration.cli.calling import one_sentence, process, whetstone
from tests.integration.jobs.wheels import wheel

FAKES = Path(__file__).parents[2] / "fakes" / "neuron" / "packages"
TARGET = ("--target", "neuron:ml.inf2.48xlarge")
RECIPE = """\
name: neuron
steps: [{quantize: {method: int8}}, {compile: {}}]
serving: {max_model_len: 1024, tensor_parallel: 8}
"""


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of environments whose `neuron` is the fake SDK."""
    folder = tmp_path / "engines" / "neuron"
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python"
    # A server inherits little, so what the fakes read stands here.
    fakes = f"NEURON_FAKE_CORES=24 NEURON_FAKE_CALLS={tmp_path / 'calls'} PYTHONPATH={CHECKOUT}:{FAKES}"
    python.write_text(f'#!/bin/sh\n{fakes} exec {sys.executable} "$@"\n')
    plugin = folder / "lib" / "python3.11" / "site-packages" / "vllm_neuron-0.5.0.dist-info"
    plugin.mkdir(parents=True)
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm-neuron\nVersion: 0.5.0\n")
    python.chmod(0o755)
    (folder / "INSTALLED.json").write_text(json.dumps({"version": "0.9.0", "packages": {"neuronx-cc": "2.21.1"}}))
    monkeypatch.setenv("WHETSTONE_ENGINES", str(tmp_path / "engines"))
    return folder


LOAD = ("--no-quality", "--concurrency", "1", "--requests", "4", "--max-tokens", "8", "--repeats", "1", "--json")


def attach(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`neuron-ls` with four devices of two cores, for processes that start from here on."""
    rows = [{"neuron_device": n, "nc_count": 2, "memory_size": 32 << 30, "neuron_processes": []} for n in range(4)]
    tool = folder / "bin" / "neuron-ls"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\necho '{json.dumps(rows)}'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "neuron.yaml"
    path.write_text(RECIPE)
    return path


@pytest.mark.process
def test_a_job_compiles_once_for_the_device_and_the_next_job_is_a_hit(
    tmp_path: Path, engines: Path, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    requests = ("starter", "--recipe", recipe, *TARGET)
    dry = whetstone(home, "optimize", *requests, "--dry-run")
    assert dry.returncode == 0, dry
    for word in ("NxD Inference (nxd-inference)", "int8", "2.21.1", "key", "Not in the cache"):
        assert word in dry.stdout
    shown = json.loads(whetstone(home, "artifacts", "lookup", *requests, "--json").stdout)
    assert shown["lookup"]["state"] == "miss" and shown["lookup"]["nearest"] is None

    child = process(home, "optimize", *requests, "--wait", "--json")
    assert child.returncode == 0, child.stderr
    artifact = json.loads(child.stdout)["artifact"]
    manifest = json.loads(whetstone(home, "artifacts", "show", artifact, "--json").stdout)["manifest"]
    assert manifest["compile_key"]["key"] == shown["key"] and manifest["compile_key"]["cached"] is False
    assert {"compiled/model.pt", "compiled/weights/tp7_sharded_checkpoint.safetensors"} <= {
        file["path"] for file in manifest["files"]
    }
    served = one_sentence(whetstone(home, "evaluate", "starter", artifact))
    assert "compiled for Inferentia2, and this machine has none" in served
    attach(tmp_path, monkeypatch)
    refused = one_sentence(process(home, "evaluate", artifact, *LOAD, "--prefix-cache", "on"))
    assert "without the blocks that a prefix cache keeps" in refused
    evaluated = process(home, "evaluate", artifact, *LOAD)
    assert evaluated.returncode == 0, evaluated.stderr
    (variant,) = json.loads(evaluated.stdout)["variants"]
    assert variant["levels"][0]["output_tokens_per_s"] > 0 and variant["variant"]["neuron"]["key"] == shown["key"]
    servers = [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines() if "api_server" in line]
    assert servers and servers[0]["kwargs"]["additional_config"]["override_neuron_config"]["tp_degree"] == 8

    assert json.loads(whetstone(home, "artifacts", "lookup", *requests, "--json").stdout)["lookup"]["state"] == "hit"
    again = json.loads(process(home, "optimize", *requests, "--wait", "--json").stdout)["artifact"]
    manifest = json.loads(whetstone(home, "artifacts", "show", again, "--json").stdout)["manifest"]
    assert manifest["compile_key"]["cached"] is True and manifest["versions"]["neuronx-cc"] == "2.21.1"

    recipe.write_text(RECIPE.replace("tensor_parallel: 8", "tensor_parallel: 24"))
    missed = whetstone(home, "artifacts", "lookup", *requests)
    assert f"The nearest entry, {shown['key']}, differs in tensor_parallel (wanted 24, there 8)." in missed.stdout


def test_without_the_engine_the_plan_is_shown_and_the_job_says_how_to_install_it(
    tmp_path: Path, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHETSTONE_ENGINES", str(tmp_path / "none"))
    requests = ("starter", "--recipe", recipe, *TARGET)
    assert "neuronx-cc is not installed here" in whetstone(tmp_path, "optimize", *requests, "--dry-run").stdout
    assert "whetstone engines install neuron --index URL" in one_sentence(whetstone(tmp_path, "optimize", *requests))


def test_a_pre_compiled_row_of_the_catalog_resolves_to_an_entry_of_its_name(
    tmp_path: Path, engines: Path, recipe: Path
) -> None:
    home = tmp_path / "home"
    requests = ("meta-textgeneration-llama-3-8b", "--recipe", recipe, *TARGET, "--json")
    shown = json.loads(whetstone(home, "artifacts", "lookup", *requests).stdout)
    assert shown["lookup"]["state"] == "miss" and shown["plan"]["model_hash"] is None
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "model.pt").write_bytes(b"x" * 10)
    cache = compiled_results.CompiledCache(str(home / "cache" / "compiled"))
    key = "0" * 20
    cache.put(
        key,
        shown["plan"]["model"],
        {**{k: v for k, v in shown["plan"].items() if k != "model"}, "model_hash": "h"},
        folder,
        {},
    )
    parsed = json.loads(whetstone(home, "artifacts", "lookup", *requests).stdout)
    assert parsed["lookup"] == {"state": "hit", "key": key, "nearest": None, "differs": []}

    # A damaged entry is no hit twice: it is removed when it is fetched.
    (_, sha256) = cache.entries()[0].files["model.pt"]
    (home / "cache" / "compiled" / "files" / key / sha256).write_bytes(b"y" * 10)
    assert cache.fetch(key, tmp_path / "out") is None and not (tmp_path / "out").exists() and cache.entries() == []


@pytest.mark.parametrize(
    ("name", "index", "message"),
    [
        ("neuron", None, "vendor's own index"),
        ("neuron", "https://public.example/simple", "placeholders only of neuronx-distributed-inference"),
        ("neuron", "https://me:secret@index.example/simple", "user and password"),
        ("serve", "https://index.example/simple", "it takes no index"),
    ],
)
def test_an_index_is_needed_and_the_public_one_is_none(name: str, index: str | None, message: str) -> None:
    with pytest.raises(RequestError) as raised:
        require_index(resolve(name), index, "public.example")
    assert message in str(raised.value) and (index is None or "secret" not in str(raised.value))
    require_index(NEURON, "https://index.example/simple", "public.example")


def test_a_placeholder_of_the_public_index_is_refused_by_name_and_nothing_is_kept(
    tmp_path: Path, offline: None
) -> None:
    wheels, folder = tmp_path / "wheels", tmp_path / "engines"
    for name, version, module in (
        ("neuronx-distributed-inference", "0.9.0", "neuronx_distributed_inference"),
        ("torch-neuronx", "2.9", "torch_neuronx"),
        ("pydantic", importlib.metadata.version("pydantic"), "pydantic"),
    ):
        wheel(wheels, name, version, module)
    wheel(
        wheels,
        "neuronx-cc",
        "1.0.post1",
        "neuronxcc",
        summary="WRONG PACKAGE. Please install it from the Neuron Repository",
    )
    with pytest.raises(WorkError, match=r"`neuronx-cc` 1.0.post1 is the placeholder of the public index"):
        environments.install("neuron", folder, NoProgress(), index=str(wheels))
    assert not (folder / "neuron").exists()
    wheel(wheels, "neuronx-cc", "2.21.1", "neuronxcc")
    created = environments.install("neuron", folder, NoProgress(), index=str(wheels))
    assert created["version"] == "0.9.0" and created["packages"]["neuronx-cc"] == "2.21.1" and created["lock"] is None
    assert read_marker(folder, "neuron") == created


def test_no_source_package_of_an_index_is_built(tmp_path: Path, offline: None) -> None:
    """Its setup.py would run as the supervisor's user, whatever it does."""
    wheels, mark, source = tmp_path / "wheels", tmp_path / "ran", tmp_path / "torch_neuronx-2.9"
    for name, version, module in (
        ("neuronx-distributed-inference", "0.9.0", "neuronx_distributed_inference"),
        ("neuronx-cc", "2.21.1", "neuronxcc"),
        ("pydantic", importlib.metadata.version("pydantic"), "pydantic"),
    ):
        wheel(wheels, name, version, module)
    source.mkdir()
    setup = "from setuptools import setup\nsetup(name='torch-neuronx', version='2.9')\n"
    (source / "setup.py").write_text(f"open({str(mark)!r}, 'w')\n{setup}")
    (source / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: torch-neuronx\nVersion: 2.9\n")
    with tarfile.open(wheels / "torch_neuronx-2.9.tar.gz", "w:gz") as archive:
        archive.add(source, arcname="torch_neuronx-2.9")
    with pytest.raises(WorkError, match="torch-neuronx"):
        environments.install("neuron", tmp_path / "engines", NoProgress(), index=str(wheels))
    assert not mark.exists() and not (tmp_path / "engines" / "neuron").exists()
