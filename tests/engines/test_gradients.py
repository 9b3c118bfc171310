"""What gradients decide in the native engine: how much a token of the calibration text counts, and how weights are
rounded."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from backend.domain.jobs.progress import NoProgress
from backend.domain.recipe.precision import SIXTEEN
from backend.engines.base import Pruning, QuantizeRequest
from backend.engines.native import calibration, quantize
from backend.engines.native.files.resume import WorkFolder
from backend.engines.native.layer_work import plan_units
from backend.engines.native.loss_weights import FILE, LEAVING, LossWeights, Weights
from backend.engines.native.methods import pipelines
from backend.evaluate.quality.scoring import score
from backend.layered.dequantize import open_plain
from backend.layered.hidden_states import HiddenStates
from backend.layered.layer_passes import LayerPasses
from backend.layered.outline import Outline
from tests.helpers.quantizing import GROUPS, run
from tests.helpers.stopping import Stopped, StoppingAt
from tests.tiny import TEXT, tiny_llama

SEED = 7
READERS = {
    "self_attn.q_proj": tuple(f".self_attn.{name}_proj" for name in "qkv"),
    "mlp.down_proj": (".mlp.down_proj",),
    LEAVING: ("",),
}
"""Modules whose outputs' gradients are summed, by the path that the weights have."""
LEARNED: dict[str, Any] = {"method": "autoround", "clip": True, "learning_steps": 40, **GROUPS}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "llama")


def measured(
    model: Path, folder: Path, *, spill_bytes: int = 1 << 30, earlier: list[Weights] | None = None
) -> tuple[list[Weights], Any]:
    """The weights of all layers by the engine, in fp32, and the tokens that they are of; `earlier` are those that an
    attempt before left."""
    import torch

    outline = Outline(open_plain(model))
    tokens = calibration.sample_tokens(model, [TEXT], 4, 32, 0)
    passes = LayerPasses(outline, tokens, ["cpu"], lambda _words: None)
    request = QuantizeRequest(model_dir=model, out_dir=folder, method="gptq", calibration_texts=[TEXT], **GROUPS)
    units, _ = plan_units(outline, pipelines.build(request, torch.bfloat16), GROUPS["group_size"])
    with WorkFolder(folder, resumable=True) as work:
        hidden = HiddenStates((*tokens.shape, outline.config.hidden_size), folder)
        passes.embed(hidden)
        if earlier is not None:
            torch.save(earlier, folder / FILE)
        weights = LossWeights(passes, units, SEED, spill_bytes).measure(hidden, work, lambda _share: None)
        assert (folder / FILE).is_file() and not list(folder.glob("mapped-entering*"))
    return weights, tokens


def expected(model: Path, tokens: Any) -> dict[str, Any]:
    """Squared gradients at the outputs of the linears [tokens], by the whole model in memory."""
    import torch
    from transformers import AutoModelForCausalLM

    whole = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).requires_grad_(False)
    outputs: dict[str, Any] = {}

    def watch(path: str) -> Any:
        def keep(_module: Any, _args: Any, output: Any) -> None:
            output.requires_grad_()
            output.retain_grad()
            outputs[path] = output

        return keep

    watched = {path: module for path, module in whole.model.named_modules() if isinstance(module, torch.nn.Linear)}
    watched |= {f"layers.{number}": layer for number, layer in enumerate(whole.model.layers)}
    for path, module in watched.items():
        module.register_forward_hook(watch(path))
    generator, squares = torch.Generator().manual_seed(SEED), {path: [] for path in watched}
    for sequence in tokens:
        logs = whole(sequence[None]).logits[0].log_softmax(-1)
        drawn = torch.multinomial(logs.detach().exp(), 1, generator=generator)
        logs.gather(1, drawn).sum().neg().backward()
        for path, output in outputs.items():
            squares[path].append(output.grad[0].square().sum(-1))
    return {path: torch.cat(each) for path, each in squares.items()}


def test_tokens_weigh_what_the_gradient_of_the_whole_model_says(model: Path, tmp_path: Path) -> None:
    import torch

    weights, tokens = measured(model, tmp_path / "memory")
    whole = expected(model, tokens)
    for number, layer in enumerate(weights):
        for path, readers in READERS.items():
            truth = torch.stack([whole[f"layers.{number}{reader}"] for reader in readers]).sum(0)
            assert torch.allclose(layer[path], truth / truth.mean(), rtol=0.1, atol=0.02), (number, path)
    in_files, _ = measured(model, tmp_path / "files", spill_bytes=0)
    assert all(torch.equal(layer[path], weights[n][path]) for n, layer in enumerate(in_files) for path in layer)


def test_weights_are_measured_once_for_all_attempts(model: Path, tmp_path: Path) -> None:
    import torch

    earlier = [{"mlp.down_proj": torch.ones(3)}]
    weights, _ = measured(model, tmp_path / "work", earlier=earlier)
    assert torch.equal(weights[0]["mlp.down_proj"], earlier[0]["mlp.down_proj"])


