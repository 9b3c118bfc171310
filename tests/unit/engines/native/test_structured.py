"""Structured pruning: the smaller model computes what the original does without the parts that went."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backend.domain.errors import ImpossibleStack, InvalidWorkload, RequestError
from backend.domain.jobs.progress import NoProgress
from backend.domain.needs.structure import Structure
from backend.engines.native.structured import fitting
from backend.engines.native.structured.cut import cut
from backend.engines.native.structured.request import CutRequest, CutResult
from backend.engines.native.structured.run import structure_of
from backend.layered.families import FAMILIES
from tests import families
from tests.matrices import randn, skewed
from tests.tiny import TEXT, tiny_llama

TEXTS = [TEXT * 6]
QUICK = ("llama", "gemma2", "gpt2", "mixtral")
"""Kinds whose config names layers differently; the others run in the campaign."""


def sizes_of(model: Path) -> Structure:
    from transformers import AutoConfig

    return structure_of(AutoConfig.from_pretrained(model).get_text_config())


def cut_to(model: Path, out: Path, method: Any, sizes: dict[str, int], **options: Any) -> CutResult:
    structure = sizes_of(model).model_copy(update=sizes)
    values = {"calibration_texts": TEXTS, "samples": 8, "length": 64, **options}
    return cut(CutRequest(model_dir=model, out_dir=out, method=method, structure=structure, **values), NoProgress())


def config_of(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return document


def tokens() -> Any:
    import torch

    return torch.randint(0, 300, (2, 24), generator=torch.Generator().manual_seed(1))


def edit_weights(model: Path, change: Any) -> None:
    from safetensors.torch import load_file, save_file

    weights = load_file(model / "model.safetensors")
    change(weights)
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})


def without_layers(model: Path, removed: list[int], kind: str) -> Any:
    """Logits of the original in transformers, with some of its layers taken out of it."""
    import torch
    from transformers import AutoModelForCausalLM

    whole = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    path = FAMILIES[families.KINDS[kind][0]][0].layers
    layers = whole.get_submodule(path)
    whole.set_submodule(path, torch.nn.ModuleList(layer for place, layer in enumerate(layers) if place not in removed))
    whole.config.num_hidden_layers = len(layers) - len(removed)
    with torch.no_grad():
        return whole(tokens(), use_cache=False).logits


def test_the_columns_that_stay_are_fitted_by_least_squares() -> None:
    import torch

    weight, inputs = randn(12, 48, seed=1), skewed(400, 48, 2)
    gram, columns = inputs.T @ inputs, torch.arange(0, 48, 2)
    best = torch.linalg.lstsq(inputs[:, columns].double(), (inputs @ weight.T).double()).solution.T
    fitted = fitting.fit(weight, gram, columns)

    def loss(candidate: Any) -> float:
        return float((inputs @ weight.T - inputs[:, columns] @ candidate.float().T).square().sum())

    assert loss(best) <= loss(fitted) < (loss(best) + loss(weight[:, columns])) / 2


def test_blocks_go_whole_and_those_that_nobody_misses_first() -> None:
    weight, inputs = randn(8, 32, seed=3), skewed(300, 32, 4)
    inputs[:, 8:12], inputs[:, 20:24] = 0, inputs[:, 24:28]  # one block is empty, one repeats another
    result = fitting.remove_blocks(weight, inputs.T @ inputs, 4, 6)
    blocks = (result.columns[::4] // 4).tolist()
    assert len(blocks) == 6 and 2 not in blocks and not {5, 6} <= set(blocks)
    assert fitting.relative_error(weight, inputs.T @ inputs, result) < 0.05
    whole = fitting.remove_blocks(weight, inputs.T @ inputs, 4, 8)
    assert whole.weight is weight and whole.columns.tolist() == list(range(32))


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[] if kind in QUICK else pytest.mark.campaign) for kind in families.KINDS]
)
def test_without_layers_it_computes_what_the_original_does(kind: str, tmp_path: Path) -> None:
    import torch

    model = families.tiny(tmp_path / "model", kind, layers=4)
    result = cut_to(model, tmp_path / "out", "depth", {"layers": 2})
    assert len(result.removed) == 2 and result.bytes_after < result.bytes_before
    assert [row["removed"] for row in result.ranking].count(True) == 2
    least = sorted(result.ranking, key=lambda row: row["importance"])[:2]
    assert all(row["removed"] for row in least)
    expected = without_layers(model, result.removed, kind)
    assert torch.equal(families.logits(tmp_path / "out", tokens()), expected)


def test_lists_of_layers_keep_the_entries_of_those_that_stay(tmp_path: Path) -> None:
    model = families.tiny(tmp_path / "model", "gemma3", layers=7)
    before = ["sliding_attention"] * 5 + ["full_attention", "sliding_attention"]
    assert config_of(model)["layer_types"] == before
    result = cut_to(model, tmp_path / "out", "depth", {"layers": 4})
    staying = [kind for place, kind in enumerate(before) if place not in result.removed]
    assert config_of(tmp_path / "out")["layer_types"] == staying
    assert config_of(tmp_path / "out")["num_hidden_layers"] == 4


@pytest.mark.parametrize("importance", ["similarity", "loss"])
def test_a_layer_that_changes_nothing_goes_first(importance: Any, tmp_path: Path) -> None:
    import torch

    model = tiny_llama(tmp_path / "model", layers=4)

    def silence(weights: dict[str, Any]) -> None:
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            weights[f"model.layers.2.{name}.weight"].zero_()

    edit_weights(model, silence)
    result = cut_to(model, tmp_path / "out", "depth", {"layers": 3}, importance=importance)
    assert result.removed == [2]
    assert result.ranking[2]["importance"] == pytest.approx(0, abs=1e-5)
    assert torch.equal(families.logits(model, tokens()), families.logits(tmp_path / "out", tokens()))


def test_by_the_loss_two_layers_that_undo_each_other_go_or_stay_together(tmp_path: Path) -> None:
    """Layer 1 adds to the residual what layer 2 takes away: alone each looks important, and without both nothing is
    lost. Ranked anew after the first, the second goes."""
    model = tiny_llama(tmp_path / "model", layers=4)

    def undo(weights: dict[str, Any]) -> None:
        for number, sign in ((1, 1), (2, -1)):
            prefix = f"model.layers.{number}."
            weights[prefix + "self_attn.o_proj.weight"].zero_()
            weights[prefix + "post_attention_layernorm.weight"].copy_(
                weights["model.layers.1.post_attention_layernorm.weight"]
            )
            for name in ("gate_proj", "up_proj", "down_proj"):
                source = weights[f"model.layers.1.mlp.{name}.weight"]
                scale = 0.002 * sign if name == "down_proj" and number == 2 else 1
                weights[f"{prefix}mlp.{name}.weight"].copy_(source * scale)
        weights["model.layers.1.mlp.down_proj.weight"].mul_(0.002)

    edit_weights(model, undo)
    result = cut_to(model, tmp_path / "out", "depth", {"layers": 2}, importance="loss")
    assert result.removed == [1, 2]


@pytest.mark.parametrize(
    "kind",
    [pytest.param(kind, marks=[] if kind == "qwen2" else pytest.mark.campaign) for kind in ("llama", "mistral")]
    + ["qwen2", *(pytest.param(kind, marks=pytest.mark.campaign) for kind in ("qwen3", "gemma2", "gemma3", "cohere"))],
)
def test_neurons_and_heads_that_add_nothing_go_and_nothing_changes(kind: str, tmp_path: Path) -> None:
    import torch

    model = families.tiny(tmp_path / "model", kind, intermediate_size=384)
    heads, size = families.HEADS // families.KV_HEADS, families.HIDDEN // families.HEADS

    def silence(weights: dict[str, Any]) -> None:
        for number in range(2):
            weights[f"model.layers.{number}.mlp.down_proj.weight"][:, 1::3] = 0
            weights[f"model.layers.{number}.self_attn.o_proj.weight"][:, : heads * size] = 0

    edit_weights(model, silence)
    sizes = {"intermediate": 256, "heads": 2, "kv_heads": 1}
    result = cut_to(model, tmp_path / "out", "width", sizes)
    assert max(row["relative_error"] for row in result.layers) < 1e-3
    written = config_of(tmp_path / "out")
    assert (written["intermediate_size"], written["num_key_value_heads"], written["head_dim"]) == (256, 1, size)
    before, after = families.logits(model, tokens()), families.logits(tmp_path / "out", tokens())
    assert float((before - after).abs().max()) < 0.05 * float(before.std())
    assert torch.equal(before.argmax(-1), after.argmax(-1))


def test_fitted_matrices_lose_less_than_those_left_as_they_are(tmp_path: Path) -> None:
    """The same columns stay; only the fit differs. Scored on the text that it was fitted to."""
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import AutoTokenizer

    model = tiny_llama(tmp_path / "model", intermediate=384)
    cut_to(model, tmp_path / "out", "width", {"intermediate": 256})
    original, smaller = (load_file(folder / "model.safetensors") for folder in (model, tmp_path / "out"))
    plain = dict(smaller)
    for number in range(2):
        up = f"model.layers.{number}.mlp.up_proj.weight"
        rows = [int((original[up] == row).all(1).nonzero()[0]) for row in smaller[up]]
        assert rows == sorted(set(rows)) and len(rows) == 256
        down = f"model.layers.{number}.mlp.down_proj.weight"
        plain[down] = original[down][:, rows].contiguous()
    text = torch.tensor([AutoTokenizer.from_pretrained(model)(TEXT)["input_ids"][:128]])
    before = families.logits(model, text)
    fitted = families.divergence(before, families.logits(tmp_path / "out", text))
    save_file(plain, tmp_path / "out" / "model.safetensors", metadata={"format": "pt"})
    assert fitted < families.divergence(before, families.logits(tmp_path / "out", text))


def test_neurons_count_by_what_an_error_of_theirs_changes(tmp_path: Path) -> None:
    """Tokens weigh by the squared gradient, so neurons may go in another order; the result is a model all the same."""
    model = tiny_llama(tmp_path / "model", layers=3, intermediate=128)
    alike = cut_to(model, tmp_path / "alike", "width", {"intermediate": 96})
    weighed = cut_to(model, tmp_path / "weighed", "width", {"intermediate": 96}, importance="gradients")
    assert [row["removed"] for row in weighed.layers] == [row["removed"] for row in alike.layers] == [32, 32, 32]
    first, second = (tmp_path / name / "model.safetensors" for name in ("alike", "weighed"))
    assert first.read_bytes() != second.read_bytes() and first.stat().st_size == second.stat().st_size
    logits = families.logits(tmp_path / "weighed", tokens())
    assert bool(logits.isfinite().all()) and not list((tmp_path).glob("*/loss_weights*"))


def test_channels_that_hold_nothing_go_and_the_norms_make_up_for_it(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "model")

    def empty(weights: dict[str, Any]) -> None:
        weights["model.embed_tokens.weight"][:, ::2] = 0
        for number in range(2):
            for name in ("self_attn.o_proj", "mlp.down_proj"):
                weights[f"model.layers.{number}.{name}.weight"][::2] = 0

    edit_weights(model, empty)
    cut_to(model, tmp_path / "out", "width", {"hidden": 64})
    written = config_of(tmp_path / "out")
    assert (written["hidden_size"], written["head_dim"], written["num_attention_heads"]) == (64, 32, 4)
    before, after = families.logits(model, tokens()), families.logits(tmp_path / "out", tokens())
    assert families.divergence(before, after) < 1e-3


@pytest.mark.parametrize("kind", ["mixtral", "qwen2-moe", "qwen3-moe"])
def test_the_experts_that_add_least_go(kind: str, tmp_path: Path) -> None:
    model = families.tiny(tmp_path / "model", kind)
    parts = {"mixtral": ("block_sparse_moe", "w2")}.get(kind, ("mlp", "down_proj"))

    def weaken(weights: dict[str, Any]) -> None:
        for number, expert in ((0, 1), (1, 3)):
            weights[f"model.layers.{number}.{parts[0]}.experts.{expert}.{parts[1]}.weight"].mul_(1e-3)

    edit_weights(model, weaken)
    result = cut_to(model, tmp_path / "out", "experts", {"experts": 3})
    assert [row["name"] for row in result.ranking if row["removed"]] == ["layer 0, expert 1", "layer 1, expert 3"]
    written = config_of(tmp_path / "out")
    assert written.get("num_experts", written.get("num_local_experts")) == 3
    assert families.logits(tmp_path / "out", tokens()).shape[-1] == families.VOCABULARY
    few = cut_to(model, tmp_path / "few", "experts", {"experts": 1})
    assert few.after.experts == 1 and config_of(tmp_path / "few")["num_experts_per_tok"] == 1


def test_the_same_request_gives_the_same_bytes(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "model", intermediate=384)
    for name in ("a", "b"):
        cut_to(model, tmp_path / name, "width", {"intermediate": 256})
    first, second = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("a", "b"))
    assert first == second
    assert not list(tmp_path.glob("*.work"))


def test_what_cannot_be_cut_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "model")
    with pytest.raises(ImpossibleStack, match="no experts"):
        cut_to(model, tmp_path / "out", "experts", {})
    with pytest.raises(InvalidWorkload, match="shorter than one sequence"):
        cut_to(model, tmp_path / "short", "depth", {"layers": 1}, calibration_texts=["two words"])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("kept")
    with pytest.raises(RequestError, match="is not empty"):
        cut_to(model, tmp_path / "full", "depth", {"layers": 1})
    assert (tmp_path / "full" / "file").read_text() == "kept"
