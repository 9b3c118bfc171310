"""Multimodal models: the language part is quantized, the vision tower and the projector stay byte for byte, and the
layers compute of text what the whole model computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backend.catalog.cards import card
from backend.domain.errors import ModelDamaged
from backend.domain.jobs.progress import NoProgress
from backend.domain.recipe.capability_table import MULTIMODAL_FAMILIES
from backend.evaluate.quality.scoring import score
from backend.layered.dequantize import open_plain
from backend.layered.outline import Outline
from tests.helpers.multimodal import KINDS, tiny_multimodal
from tests.helpers.quantizing import GROUPS, run
from tests.tiny import TEXT

METHODS: dict[str, tuple[dict[str, Any], str]] = {
    "awq": ({"method": "awq", "clip": True, **GROUPS}, "weight_packed"),
    "gptq": ({"method": "gptq", "act_order": True, **GROUPS}, "weight_packed"),
    "fp8": ({"method": "fp8", "bits": 8}, "weight_scale"),
}
OTHERS = ("visual", "vision_tower", "multi_modal_projector")


def tensors(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return dict(load_file(folder / "model.safetensors"))


def outline_logits(folder: Path, tokens: Any) -> Any:
    """The logits of one sequence, layer by layer [length, vocabulary]."""
    import torch

    outline = Outline(open_plain(folder))
    ((hidden, calls),) = outline.embed([tokens], "cpu")
    for number in range(outline.count):
        layer = outline.fill(number, "cpu")
        with torch.no_grad():
            left = layer(hidden, *calls[number].args, **calls[number].kwargs)
        hidden = left[0] if isinstance(left, tuple) else left
        outline.drop(number)
    with outline.head("cpu") as logits:
        return logits(hidden[0])


def test_every_offered_type_has_a_shape_here() -> None:
    assert set(KINDS) == MULTIMODAL_FAMILIES


@pytest.mark.parametrize("kind", KINDS)
def test_the_layers_compute_of_text_what_the_whole_model_computes(tmp_path: Path, kind: str) -> None:
    import torch
    from transformers import AutoModelForImageTextToText

    model = tiny_multimodal(tmp_path / "model", kind)
    tokens = torch.randint(1, 256, (1, 24), generator=torch.Generator().manual_seed(0))
    whole = AutoModelForImageTextToText.from_pretrained(model, dtype=torch.float32).eval()
    with torch.no_grad():
        intended = whole(input_ids=tokens).logits[0]
    torch.testing.assert_close(outline_logits(model, tokens), intended, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_language_part_is_quantized_and_the_rest_stays_byte_for_byte(
    tmp_path: Path, kind: str, method: str
) -> None:
    import torch

    options, packed = METHODS[method]
    model = tiny_multimodal(tmp_path / "model", kind)
    result = run(model, tmp_path / "out", **options)
    before, after = tensors(model), tensors(tmp_path / "out")
    # 1. Tower and projector are as they were, under their names.
    carried = [name for name in before if not set(OTHERS).isdisjoint(name.split(".")[:2])]
    assert len(carried) > 10
    assert all(before[name].dtype == after[name].dtype and torch.equal(before[name], after[name]) for name in carried)
    # 2. Every linear of the language part is quantized, under its name in the checkpoint.
    linears = [name for name in before if "_proj.weight" in name and name not in carried and ".layers." in name]
    assert len(linears) == 14 and len(result.layers) == 14
    assert all(f"{name.removesuffix('weight')}{packed}" in after for name in linears)
    # 3. The configuration excepts the rest, and the image processor comes along.
    ignored = json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]["ignore"]
    parts = {part for name in carried for part in name.split(".")[:2] if part in OTHERS}
    assert {f"re:.*{part}.*" for part in parts} <= set(ignored)
    assert (tmp_path / "out/preprocessor_config.json").is_file()
    # 4. What was written computes what the model did.
    quality = score(model, tmp_path / "out", TEXT, length=64, progress=NoProgress())
    assert float(quality["kl_mean"]) < (0.05 if method == "fp8" else 0.3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_card_has_the_facts_of_the_language_part(tmp_path: Path, kind: str) -> None:
    described = card.read_card(tiny_multimodal(tmp_path / "model", kind))
    assert (described.model_type, described.layers, described.hidden_size) == (kind, 2, 128)
    assert described.outside_parameters > 10_000


def test_a_part_that_nothing_knows_is_refused_by_name(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    model = tiny_multimodal(tmp_path / "model", "llava")
    extra = {**tensors(model), "thought_tower.layer.weight": torch.zeros(4, 4)}
    save_file(extra, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelDamaged, match=r"thought_tower\.layer\.weight belongs to no part"):
        Outline(open_plain(model))
