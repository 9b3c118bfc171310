"""What was compiled for Neuron is served by a fake vLLM with either plugin, which refuses what the published ones
refuse."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from backend.domain.errors import ServerFailed
from backend.domain.evaluation.document import EvaluateOptions, Speculation, Variant
from backend.domain.jobs.progress import NoProgress
from backend.domain.neuron.compile_plan import CompilePlan
from backend.engines.libraries import library_client
from backend.engines.neuron.compilation import CompileRequest
from backend.hardware import neuron
from backend.serving.vllm import VllmServer
from backend.settings import ASSETS, CHECKOUT
from backend.worker.measuring.server_pool import ServerPool, ServerSetup

pytestmark = pytest.mark.process
FAKES = Path(__file__).parents[2] / "fakes" / "neuron"
CALLS: dict[str, list[str]] = tomllib.loads((FAKES / "contract.toml").read_text())["calls"]
NXD = CompilePlan(
    stack="nxd-inference",
    model="starter",
    model_type="llama",
    model_hash="1",
    accelerator="Inferentia2",
    target="trn1",
    tensor_parallel=2,
    batch=2,
    positions=256,
    context_buckets=(128, 256),
    token_buckets=(128, 256),
    dtype="bf16",
    weights="int8",
)
VLLM = NXD.model_copy(
    update={
        "stack": "vllm-neuron",
        "accelerator": "Trainium2",
        "target": "trn2",
        "token_buckets": (1, 2),
        "weights": None,
    }
)


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The interpreter of an environment with the fake packages, on a machine with a fake device of 24 cores.

    A server inherits little: what the fakes read is set here."""
    result = tmp_path / "python"
    calls = f"NEURON_FAKE_CALLS={tmp_path / 'calls'} NEURON_FAKE_CORES=24"
    result.write_text(f'#!/bin/sh\n{calls} PYTHONPATH={CHECKOUT}:{FAKES / "packages"} exec {sys.executable} "$@"\n')
    result.chmod(0o755)
    return result


def compiled(plan: CompilePlan, python: Path, folder: Path) -> Variant:
    """An artifact as a job makes it: the original's weights, and beside them what was compiled."""
    artifact = folder / "artifact"
    (artifact / "compiled").mkdir(parents=True)
    (artifact / "model").symlink_to(ASSETS / "starter" / "target")
    draft = ASSETS / "starter" / "draft" if plan.draft_method else None
    request = CompileRequest(
        plan=plan,
        model_dir=artifact / "model",
        draft_dir=draft,
        out_dir=artifact / "compiled",
        cache_dir=folder / "graphs",
    )
    library_client.ask(plan.stack, python, request, NoProgress())
    fields = {**plan.fields, "key": plan.key, "cached": False}
    head = Speculation(method="eagle3", tokens=5, draft_path=str(draft)) if draft else None
    return Variant(
        name="mine", source="a-1", kind="artifact", model_path=str(artifact / "model"), neuron=fields, speculation=head
    )


def server(variant: Variant, python: Path, folder: Path) -> VllmServer:
    return VllmServer(variant, python=python, log=folder / "server.log", cache_root=folder / "cache", ready_s=30)


def last_options(folder: Path) -> dict[str, Any]:
    """The options of the server's last start."""
    lines = [json.loads(line) for line in (folder / "calls").read_text().splitlines()]
    values: dict[str, Any] = [line["kwargs"] for line in lines if line["call"].endswith("api_server")][-1]
    return values


EAGLE = NXD.model_copy(update={"weights": None, "draft_method": "eagle3", "draft_tokens": 5})


