"""The engine of a variant: written behind its source, left open, read from what was measured, and its name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from backend.domain.errors import ImpossibleStack, RequestError
from backend.domain.evaluation.document import Evaluation
from backend.domain.machine import environments
from backend.domain.recipe.recipe import Serving
from backend.domain.recipe.serving_engines import ENGINES
from backend.hardware import engine_status, probe
from backend.service import Workspace
from backend.service.models import measured_settings, variants
from tests import gguf_files, simulated, studio
from tests.homes import open_home
from tests.tiny import tiny_llama


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder with the GGUF file that it was imported from."""
    folder = tiny_llama(tmp_path_factory.mktemp("model") / "tiny", intermediate=128)
    (folder / "gguf").mkdir()
    gguf_files.write(folder / "gguf" / "tiny.gguf", folder)
    return folder


def test_a_model_is_served_by_the_engine_behind_its_source(home: Workspace, imported: Path) -> None:
    variant = variants.resolve(home, f"{imported}@engine=llama.cpp")
    assert (variant.name, variant.serving.engine) == ("Q4_1 on llama.cpp", "llama.cpp")
    assert variant.gguf == str(imported / "gguf" / "tiny.gguf") and variant.engine_reason is None
    with pytest.raises(RequestError, match="no serving engine `tgi`: use vllm or"):
        variants.resolve(home, "starter@engine=tgi")


def test_settings_behind_a_source_make_a_variant_of_its_own(home: Workspace, imported: Path) -> None:
    source = f"{imported}@engine=llama.cpp@kv_cache_dtype=q8_0@threads=1"
    variant = variants.resolve(home, source)
    assert (variant.name, variant.source) == ("Q4_1 on llama.cpp, KV cache q8_0, threads 1", source)
    assert (variant.serving.kv_cache_dtype, variant.serving.threads) == ("q8_0", 1)
    # An open engine is one that takes the settings.
    assert variants.resolve(home, f"{imported}@engine=auto@batch_threads=1").serving.engine == "llama.cpp"
    with pytest.raises(ImpossibleStack, match="no key-value cache of type u8: set"):
        variants.check_served(home, [variants.resolve(home, f"{imported}@engine=llama.cpp@kv_cache_dtype=u8")])


def test_an_open_engine_follows_the_table_then_what_was_measured(tmp_path: Path, imported: Path) -> None:
    home = open_home(tmp_path / "home", engines=_install_all(tmp_path / "engines"))
    # 1. One engine reads what the starter is.
    only = variants.resolve(home, "starter@engine=auto")
    assert only.engine_reason == "vLLM, because only it reads safetensors here."
    # 2. Without measurements the record decides, at the load.
    source = f"{imported}@engine=auto"
    recorded = [variants.resolve(home, source, streams=streams) for streams in (1, 4)]
    assert [variant.serving.engine for variant in recorded] == ["llama.cpp", "vllm"]
    assert "not measured on this machine" in (recorded[0].engine_reason or "")
    # 3. An evaluation of these two on this machine is read instead, another machine's is not.
    measured = _evaluation(home, imported, speed=0.5)
    studio.evaluation(home, measured.model_copy(update={"hardware": {"cpu": "another"}}), "e-1")
    assert variants.resolve(home, source).serving.engine == "llama.cpp"
    studio.evaluation(home, measured, "e-2")
    chosen = variants.resolve(home, source)
    assert chosen.serving.engine == "vllm"
    assert "measured on this machine" in (chosen.engine_reason or "")


def test_what_a_setting_did_here_is_read_from_evaluations(home: Workspace, imported: Path) -> None:
    path = str(variants.resolve(home, str(imported)).model_path)
    # 1. Variants that differ by more than one setting, or on another machine, say nothing of one.
    two = ("@engine=llama.cpp", "@engine=llama.cpp@kv_cache_dtype=q8_0@threads=1")
    studio.evaluation(home, _evaluation(home, imported, speed=2.0, suffixes=two), "e-1")
    one = _evaluation(home, imported, speed=2.0, suffixes=("@engine=llama.cpp", "@engine=llama.cpp@threads=1"))
    studio.evaluation(home, one.model_copy(update={"hardware": {"cpu": "another"}}), "e-2")
    assert measured_settings.find_comparisons(home, path, "threads") == []
    # 2. One that differs by it alone does, of this setting only.
    studio.evaluation(home, one, "e-3")
    comparisons = measured_settings.find_comparisons(home, path, "threads")
    assert {(row.value, row.before, row.engine, row.outcome) for row in comparisons} == {
        (1, None, "llama.cpp", "better")
    }
    assert all(row.ratio == pytest.approx(2.0, rel=0.2) for row in comparisons)
    assert measured_settings.find_comparisons(home, path, "kv_cache_dtype") == []


def test_a_recipe_may_leave_the_engine_open(home: Workspace) -> None:
    variant = variants.resolve(home, "starter", serving=Serving(engine="auto"))
    assert variant.serving == Serving() and variant.engine_reason


def test_no_engine_for_a_cache_type_is_one_sentence(home: Workspace) -> None:
    with pytest.raises(ImpossibleStack, match="no key-value cache of type q8_0"):
        variants.resolve(home, "starter", serving=Serving(engine="auto", kv_cache_dtype="q8_0"))


def _install_all(folder: Path) -> Path:
    """Write what an installation leaves of each serving engine; nothing is started from it."""
    for engine in ENGINES.values():
        program = folder / engine.environment / "bin" / environments.resolve(engine.environment).program
        program.parent.mkdir(parents=True)
        program.touch()
        (folder / engine.environment / engine_status.MARKER).write_text("{}")
    return folder


def _evaluation(
    home: Workspace, imported: Path, *, speed: float, suffixes: Sequence[str] = ("@engine=vllm", "@engine=llama.cpp")
) -> Evaluation:
    """Return a simulated evaluation of the model with these engines and settings on this machine."""
    served = [variants.resolve(home, f"{imported}{suffix}") for suffix in suffixes]
    document = simulated.evaluation(names=[variant.name for variant in served], speeds=(1.0, speed))
    results = [
        result.model_copy(update={"variant": variant})
        for result, variant in zip(document.variants, served, strict=True)
    ]
    return document.model_copy(update={"variants": results, "hardware": probe.probe()})
