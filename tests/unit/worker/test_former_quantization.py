"""An evaluation says what an original was quantized to before it was imported."""

from __future__ import annotations

from pathlib import Path

from backend.catalog.cards import import_record
from backend.domain.evaluation.document import Variant
from backend.domain.model.facts import QuantizedBefore
from backend.worker.kinds.evaluate import former_quantization_notes
from tests.cases.models import llama
from tests.cases.stored import SMALL, fp8, store


def test_what_an_original_lost_before_it_came_is_told_once_with_its_name(tmp_path: Path) -> None:
    plain, imported = tmp_path / "plain", tmp_path / "imported"
    plain.mkdir()
    imported.mkdir()
    before = QuantizedBefore(format="Q4_1", block=32, bits=5.0)
    import_record.write(
        imported, import_record.ImportRecord(source="a.gguf", revision="0" * 64, quantized_before=before, files={})
    )
    original = Variant(name="smol", source="smol", kind="model", model_path=str(imported), original_path=str(imported))
    variant = Variant(name="w8a8", source="a-1", kind="artifact", model_path=str(tmp_path), original_path=str(imported))
    own = Variant(name="plain", source="plain", kind="model", model_path=str(plain), original_path=str(plain))
    (message,) = former_quantization_notes(
        [original, variant, own, Variant(name="u", source="http://x", kind="url", url="http://x")]
    )
    assert message.startswith("`smol`: Its weights were quantized to Q4_1 (blocks of 32, 5 bits a weight)")
    (alone,) = former_quantization_notes([variant])
    assert alone.startswith("`a.gguf@00000000`: ") and former_quantization_notes([own]) == []


def test_what_an_original_is_stored_as_is_told(tmp_path: Path) -> None:
    folder = store(llama(tmp_path / "f", **SMALL), fp8)
    original = Variant(name="eight", source="f", kind="model", model_path=str(folder), original_path=str(folder))
    (sentence,) = former_quantization_notes([original])
    assert sentence.startswith("`eight`: Its weights are stored as FP8 with one scale a matrix")
