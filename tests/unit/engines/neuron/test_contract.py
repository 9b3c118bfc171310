"""The Neuron stacks against fake SDK packages whose surface is the published one: calls, refusals, and the contract of
both.

Each compilation is a process of its own, as under the interpreter of a real environment.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from backend.domain.errors import WorkError
from backend.domain.jobs.progress import NoProgress
from backend.domain.neuron.compile_plan import CompilePlan
from backend.engines.libraries import library_client
from backend.engines.neuron import graph_cache
from backend.engines.neuron.compilation import CompileRequest, CompileResult
from backend.settings import ASSETS, CHECKOUT

FAKES = Path(__file__).parents[3] / "fakes" / "neuron"
CONTRACT: dict[str, list[str]] = tomllib.loads((FAKES / "contract.toml").read_text())["calls"]
PLAN = CompilePlan(
    stack="nxd-inference",
    model="starter",
    model_type="llama",
    model_hash="1",
    accelerator="Inferentia2",
    target="trn1",
    tensor_parallel=8,
    batch=1,
    positions=256,
    context_buckets=(128, 256),
    token_buckets=(128, 256),
    dtype="bf16",
)

pytestmark = pytest.mark.process


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An interpreter that finds the fake packages and, after them, what the studio's finds."""
    monkeypatch.setenv("NEURON_FAKE_CALLS", str(tmp_path / "calls"))
    wrapper = tmp_path / "python"
    paths = ":".join([str(CHECKOUT), str(FAKES / "packages")])
    wrapper.write_text(f'#!/bin/sh\nPYTHONPATH={paths} exec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    return wrapper


def build(python: Path, tmp_path: Path, *, device: bool = False, draft: bool = False, **plan: Any) -> CompileResult:
    out = tmp_path / f"out-{len(list(tmp_path.glob('out-*')))}"
    out.mkdir()
    chosen = PLAN.model_copy(update=plan)
    starter = ASSETS / "starter"
    request = CompileRequest(
        plan=chosen,
        model_dir=starter / "target",
        draft_dir=starter / "draft" if draft else None,
        out_dir=out,
        cache_dir=tmp_path / "cache",
        device=device,
    )
    return CompileResult.model_validate(library_client.ask(chosen.stack, python, request, NoProgress()))


def calls(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "calls").read_text().splitlines()]


def within_contract(created: list[dict[str, Any]]) -> None:
    for call in created:
        names = CONTRACT[call["call"]]
        assert len(call["args"]) <= len(names) and set(call["kwargs"]) <= set(names[len(call["args"]) :]), call


@pytest.mark.parametrize(
    ("stack", "draft", "plan"),
    [
        ("nxd-inference", False, {}),
        ("nxd-inference", True, {"weights": "int8", "cache": "fp8", "draft_tokens": 4}),
        ("nxd-inference", True, {"draft_tokens": 5, "draft_method": "eagle3", "batch": 2}),
        ("transformers-neuronx", False, {"optimize_level": 2}),
        ("transformers-neuronx", True, {"weights": "int8", "cache": "fp8", "draft_tokens": 4}),
        ("vllm-neuron", False, {"token_buckets": (1,), "cache": "fp8", "prefix_cache": False}),
        ("vllm-neuron", True, {"token_buckets": (1,), "draft_tokens": 3, "draft_method": "eagle3"}),
    ],
)
@pytest.mark.parametrize("device", [False, True], ids=["ahead-of-time", "device"])
def test_each_stack_compiles_within_the_published_contract(
    python: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stack: str,
    draft: bool,
    plan: dict[str, Any],
    device: bool,
) -> None:
    if device:
        monkeypatch.setenv("NEURON_FAKE_CORES", "24")
    if draft:
        plan = {"draft_method": "draft", **plan}
    if stack == "vllm-neuron" and draft and not device:
        with pytest.raises(WorkError, match="Speculative decoding is not supported with VLLM_NEURON_CPU_COMPILE"):
            build(python, tmp_path, stack=stack, draft=draft, **plan)
        return
    result = build(python, tmp_path, stack=stack, draft=draft, device=device, **plan)
    assert result.graphs >= 1 and bool(result.proof) == device
    requests = calls(tmp_path)
    within_contract(requests)
    names = [call["call"].rpartition(".")[2] for call in requests]
    if stack == "transformers-neuronx" and device:
        assert names.index("save") < names.index("load") < names.index("to_neuron")
        assert ("SpeculativeGenerator" in names) == draft
    if plan.get("draft_method") == "eagle3" and stack == "nxd-inference":
        config = next(call["kwargs"] for call in requests if call["call"].endswith("NeuronConfig"))
        assert (config["enable_eagle_speculation"], config["is_eagle3"], config["speculation_length"]) == (
            True,
            True,
            5,
        )
    if stack == "nxd-inference" and plan.get("weights"):
        assert names.index("save_quantized_state_dict") < names.index("compile") and "FusedSpecNeuronConfig" in names


