"""GGUF files that are made here, by a job and by an export, run in llama.cpp's own server as it was built here."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf import GGUFReader

from backend import settings
from backend.artifacts import artifact_folder, variants
from backend.catalog.cards.card import read_card
from backend.domain.errors import EngineMissing
from backend.domain.evaluation.document import Variant
from backend.domain.jobs.progress import NoProgress
from backend.domain.model.gguf import file_types
from backend.domain.recipe.recipe import Recipe, Serving
from backend.engines.gguf import export, quantize
from backend.hardware.engine_status import engine_program, quantizer_folder
from backend.layered import tokenizers
from backend.service import Workspace
from backend.serving.llama_cpp import LlamaCppServer
from tests.helpers.quantizing import run
from tests.tiny import tiny_llama
from tests.worker_here import run_optimize

pytestmark = pytest.mark.process
PROMPT = "def add(first, second):\n    return 12"
SERVING = {"engine": "llama.cpp", "threads": 1, "max_num_seqs": 1, "max_model_len": 64}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tiny model with rows of whole super-blocks."""
    return tiny_llama(tmp_path / "tiny", hidden=256, intermediate=256)


def answer_of(variant: Variant, folder: Path) -> tuple[list[int], str]:
    """Return the tokens of PROMPT as the server splits it, and its answer."""
    with LlamaCppServer(
        variant, program=engine_program(settings.load(), "llama-cpp"), log=folder / "server.log"
    ) as server:
        reply = server.answer("/v1/completions", {"prompt": PROMPT, "max_tokens": 4, "temperature": 0})
        return server.prompt_tokens(PROMPT, chat=False), reply["choices"][0]["text"]


def test_a_job_makes_a_file_that_llama_cpp_serves(home: Workspace, model: Path, tmp_path: Path) -> None:
    try:
        quantizer_folder(settings.load())
    except EngineMissing as missing:
        pytest.skip(str(missing))
    step = {"quantize": {"method": "gguf", "type": "q6_k", "samples": 2, "length": 64}}
    recipe = Recipe.model_validate({"name": "tiny gguf", "steps": [step]})
    assert recipe.serving.engine == "llama.cpp"
    output = run_optimize(home, str(model), recipe, tmp_path / "job", scored_windows=3)

    # The manifest says what was stored and lost, and nothing but the file has weights.
    manifest = artifact_folder.read_manifest(output)
    assert manifest.gguf is not None and manifest.gguf["types"]["Q6_K"] > 0
    assert manifest.quality is not None and 0 < manifest.quality["kl_mean"] < 0.1
    assert manifest.quality["windows"] == 3
    assert (
        not list(output.rglob("*.safetensors"))
        and str(tmp_path).encode() not in next(output.rglob("*.gguf")).read_bytes()
    )

    # It is a variant, and is served with the tokens of its tokenizer.
    variant = variants.variant_of_artifact(home.settings, str(output), manifest, "a-0")
    small = variant.model_copy(update={"serving": Serving.model_validate(SERVING)})
    assert artifact_folder.served_of(manifest, small) == artifact_folder.served_files(small)
    tokens, text = answer_of(small, tmp_path)
    assert tokens == list(tokenizers.load(model)(PROMPT)["input_ids"]) and text


@pytest.mark.campaign
@pytest.mark.parametrize(("hidden", "kv_heads"), [(256, 1), (512, 4), (288, 2)])
def test_the_types_in_a_file_are_those_that_the_plan_counts_on(tmp_path: Path, hidden: int, kv_heads: int) -> None:
    """Rows of whole blocks and of part ones, one key head for four queries and for one; 16 layers, since some types
    treat the first eighth otherwise."""
    try:
        programs = quantizer_folder(settings.load())
    except EngineMissing as missing:
        pytest.skip(str(missing))
    folder = tiny_llama(tmp_path / "tiny", hidden=hidden, kv_heads=kv_heads, layers=16, intermediate=512)
    facts = read_card(folder)
    for name in file_types.TYPES:
        request = quantize.GgufRequest(
            model_dir=folder,
            out_dir=tmp_path / name,
            name="tiny",
            kind=name,
            texts=[PROMPT * 40],
            samples=1,
            length=64,
            programs=programs,
            threads=1,
            work_dir=tmp_path / "work",
        )
        result = quantize.quantize(request, NoProgress())
        assert {*result.types} == file_types.tensor_types(facts, name) - {"F32"}, name
        tensors = [each for each in GGUFReader(tmp_path / name / result.file).tensors if each.name.startswith("blk.")]
        matrices = [each for each in tensors if len(each.shape) > 1]
        bits = 8 * sum(int(each.n_bytes) for each in matrices) / sum(int(each.n_elements) for each in matrices)
        assert file_types.linear_bits(facts, name) == pytest.approx(bits, rel=0.01), name


def test_an_exported_artifact_answers(model: Path, tmp_path: Path) -> None:
    run(model, tmp_path / "made", method="rtn", bits=4, group_size=32, symmetric=False)
    export.export(tmp_path / "made", "tiny", tmp_path / "tiny.gguf")
    variant = Variant(
        name="tiny",
        source="tiny",
        kind="model",
        model_path=str(tmp_path / "made"),
        gguf=str(tmp_path / "tiny.gguf"),
        serving=Serving.model_validate(SERVING),
    )
    assert answer_of(variant, tmp_path)[1]
