"""Neuron devices as neuron-ls publishes them, by an executable on PATH that prints that, and by others that do not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from backend.domain.errors import InvalidRecipe
from backend.domain.neuron import cores
from backend.domain.recipe.recipe import read
from backend.hardware import neuron
from backend.hardware.neuron import NeuronDevice
from backend.service import Workspace
from backend.service.machines import targets
from backend.service.models import models, variants
from backend.service.plans import cases, neuron_compilation

# Two devices of an inf2.24xlarge, the second in use, as the Neuron LS user guide prints them.
PUBLISHED = [
    {
        "neuron_device": 1,
        "bdf": "00:1e.0",
        "connected_to": [0, 2],
        "nc_count": 2,
        "memory_size": 34359738368,
        "neuron_processes": [{"pid": 2985, "command": "python3 serve.py", "neuroncore_ids": [0, 1]}],
    },
    {
        "neuron_device": 0,
        "bdf": "00:1f.0",
        "connected_to": [1],
        "nc_count": 2,
        "memory_size": 34359738368,
        "neuron_processes": [],
    },
]

RECIPE = {"name": "neuron", "steps": [{"compile": {}}], "serving": {"tensor_parallel": 4, "max_model_len": 1024}}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    neuron.list_devices.cache_clear()
    yield
    neuron.list_devices.cache_clear()


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """`neuron-ls` on PATH."""
    tool = folder / "bin" / "neuron-ls"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")


def test_the_devices_are_read_from_the_published_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "output.json"
    output.write_text(json.dumps(PUBLISHED))
    install(tmp_path, monkeypatch, f'[ "$1" = --json-output ] && cat {output}')
    assert neuron.list_devices() == (NeuronDevice(0, 2, 32 << 30, False), NeuronDevice(1, 2, 32 << 30, True))


@pytest.mark.parametrize(
    "script", ["exit 1", "echo No neuron device found", "echo '{}'", "echo '[1, null, {\"nc_count\": 2}]'"]
)
def test_a_tool_that_says_something_else_is_no_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    install(tmp_path, monkeypatch, script)
    assert neuron.list_devices() == ()


@pytest.mark.parametrize(
    "changes", [{"nc_count": 0}, {"nc_count": "2"}, {"memory_size": None}, {"memory_size": -1}, {"neuron_device": True}]
)
def test_a_damaged_row_is_left_out(changes: dict[str, object]) -> None:
    assert neuron.parse(json.dumps([{**PUBLISHED[0], **changes}])) == ()


def test_without_the_tool_there_is_none_and_the_target_says_so(
    tmp_path: Path, home: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(neuron, "FOLDER", str(tmp_path))
    assert neuron.list_devices() == ()
    with pytest.raises(InvalidRecipe, match="no Inferentia or Trainium"):
        targets.find(home, "local:neuron")


def test_the_instance_type_is_what_ec2_writes_into_the_bios(tmp_path: Path) -> None:
    product = tmp_path / "product_name"
    assert neuron.instance_type(product) is None
    for text, expected in (
        ("inf2.24xlarge\n", "inf2.24xlarge"),
        ("trn1.2xlarge", "trn1.2xlarge"),
        ("Standard PC (Q35)", None),
        ("m5.large", None),
    ):
        product.write_text(text)
        assert neuron.instance_type(product) == expected


def test_the_target_of_this_machine_has_its_cores_and_their_memory(
    tmp_path: Path, home: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, f"echo '{json.dumps(PUBLISHED)}'")
    device = targets.find(home, "local:neuron").device
    assert (device.hardware, device.units, device.memory_bytes) == ("neuron", 4, 16 << 30)


def row(number: int, **changes: object) -> dict[str, object]:
    """A device of a trn2.48xlarge, as the guide prints it: four logical cores of two physical ones each."""
    return {
        "neuron_device": number,
        "nc_count": 4,
        "logical_neuroncore_config": 2,
        "memory_size": 96 << 30,
        "neuron_processes": [],
        **changes,
    }


def test_logical_cores_are_not_joined_twice_and_attached_devices_are_shown(
    tmp_path: Path, home: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing says here which instance it is: eight cores and 96 GiB are a Trainium2's alone."""
    install(tmp_path, monkeypatch, f"echo '{json.dumps([row(0), row(1)])}'")
    target = targets.find(home, "local:neuron")
    logical = cores.logical_device(target.device)
    assert (target.device.name, logical.units, logical.memory_bytes) == (
        "Trainium2",
        8,
        24 << 30,
    ) and neuron.count_cores() == 8
    model, recipe = models.resolve_facts(home, "meta-textgeneration-llama-3-8b"), read(RECIPE)
    case = cases.resolve(home, model, recipe, "local:neuron")
    assert case.facts.place == "neuron" and case.facts.attached and case.verdict.valid, case.verdict
    shown = neuron_compilation.preview(home, case)
    assert (shown.target, shown.cores, shown.plan.accelerator, shown.plan.stack) == (
        "local:neuron",
        8,
        "Trainium2",
        "vllm-neuron",
    )
    many = read({**RECIPE, "serving": {"tensor_parallel": 16}})
    refused = cases.resolve(home, model, many, "local:neuron").verdict
    assert "16 is not a degree of Trainium2" in refused.reasons[0].message


@pytest.mark.parametrize(
    ("plan", "attached", "message"),
    [
        ({}, [], "this machine has none"),
        ({}, [row(0)], None),
        ({"tensor_parallel": 8}, [row(0)], "this machine has 4"),
        ({"stack": "transformers-neuronx"}, [row(0)], "its successor, `stack: nxd-inference`"),
        ({"draft_method": "draft"}, [row(0)], "no plugin for vLLM serves a plain draft on Neuron"),
    ],
)
def test_what_was_compiled_is_served_only_where_its_cores_are(
    tmp_path: Path,
    home: Workspace,
    monkeypatch: pytest.MonkeyPatch,
    plan: dict[str, object],
    attached: list[object],
    message: str | None,
) -> None:
    install(tmp_path, monkeypatch, f"echo '{json.dumps(attached)}'")
    why = variants.why_unserved_on_neuron(
        home, {"accelerator": "Trainium2", "tensor_parallel": 4, "stack": "vllm-neuron", **plan}
    )
    assert (why is None) == (message is None) and (message or "") in (why or "")
