"""A saved model's logits, computed a layer at a time, are those of transformers' whole model, whatever the format and
family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backend.domain.jobs.progress import NoProgress
from backend.engines.base import Pruning
from backend.evaluate.quality import int8_linears, quantized_reference
from backend.evaluate.quality.model_logits import DEFAULT_PLACE, LayerwiseModel, ScoringPlace, WholeModel, open_model
from backend.evaluate.quality.scoring import score
from backend.layered.dequantize import CompressedTensorsSource
from backend.layered.matrix_products import has_int8
from tests.families import logits, tiny
from tests.helpers.quantizing import run
from tests.tiny import TEXT, byte_tokenizer, tiny_llama

GROUPS: dict[str, Any] = {"bits": 4, "group_size": 32, "symmetric": False}
ARTIFACTS: dict[str, dict[str, Any] | None] = {
    "original": None,
    "awq": {"method": "awq", **GROUPS},
    "awq as AutoAWQ writes it": {"method": "awq", "format": "autoawq", **GROUPS},
    "w8a8": {"method": "w8a8", "bits": 8},
    "w8a8 static": {"method": "w8a8", "bits": 8, "activations": "static"},
    "fp8 static": {"method": "fp8", "bits": 8, "activations": "static"},
    "int8 with fp8 cache": {"method": "w8a8", "bits": 8, "kv_cache": True},
    "pruned": {"method": None, "pruning": Pruning(method="magnitude", pattern="2:4")},
}
FAMILIES = ["gpt2", "gpt-neox", "bloom", "falcon-40b", "mixtral", "gemma2", "cohere", "phi"]
"""Turned weights, a renamed head, a bias by position, fused projections, experts, soft caps, scaled logits, a biased
head."""
ROUNDED = ("w8a8", "w8a8 static", "int8 with fp8 cache")
"""Inputs rounded to 8 bits, of which a last bit of fp32 decides a few (by one scale for all on a Xeon only, 0.7 %), and
products of integers have other last bits (docs/decisions/0015). Logits here have a standard deviation of 0.7."""
WINDOWS, LENGTH = 3, 48


def tokens() -> Any:
    import torch

    return torch.randint(1, 256, (WINDOWS, LENGTH), generator=torch.Generator().manual_seed(1))


def through(model: LayerwiseModel | WholeModel, folder: Path) -> Any:
    """All logits [windows, length, vocabulary]."""
    import torch

    folder.mkdir()
    left = model.run(tokens(), folder, lambda _: None)
    with model.head() as head:
        return torch.stack([head(left, number, slice(0, LENGTH)) for number in range(WINDOWS)])


def layer_by_layer(model: Path, work: Path, place: ScoringPlace = DEFAULT_PLACE) -> Any:
    result = open_model(model, place, print)
    assert isinstance(result, LayerwiseModel)
    return through(result, work)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "llama")


@pytest.mark.parametrize("name", ARTIFACTS)
def test_every_format_gives_the_logits_of_the_whole_model(llama: Path, tmp_path: Path, name: str) -> None:
    import torch

    options, created = ARTIFACTS[name], llama
    if options is not None:
        created = tmp_path / "out"
        run(llama, created, **options)
    result, required = layer_by_layer(created, tmp_path / "a"), through(WholeModel(created), tmp_path / "b")
    if name in ROUNDED and has_int8("cpu"):
        assert float((result - required).abs().mean()) < 0.01 and float((result - required).abs().max()) < 0.2
    else:
        torch.testing.assert_close(result, required, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", FAMILIES)
def test_every_family_gives_the_logits_of_the_whole_model(tmp_path: Path, kind: str) -> None:
    import torch

    source = tiny(tmp_path / "source", kind)
    run(source, tmp_path / "awq", method="awq", **GROUPS)
    torch.testing.assert_close(layer_by_layer(source, tmp_path / "a"), logits(source, tokens()), rtol=1e-5, atol=1e-5)
    whole = through(WholeModel(tmp_path / "awq"), tmp_path / "b")
    torch.testing.assert_close(layer_by_layer(tmp_path / "awq", tmp_path / "c"), whole, rtol=1e-5, atol=1e-5)


def test_several_devices_and_states_on_disk_change_nothing(llama: Path, tmp_path: Path) -> None:
    import torch

    run(llama, tmp_path / "out", method="w8a8", bits=8, activations="static", kv_cache=True)
    alone = layer_by_layer(tmp_path / "out", tmp_path / "a")
    spread = layer_by_layer(tmp_path / "out", tmp_path / "b", ScoringPlace(devices=("cpu", "cpu"), spill_bytes=0))
    assert {path.name for path in (tmp_path / "b").iterdir()} == {"mapped-0.bin", "mapped-1.bin"}
    torch.testing.assert_close(spread, alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(2, 30), (30,)], ids=["sequences", "tokens of an expert"])
@pytest.mark.parametrize("activations", ["dynamic", "static"])
def test_products_of_integers_are_those_of_the_dequantized_matrices(
    llama: Path, tmp_path: Path, activations: str, shape: tuple[int, ...]
) -> None:
    """But for the rounding of fp32; and what is not of 8 bits on both sides is left to others."""
    import torch

    run(llama, tmp_path / "out", method="w8a8", bits=8, activations=activations)
    source, place = CompressedTensorsSource(tmp_path / "out"), "model.layers.0.mlp.down_proj"
    weight = source.one(f"{place}.weight")
    linear = torch.nn.Linear(*reversed(weight.shape), bias=True)
    linear.weight.data = weight
    inputs = torch.randn(*shape, weight.shape[1], generator=torch.Generator().manual_seed(0))
    with torch.no_grad(), quantized_reference.round_inputs(source, [(place, linear)]):
        required = linear(inputs)
    with torch.no_grad(), int8_linears.int8_products(source, [(place, linear), ("model.norm", linear)], "cpu") as rest:
        result = linear(inputs)
    assert [name for name, _ in rest] == (["model.norm"] if has_int8("cpu") else [place, "model.norm"])
    if has_int8("cpu"):
        torch.testing.assert_close(result, required, rtol=1e-6, atol=1e-6)
    assert "forward" not in vars(linear)


def test_experts_read_their_input_rounded(tmp_path: Path) -> None:
    """Which transformers' fused experts cannot: each linear of an expert reads eight bits with a scale a token, as a
    server computes it. An expert reads a matrix [tokens, features]: its tokens come from any sequence."""
    import torch

    run(tiny(tmp_path / "source", "mixtral"), tmp_path / "out", method="w8a8", bits=8)
    source = CompressedTensorsSource(tmp_path / "out")
    read: dict[str, Any] = {}
    linear = torch.nn.Linear(128, 4)
    linear.register_forward_hook(lambda _module, args, _result: read.update(seen=args[0]))
    inputs = torch.randn(5, 128, generator=torch.Generator().manual_seed(0))
    with quantized_reference.round_inputs(source, [("model.layers.0.block_sparse_moe.experts.1.w1", linear)]):
        linear(inputs)
    steps = read["seen"] / (inputs.abs().amax(-1, keepdim=True) / 127.5)
    torch.testing.assert_close(steps, steps.round(), rtol=0, atol=1e-4)
    linear(inputs)
    torch.testing.assert_close(read["seen"], inputs, rtol=0, atol=0)


def test_a_family_without_an_outline_is_scored_whole_and_says_so(tmp_path: Path) -> None:
    import torch
    from transformers import OPTConfig, OPTForCausalLM

    class Warned(NoProgress):
        def __init__(self) -> None:
            self.warnings = list[str]()

        def warn(self, message: str, **data: Any) -> None:
            self.warnings.append(message)

    progress = Warned()
    sizes = {
        "hidden_size": 32,
        "ffn_dim": 64,
        "num_attention_heads": 2,
        "num_hidden_layers": 1,
        "word_embed_proj_dim": 32,
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        OPTForCausalLM(OPTConfig(**sizes, vocab_size=320, max_position_embeddings=256)).save_pretrained(tmp_path)
    byte_tokenizer(tmp_path, 320)
    scores = score(tmp_path, tmp_path, TEXT, length=64, progress=progress)
    assert scores["kl_mean"] == 0 and scores["perplexity"] > 1
    assert progress.warnings == [
        "The layers of this family are not known here: it is scored with the whole model in memory."
    ]
