"""A recipe on a quantized source gives the artifact that it gives on the plain copy of the dequantized weights."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from backend.domain.errors import ImpossibleStack
from backend.domain.jobs.progress import NoProgress
from backend.engines.base import Pruning, QuantizeRequest
from backend.engines.native import quantize
from backend.evaluate.quality.scoring import score
from backend.layered import dequantize
from tests import families
from tests.cases import stored
from tests.tiny import TEXT, tiny_llama

PRUNE: dict[str, Any] = {"pruning": Pruning(method="magnitude")}
AWQ: dict[str, Any] = {"method": "awq", "bits": 4, "group_size": 32, "symmetric": False}
INT8: dict[str, Any] = {"method": "w8a8", "bits": 8}
FP8: dict[str, Any] = {"method": "fp8", "bits": 8}
BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}
ORDERED = {**stored.GPTQ_CONFIG, "desc_act": True}
CASES: dict[str, tuple[stored.Layout, dict[str, Any] | None, str, dict[str, Any]]] = {
    "ModelOpt FP8 pruned": (stored.modelopt_fp8, stored.MODELOPT, "hf_quant_config.json", PRUNE),
    "FP8 in blocks to awq": (partial(stored.fp8, shared="block", name="weight_scale_inv"), BLOCKS, "config.json", AWQ),
    "INT8 to fp8": (stored.int8, None, "", FP8),
    "GPTQ to w8a8": (partial(stored.gptq, ordered=True), ORDERED, "quantize_config.json", INT8),
    "AWQ to w8a8": (stored.awq, None, "", INT8),
}


def optimized(model: Path, folder: Path, **options: Any) -> Path:
    """`model` through the native engine."""
    quantize(
        QuantizeRequest(model_dir=model, out_dir=folder, calibration_texts=[TEXT * 4], samples=4, length=32, **options),
        NoProgress(),
    )
    return folder


def same_artifact(first: Path, second: Path) -> bool:
    """Whether both folders hold the same files, byte by byte."""
    names = sorted(path.name for path in first.iterdir())
    assert names == sorted(path.name for path in second.iterdir())
    return all((first / name).read_bytes() == (second / name).read_bytes() for name in names)


def quickly(cases: Any, *few: Any) -> list[Any]:
    """All of them as parameters, those beyond `few` with the campaign."""
    return [pytest.param(each, marks=() if each in few else pytest.mark.campaign, id=str(each)) for each in cases]


@pytest.mark.parametrize("name", quickly(CASES, "ModelOpt FP8 pruned", "GPTQ to w8a8"))
def test_an_artifact_of_quantized_weights_is_that_of_what_they_stand_for(name: str, tmp_path: Path) -> None:
    layout, announcement, file, options = CASES[name]
    model = stored.store(tiny_llama(tmp_path / "stored"), layout, announcement, file)
    plain = stored.dense(tiny_llama(tmp_path / "plain"), layout)
    assert same_artifact(optimized(model, tmp_path / "a", **options), optimized(plain, tmp_path / "b", **options))
    scores = [score(each, tmp_path / "a", TEXT, length=64, progress=NoProgress()) for each in (model, plain)]
    assert scores[0] == scores[1] and scores[0]["scored"] == ("original" if options is PRUNE else "dequantized")


OWN = {"llama, awq": AWQ, "llama, w8a8": INT8, "gpt2, fp8": FP8, "mixtral, awq": AWQ}


@pytest.mark.parametrize("name", quickly(OWN, "gpt2, fp8"))
def test_our_own_artifacts_are_sources_too(name: str, tmp_path: Path) -> None:
    """Dequantized by compressed-tensors itself in the plain copy."""
    kind, options = name.partition(",")[0], OWN[name]
    optimization = optimized(families.tiny(tmp_path / "original", kind), tmp_path / "made", **options)
    plain = families.dense(optimization, tmp_path / "plain")
    tensors = dequantize.open_plain(optimization)
    expected = dequantize.open_plain(plain)
    assert set(tensors.plain()) == set(expected.plain())
    assert all(tensor.float().equal(expected.one(name)) for name, tensor in tensors.read(tensors.plain()))
    again, other = (optimized(each, tmp_path / f"{each.name}-again", **PRUNE) for each in (optimization, plain))
    assert same_artifact(again, other), "config.json no longer announces what the source was"


def test_what_trains_reads_plain_weights_only(tmp_path: Path) -> None:
    from backend.engines.native.recovery.adapters import load

    model = stored.store(tiny_llama(tmp_path / "stored"), stored.fp8)
    with pytest.raises(
        ImpossibleStack, match="stored as FP8 with one scale a matrix, which only the native engine reads"
    ):
        load(model, "cpu")
