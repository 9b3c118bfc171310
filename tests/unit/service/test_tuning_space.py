"""The stacks that a search may try: what the engines of this machine can make and serve."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from backend.domain.errors import ImpossibleStack
from backend.domain.machine import environments
from backend.domain.recipe.serving_engines import ENGINES, EngineName
from backend.domain.tuning.stacks import SpaceChoice
from backend.hardware import engine_status
from backend.service import Workspace
from backend.service.models import models
from backend.service.tuning import space
from tests.homes import open_home


def installed(place: Path, programs: Sequence[str], engines: Sequence[EngineName] = ("vllm", "llama.cpp")) -> Workspace:
    """A home with what an installation of the engines leaves; nothing is started from it."""
    folder = place / "engines"
    for name in engines:
        environment = ENGINES[name].environment
        (folder / environment / "bin").mkdir(parents=True)
        for program in (environments.resolve(environment).program, *programs):
            (folder / environment / "bin" / program).touch()
        (folder / environment / engine_status.MARKER).write_text('{"version": "1"}')
    return open_home(place / "home", engines=folder)


def test_gguf_weights_are_left_out_where_llama_cpp_has_no_quantizer(tmp_path: Path) -> None:
    without = installed(tmp_path, [])
    model = models.resolve(without, "starter")
    searched = space.find_stacks(without, model, SpaceChoice())
    assert searched.stacks and not [stack for stack in searched.stacks if stack.weights == "q8_0"]
    assert searched.left_out
    left_out = [why for title, why in searched.left_out.items() if title.startswith("q")]
    assert left_out and all("has its server and no quantizer" in why for why in left_out)
    with pytest.raises(ImpossibleStack, match=r"nothing to try for starter .*no quantizer"):
        space.find_stacks(without, model, SpaceChoice(engines=("llama.cpp",), weights=("q8_0",)))


def test_gguf_weights_are_tried_where_it_has_one(tmp_path: Path) -> None:
    built = installed(tmp_path, ["llama-quantize"])
    searched = space.find_stacks(built, models.resolve(built, "starter"), SpaceChoice())
    assert [stack for stack in searched.stacks if stack.weights == "q8_0"]


def test_weights_are_not_tried_on_an_engine_that_does_not_read_them(tmp_path: Path) -> None:
    """Rows of 576 are no multiple of 256, so llama.cpp's Q4_K_M has tensors of Q5_0, which OpenVINO does not read."""
    every = installed(tmp_path, ["llama-quantize"], tuple(ENGINES))
    model = models.resolve(every, "starter").model_copy(update={"hidden_size": 576})
    searched = space.find_stacks(every, model, SpaceChoice())
    assert {stack.engine for stack in searched.stacks if stack.weights == "q8_0"} == {"llama.cpp", "openvino"}
    assert {stack.engine for stack in searched.stacks if stack.weights == "q4_k_m"} == {"llama.cpp"}
    assert "Q5_0, which OpenVINO GenAI does not read" in searched.left_out["q4_k_m on OpenVINO GenAI"]