def test_an_attempt_that_is_ended_in_the_first_layer_leaves_the_weights_to_the_next(
    model: Path, tmp_path: Path
) -> None:
    values: dict[str, Any] = {"method": "awq", "bits": 4, "group_size": 32, "tuning": {"loss_weights": True}}
    request = QuantizeRequest(
        model_dir=model,
        out_dir=tmp_path / "out",
        work_dir=tmp_path / "work",
        calibration_texts=[TEXT],
        samples=4,
        length=16,
        **values,
    )
    with pytest.raises(Stopped):
        quantize(request, StoppingAt("optimize"))
    weights = tmp_path / "work" / FILE
    written = weights.stat().st_mtime_ns
    with pytest.raises(Stopped):
        quantize(request, StoppingAt("optimize"))
    assert weights.stat().st_mtime_ns == written
    again = StoppingAt()
    quantize(request, again)
    assert again.seen == ["load", "weigh", "optimize", "write"]


def kl(model: Path, candidate: Path) -> float:
    return float(score(model, candidate, TEXT, length=64, progress=NoProgress())["kl_mean"])


def test_learned_rounding_is_closer_than_rounding_to_nearest_on_the_same_ranges(model: Path, tmp_path: Path) -> None:
    result = run(model, tmp_path / "learned", **LEARNED)
    run(model, tmp_path / "nearest", method="rtn", clip=True, **GROUPS)
    shares = [layer["layer_error_share"] for layer in result.layers]
    weighed = run(model, tmp_path / "weighed", loss_weights=True, **LEARNED)
    assert [layer["layer_error_share"] for layer in weighed.layers] != shares
    assert len(shares) == 14 and all(0 < share < 0.95 for share in shares)
    assert kl(model, tmp_path / "learned") < 0.8 * kl(model, tmp_path / "nearest")


def test_a_layer_learns_from_what_the_stored_layers_before_it_compute(model: Path, tmp_path: Path) -> None:
    """So that it makes up for their errors: it comes out otherwise where there are none."""
    import torch
    from safetensors import safe_open

    outline = Outline(open_plain(model))
    request = QuantizeRequest(model_dir=model, out_dir=tmp_path, method="autoround", calibration_texts=[TEXT], **GROUPS)
    units, _ = plan_units(outline, pipelines.build(request, torch.bfloat16), GROUPS["group_size"])
    exact = {outline.stored_name(0, unit.group): SIXTEEN for unit in units}
    second = []
    for name, precisions in (("rounded", {}), ("exact", exact)):
        run(model, tmp_path / name, precisions=precisions, **LEARNED)
        with safe_open(tmp_path / name / "model.safetensors", "numpy") as tensors:
            second.append(tensors.get_tensor("model.layers.1.mlp.down_proj.weight_packed"))
    assert (second[0] != second[1]).any()


def test_pruned_layers_learn_from_what_the_pruned_layers_before_compute(model: Path, tmp_path: Path) -> None:
    """Pruning feeds each layer with what the changed layers compute, so there is no second set of states to keep."""
    options = {**LEARNED, "pruning": Pruning(method="wanda", sparsity=0.2)}
    with pytest.raises(Stopped):
        run(model, tmp_path / "out", work_dir=tmp_path / "work", progress=StoppingAt("optimize", done=1.1), **options)
    assert len(list((tmp_path / "work").glob("hidden-*"))) == 1
    run(model, tmp_path / "out", work_dir=tmp_path / "work", **options)
    run(model, tmp_path / "nearest", method="rtn", clip=True, pruning=options["pruning"], **GROUPS)
    assert kl(model, tmp_path / "out") < kl(model, tmp_path / "nearest")


@pytest.mark.parametrize("spill", [2_000_000_000, 0], ids=["in memory", "in files"])
@pytest.mark.parametrize("damaged", [False, True])
def test_a_stopped_run_that_learns_ends_in_the_same_bytes(
    model: Path, tmp_path: Path, spill: int, damaged: bool
) -> None:
    """Also where what it left is damaged: it begins anew then."""
    options = {**LEARNED, "learning_steps": 3, "spill_bytes": spill}
    whole = run(model, tmp_path / "whole", **options)
    with pytest.raises(Stopped):
        run(model, tmp_path / "out", work_dir=tmp_path / "work", progress=StoppingAt("optimize", done=1.1), **options)
    (states,) = (tmp_path / "work").glob("*-stored-1.bin")
    if damaged:
        states.write_bytes(bytes(states.stat().st_size))
    resumed = run(model, tmp_path / "out", work_dir=tmp_path / "work", **options)
    assert resumed.layers == whole.layers
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "out")]
    assert files[0] == files[1]


def test_learning_is_the_same_each_time_and_never_costs(model: Path, tmp_path: Path) -> None:
    def sha(name: str, **options: Any) -> str:
        result = run(model, tmp_path / name, **LEARNED | options)
        assert all(layer["layer_error_share"] <= 1 for layer in result.layers)
        return hashlib.sha256((tmp_path / name / "model.safetensors").read_bytes()).hexdigest()

    assert sha("a", learning_steps=3) == sha("b", learning_steps=3)
    assert sha("once", learning_steps=1) is not None
