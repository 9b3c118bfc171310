"""Library engines as processes: what passes between, what ends them, and the real libraries under the `compress`
interpreter.

A model folder whose config.json is a named pipe holds the engine where it is for as long as a test wants, without a
clock.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

from backend.domain.errors import EngineMissing, ImpossibleStack, JobCancelled, WorkError
from backend.domain.jobs.progress import NoProgress
from backend.engines.base import Pruning, QuantizeRequest
from backend.engines.libraries import library_client
from backend.evaluate.quality.scoring import score
from backend.hardware.engine_status import engine_python
from backend.settings import CHECKOUT, load
from tests import live_processes
from tests.cases.stored import fp8, store
from tests.homes import eventually
from tests.tiny import TEXT, tiny_llama

HERE = Path(sys.executable)


def make_request(model: Path, out: Path, method: Any = "gptq", **changes: Any) -> QuantizeRequest:
    defaults: dict[str, Any] = {"bits": 4, "symmetric": False, "group_size": 32, "samples": 4, "length": 32}
    return QuantizeRequest(
        model_dir=model, out_dir=out, method=method, calibration_texts=[TEXT], **(defaults | changes)
    )


def make_blocking_model(folder: Path) -> Path:
    """A model that an engine begins to read and never gets."""
    config = tiny_llama(folder, layers=1) / "config.json"
    config.unlink()
    os.mkfifo(config)
    return folder


def children(pid: int) -> list[psutil.Process]:
    return [
        child
        for child in live_processes.answer(psutil.Process(pid).children, [])
        if "backend.engines.libraries.library_process" in live_processes.command(child)
    ]


class Attempt(threading.Thread):
    """A call of the engine in another thread, and how it ended."""

    def __init__(self, request: QuantizeRequest) -> None:
        super().__init__()
        self.request = request
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            library_client.quantize("llm-compressor", HERE, self.request, NoProgress())
        except WorkError as error:
            self.error = error


def test_an_engines_refusal_arrives_as_what_it_was(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "model", layers=1)
    store(model, fp8)
    with pytest.raises(ImpossibleStack, match="already quantized: start from its 16-bit original"):
        library_client.quantize("llm-compressor", HERE, make_request(model, tmp_path / "out"), NoProgress())
    with pytest.raises(ImpossibleStack, match="AutoAWQ writes 4-bit AWQ with zero points only"):
        library_client.quantize("autoawq", HERE, make_request(model, tmp_path / "out"), NoProgress())
    pruned = make_request(model, tmp_path / "out", pruning=Pruning(method="wanda"))
    with pytest.raises(ImpossibleStack, match="prune or quantize, not both"):
        library_client.quantize("llm-compressor", HERE, pruned.model_copy(update={"method": "w8a8"}), NoProgress())
    with pytest.raises(ImpossibleStack, match="has no `magnitude` here: it has wanda, sparsegpt"):
        magnitude = {"method": None, "pruning": Pruning(method="magnitude")}
        library_client.quantize("llm-compressor", HERE, pruned.model_copy(update=magnitude), NoProgress())
    assert not (tmp_path / "out").exists()


def test_an_interpreter_without_the_library_fails_in_one_sentence(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "model", layers=1)
    with pytest.raises(WorkError, match=r"^llm-compressor failed \(ModuleNotFoundError: No module named") as caught:
        library_client.quantize("llm-compressor", HERE, make_request(model, tmp_path / "out"), NoProgress())
    assert "\n" not in str(caught.value)


def test_a_process_that_the_system_ends_is_told_as_that(tmp_path: Path) -> None:
    attempt = Attempt(make_request(make_blocking_model(tmp_path / "model"), tmp_path / "out"))
    before = {child.pid for child in children(os.getpid())}
    attempt.start()
    eventually("the engine runs", lambda: any(child.pid not in before for child in children(os.getpid())))
    (child,) = (child for child in children(os.getpid()) if child.pid not in before)
    child.kill()
    attempt.join(timeout=60)
    assert "memory ran out" in str(attempt.error)


def test_a_cancelled_call_leaves_no_process(tmp_path: Path) -> None:
    class Cancelled(NoProgress):
        def phase(self, name: str, message: str, **data: Any) -> None:
            self.pids = [child.pid for child in children(os.getpid())]
            raise JobCancelled

    progress = Cancelled()
    with pytest.raises(JobCancelled):
        library_client.quantize(
            "llm-compressor", HERE, make_request(tiny_llama(tmp_path / "model", layers=1), tmp_path / "out"), progress
        )
    assert progress.pids and not any(psutil.pid_exists(pid) for pid in progress.pids)


def test_an_engine_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    request = tmp_path / "request.json"
    request.write_text(make_request(make_blocking_model(tmp_path / "model"), tmp_path / "out").model_dump_json())
    code = (
        "import sys; from pathlib import Path; from backend.domain.jobs.progress import NoProgress;"
        "from backend.engines.base import Pruning, QuantizeRequest; from backend.engines.libraries import "
        "library_client;"
        "library_client.quantize('llm-compressor', Path(sys.executable),"
        " QuantizeRequest.model_validate_json(Path(sys.argv[1]).read_text()), NoProgress())"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", code, str(request)], env={**os.environ, "PYTHONPATH": str(CHECKOUT)}
    )
    try:
        eventually("the engine runs", lambda: bool(children(worker.pid)))
        (engine,) = children(worker.pid)
        eventually("it reads the model", lambda: _reads(engine, tmp_path / "model"))
    finally:
        worker.kill()
        worker.wait()
    eventually("the engine is gone", lambda: live_processes.has_ended(engine))


def _reads(process: psutil.Process, folder: Path) -> bool:
    """Whether it has come to opening the pipe: a writer that does not wait finds a reader."""
    try:
        os.close(os.open(folder / "config.json", os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


class Recorded(NoProgress):
    def __init__(self) -> None:
        self.phases: list[str] = []
        self.done: list[float] = []

    def phase(
        self, name: str, message: str, *, total: float | None = None, unit: str | None = None, weight: float = 1.0
    ) -> None:
        self.phases.append(name)

    def advance(self, done: float, **data: Any) -> None:
        self.done.append(done)


def quantize_and_score(engine: str, model: Path, out: Path, **changes: Any) -> tuple[dict[str, Any], Recorded]:
    """The result, and the score of what was saved; EngineMissing where the environment was not installed."""
    progress = Recorded()
    result = library_client.quantize(
        engine, engine_python(load(), "compress"), make_request(model, out, **changes), progress
    )
    assert [layer["name"] for layer in result.layers] == [f"model.layers.{n}" for n in range(2)]
    assert all(0 < layer["relative_error"] < 0.5 for layer in result.layers)
    assert {row["name"] for row in result.kept_16bit} == {"lm_head", "embedding"}
    assert result.calibration["tokens"] == 128 and result.bytes_after < result.bytes_before
    assert progress.phases == ["load", "quantize", "write"] and max(progress.done) == 2
    assert (out / "tokenizer.json").exists() and "rope_theta" in json.loads((out / "config.json").read_text())
    return score(model, out, TEXT * 2, length=64, progress=NoProgress()), progress


@pytest.mark.campaign
def test_llm_compressor_makes_a_checkpoint_that_scores_well(tmp_path: Path) -> None:
    scored, progress = quantize_and_score("llm-compressor", tiny_llama(tmp_path / "model"), tmp_path / "out")
    assert progress.done == sorted(progress.done) and 1 in progress.done
    assert 0 < scored["kl_mean"] < 0.5 and scored["scored"] == "dequantized"


def test_without_the_environment_the_sentence_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(EngineMissing, match="whetstone engines install compress"):
        engine_python(load().model_copy(update={"engines": tmp_path}), "compress")


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("engine", "changes"),
    [
        ("autoawq", {"method": "awq"}),
        ("llm-compressor", {"method": "awq"}),
        ("llm-compressor", {"method": "rtn"}),
        ("llm-compressor", {"method": "gptq", "symmetric": True}),
        *(("llm-compressor", {"method": m, "bits": 8, "group_size": None}) for m in ("w8a8", "smoothquant", "fp8")),
    ],
)
def test_every_row_of_the_capability_table_works(engine: str, changes: dict[str, Any], tmp_path: Path) -> None:
    scored, _ = quantize_and_score(engine, tiny_llama(tmp_path / "model"), tmp_path / "out", **changes)
    assert 0 < scored["kl_mean"] < 0.5


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("method", "pattern"), [("wanda", "unstructured"), ("sparsegpt", "unstructured"), ("sparsegpt", "2:4")]
)
def test_llm_compressor_prunes_every_linear_and_nothing_else(tmp_path: Path, method: Any, pattern: Any) -> None:
    from safetensors.torch import load_file

    model, out, progress = tiny_llama(tmp_path / "model"), tmp_path / "out", Recorded()
    request = QuantizeRequest(
        model_dir=model,
        out_dir=out,
        pruning=Pruning(method=method, pattern=pattern),
        calibration_texts=[TEXT],
        samples=4,
        length=32,
    )
    result = library_client.quantize("llm-compressor", engine_python(load(), "compress"), request, progress)
    assert progress.phases == ["load", "prune", "write"] and max(progress.done) == 2
    assert all(0 < layer["relative_error"] < 1 for layer in result.layers) and len(result.layers) == 2
    assert "quantization_config" not in json.loads((out / "config.json").read_text())
    before, after = load_file(model / "model.safetensors"), load_file(out / "model.safetensors")
    assert before.keys() == after.keys()
    zeros = {name: float((tensor == 0).float().mean()) for name, tensor in after.items() if "_proj" in name}
    assert len(zeros) == 14 and all(abs(share - 0.5) < 0.01 for share in zeros.values())
    if pattern == "2:4":
        totals = [(after[name] != 0).view(len(after[name]), -1, 4).sum(-1) for name in zeros]
        assert all(bool((each <= 2).all()) for each in totals)
    assert all(bool((before[name] == after[name]).all()) for name in before.keys() - zeros.keys())


@pytest.mark.campaign
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2"])
def test_autoawq_knows_the_families_that_the_table_says(family: str, tmp_path: Path) -> None:
    quantize_and_score("autoawq", tiny_llama(tmp_path / "model", family=family), tmp_path / "out", method="awq")
