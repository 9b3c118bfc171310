"""Fixtures of the tests of llama.cpp: its server as it was built here, and a tiny GGUF file."""

from __future__ import annotations

from pathlib import Path

import pytest

from backend import settings
from backend.domain.errors import EngineMissing
from backend.domain.evaluation.document import Variant
from backend.domain.recipe.recipe import Serving
from backend.engines.llama_cpp import build
from backend.hardware.engine_status import engine_program
from tests import gguf_files
from tests.tiny import tiny_llama


@pytest.fixture(scope="module")
def program() -> Path:
    """llama-server. Where it is missing the test fails with the sentence that says how to install it."""
    try:
        return engine_program(settings.load(), "llama-cpp")
    except EngineMissing:
        if build.find_compiler() is None:
            pytest.skip("llama.cpp is built with a C++ compiler, and this machine has none")
        raise


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Variant:
    folder = tiny_llama(tmp_path_factory.mktemp("model") / "tiny", intermediate=128)
    file = folder.parent / "tiny.gguf"
    gguf_files.write(file, folder)
    return Variant(
        name="tiny, 1 M",
        source="tiny",
        kind="model",
        model_path=str(folder),
        gguf=str(file),
        bytes_on_disk=file.stat().st_size,
        serving=Serving(engine="llama.cpp", threads=1, max_num_seqs=2, max_model_len=64, prefix_caching=False),
    )