def test_an_eagle_head_without_an_output_head_is_refused_before_compiling(python: Path, tmp_path: Path) -> None:
    """The starter's draft shares its embedding with its output, so its file has no `lm_head.weight` either."""
    with pytest.raises(WorkError, match=r"no `lm_head.weight`, which NxD Inference takes from it"):
        build(python, tmp_path, draft=True, draft_method="eagle", draft_tokens=5)
    assert not (tmp_path / "calls").exists()


def test_a_graph_that_failed_before_blocks_the_next_until_it_is_cleaned(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_FAKE_FAILS", "1")
    with pytest.raises(WorkError, match="peak HBM usage"):
        build(python, tmp_path)
    monkeypatch.delenv("NEURON_FAKE_FAILS")
    with pytest.raises(WorkError, match="cached failed neff"):
        build(python, tmp_path)
    (name,) = graph_cache.remove_failed(tmp_path / "cache")
    assert name.startswith("MODULE_") and graph_cache.failed_entries(tmp_path / "cache") == []
    assert build(python, tmp_path).graphs == 1


def test_a_device_that_has_not_the_degree_is_the_librarys_error(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEURON_FAKE_CORES", "24")
    with pytest.raises(WorkError, match="Unsupported tensor parallel degree 12"):
        build(python, tmp_path, stack="transformers-neuronx", tensor_parallel=12, device=True)


SCRIPT = """
import sys, transformers_neuronx as t
model = t.LlamaForSampling.from_pretrained(sys.argv[1], n_positions=[128], tp_degree=2, neuron_config=t.NeuronConfig())
{body}
"""


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("model.save('x')", "AssertionError"),
        ("model.load('/nowhere'); model.to_neuron()", "FileNotFoundError"),
        ("model.cpu_compile(); model.to_neuron(); model.to_neuron()", "to_neuron was called before"),
        (
            "model.cpu_compile(); model.save(sys.argv[2]); model.enable_speculative_decoder(4);"
            "model.load(sys.argv[2]); model.to_neuron()",
            "matching NEFF",
        ),
        ("t.QuantizationConfig(quant_dtype='s4')", "NotImplementedError"),
    ],
)
def test_the_fake_refuses_what_the_published_code_refuses(python: Path, tmp_path: Path, body: str, error: str) -> None:
    environment = {**os.environ, "NEURON_FAKE_CORES": "24", "NEURON_COMPILE_CACHE_URL": str(tmp_path / "cache")}
    command = [str(python), "-c", SCRIPT.format(body=body), str(ASSETS / "starter" / "target"), str(tmp_path / "saved")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and error in done.stderr, done.stderr


def test_the_fakes_take_nothing_that_the_contract_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(FAKES / "packages"))
    import transformers_neuronx  # type: ignore[import-not-found]
    from transformers_neuronx import config, speculation  # type: ignore[import-not-found]

    shown = {
        "transformers_neuronx.LlamaForSampling.from_pretrained": transformers_neuronx.LlamaForSampling.__init__,
        "transformers_neuronx.QuantizationConfig": config.QuantizationConfig,
        "transformers_neuronx.config.KVCacheQuantizationConfig": config.KVCacheQuantizationConfig,
        "transformers_neuronx.NeuronConfig": config.NeuronConfig,
        "transformers_neuronx.speculation.SpeculativeGenerator": speculation.SpeculativeGenerator,
        **{
            f"transformers_neuronx.NeuronModelBase.{name}": getattr(transformers_neuronx.NeuronModelBase, name)
            for name in ("save", "load", "to_neuron", "cpu_compile", "enable_speculative_decoder")
        },
    }
    for name, call in shown.items():
        parameters = inspect.signature(call).parameters.values()
        named = [
            p.name
            for p in parameters
            if p.kind not in {p.VAR_KEYWORD, p.VAR_POSITIONAL} and p.name not in {"self", "config"}
        ]
        assert set(named) <= set(CONTRACT[name]), name
