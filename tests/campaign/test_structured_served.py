"""Smaller models of structured pruning are loaded by vLLM, llama.cpp and OpenVINO, which compute what transformers
computes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backend import settings
from backend.domain.errors import EngineMissing
from backend.domain.evaluation.document import Variant
from backend.domain.jobs.progress import NoProgress
from backend.domain.recipe.recipe import Serving
from backend.engines.gguf import export
from backend.engines.llama_cpp import programs
from backend.engines.native.structured.cut import cut
from backend.engines.native.structured.request import CutRequest
from backend.engines.native.structured.run import structure_of
from backend.hardware.engine_status import engine_program, quantizer_folder
from backend.serving.gguf.server import GgufServer
from backend.serving.llama_cpp import LlamaCppServer
from backend.serving.openvino.server import OpenVinoServer
from tests.helpers.vllm_reference import follows, reference, serve
from tests.rounding import apart
from tests.tiny import TEXT, tiny_llama

pytestmark = [pytest.mark.campaign, pytest.mark.process]

CUTS: dict[str, tuple[Any, dict[str, int]]] = {
    "depth": ("depth", {"layers": 2}),
    "neurons": ("width", {"intermediate": 256}),
    "heads": ("width", {"intermediate": 256, "heads": 2, "kv_heads": 1}),
    "channels": ("width", {"hidden": 64}),
}
"""Method and sizes; the model has 4 layers of 384 neurons, 4 heads, 2 of keys and values, and 128 channels."""
SERVERS: dict[str, tuple[type[GgufServer], str]] = {
    "llama.cpp": (LlamaCppServer, "llama-cpp"),
    "openvino": (OpenVinoServer, "openvino"),
}


@pytest.fixture(scope="module")
def smaller(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The original, and what each cut leaves of it."""
    from transformers import AutoConfig

    folder = tmp_path_factory.mktemp("cuts")
    model = tiny_llama(folder / "model", layers=4, intermediate=384)
    sizes = structure_of(AutoConfig.from_pretrained(model))
    for name, (method, changed) in CUTS.items():
        request = CutRequest(
            model_dir=model,
            out_dir=folder / name,
            method=method,
            structure=sizes.model_copy(update=changed),
            calibration_texts=[TEXT * 6],
            samples=8,
            length=64,
        )
        cut(request, NoProgress())
    return {"model": model} | {name: folder / name for name in CUTS}


def tokens_of(model: Path) -> list[int]:
    from transformers import AutoTokenizer

    return list(AutoTokenizer.from_pretrained(model)(TEXT)["input_ids"])[:128]


@pytest.mark.vllm
@pytest.mark.timeout(1800)
def test_vllm_computes_what_transformers_computes(smaller: dict[str, Path]) -> None:
    tokens = tokens_of(smaller["model"])
    served = dict(zip(smaller, serve(list(smaller.values()), tokens), strict=True))
    original, _ = reference(smaller["model"], tokens)
    noise = (served["model"][0] - original).abs().mean()
    for name in CUTS:
        expected, _ = reference(smaller[name], tokens)
        logged, answer = served[name]
        assert (logged - expected).abs().mean() < apart(noise, None), name
        assert follows(answer, smaller[name], tokens), name


@pytest.mark.timeout(600)
@pytest.mark.parametrize("engine", SERVERS)
def test_a_gguf_file_of_them_answers_as_transformers_does(
    engine: Any, smaller: dict[str, Path], tmp_path: Path
) -> None:
    server, environment = SERVERS[engine]
    try:
        program, quantizer = engine_program(settings.load(), environment), quantizer_folder(settings.load())
    except EngineMissing as missing:
        pytest.skip(str(missing))
    prompt = tokens_of(smaller["model"])[:48]
    for name in CUTS:
        file, plain = tmp_path / f"{name}.gguf", tmp_path / f"{name}.plain.gguf"
        export.export(smaller[name], name, plain)
        if engine == "openvino":  # it reads no bfloat16
            programs.quantize(quantizer / programs.QUANTIZE, plain, file, "Q8_0", threads=1)
        else:
            plain.rename(file)
        serving = Serving(engine=engine, threads=1, max_num_seqs=1, max_model_len=128)
        variant = Variant(
            name=name,
            source=name,
            kind="model",
            model_path=str(smaller[name]),
            gguf=str(file),
            bytes_on_disk=file.stat().st_size,
            serving=serving,
        )
        with server(variant, program=program, log=tmp_path / "server.log") as running:
            (answer,) = running.token_answers([prompt], 8)
        assert follows(answer, smaller[name], prompt), (engine, name)