@pytest.mark.parametrize("plan", [NXD, VLLM, EAGLE], ids=["nxd-inference", "vllm-neuron", "eagle"])
def test_a_compiled_artifact_is_served_with_its_shapes_and_stays_unchanged(
    python: Path, tmp_path: Path, plan: CompilePlan
) -> None:
    variant = compiled(plan, python, tmp_path)
    files = sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "artifact").rglob("*"))
    with server(variant, python, tmp_path) as running:
        running.time_first_answer()
        assert running.startup is not None and running.startup.kind == "cached"
        assert running.metrics()["generation_tokens"] == 1
    assert files == sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "artifact").rglob("*"))
    options = last_options(tmp_path)
    assert set(options) <= set(CALLS["vllm.entrypoints.openai.api_server"])
    assert (options["tensor_parallel_size"], options["max_model_len"], options["max_num_seqs"]) == (2, 256, 2)
    ((name, config),) = options["additional_config"].items()
    assert options.get("speculative_config") == (
        {"method": "eagle3", "model": "draft-model", "num_speculative_tokens": 5} if plan is EAGLE else None
    )
    if plan is EAGLE:
        assert config["enable_eagle_speculation"] and config["is_eagle3"] and config["speculation_length"] == 5
    elif plan is NXD:
        assert (
            name == "override_neuron_config"
            and config["quantized"]
            and config["context_encoding_buckets"] == [128, 256]
        )
    else:
        assert config == {
            "num_batched_tokens_buckets": [128, 256],
            "num_seqs_buckets": [1, 2],
            "on_device_sampling_config": {},
        }


def test_a_server_that_compiles_again_is_stopped_and_overwrites_no_artifact(python: Path, tmp_path: Path) -> None:
    """The older plugin compiles for an hour, into the folder that it was given, where it cannot load."""
    variant = compiled(NXD, python, tmp_path)
    config = tmp_path / "artifact" / "compiled" / "neuron_config.json"
    config.write_text("of another version")
    running = server(variant, python, tmp_path)
    with pytest.raises(ServerFailed, match="could not be loaded, and it began to compile again"):
        running.start()
    assert config.read_text() == "of another version"


@pytest.mark.parametrize("removed", ["model.pt", "weights/tp1_sharded_checkpoint.safetensors", "neuron_config.json"])
def test_what_is_not_whole_is_refused_before_anything_starts(python: Path, tmp_path: Path, removed: str) -> None:
    variant = compiled(NXD, python, tmp_path)
    (tmp_path / "artifact" / "compiled" / removed).unlink()
    refused = server(variant, python, tmp_path)
    with pytest.raises(ServerFailed, match=f"its compiled files lack {removed}"):
        refused.start()
    assert not refused.key_file.exists()


def test_an_uncompiled_graph_or_an_impossible_degree_ends_in_one_sentence(python: Path, tmp_path: Path) -> None:
    variant = compiled(VLLM, python, tmp_path)
    other = variant.model_copy(update={"neuron": {**(variant.neuron or {}), "context_buckets": (64, 256)}})
    with pytest.raises(ServerFailed, match="what was compiled for Neuron is not what this server asks for"):
        server(other, python, tmp_path).start()
    odd = compiled(VLLM.model_copy(update={"tensor_parallel": 3}), python, tmp_path / "odd")
    with pytest.raises(ServerFailed, match="degree is not one that this Neuron device has"):
        server(odd, python, tmp_path / "odd").start()


@pytest.mark.parametrize(("attached", "mode"), [(2, "restart"), (4, "resident")])
def test_servers_stay_up_together_only_where_their_cores_are(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attached: int, mode: str
) -> None:
    monkeypatch.setattr(neuron, "list_devices", lambda: (neuron.NeuronDevice(0, attached, 32 << 30, False),))
    first = compiled(VLLM, python, tmp_path)
    both = [first, first.model_copy(update={"name": "other"})]
    logs = tmp_path / "logs"
    setup = ServerSetup(lambda _: python, logs.joinpath, tmp_path / "cache")
    with ServerPool(both, EvaluateOptions(), setup, NoProgress()) as pool:
        assert pool.start_servers() == mode
        assert pool.use(1).served_name == "other"
