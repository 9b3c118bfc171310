"""A precision for each group of linears: measured to the end of the model, written as vLLM reads it, the same after a
stop."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from backend.domain.errors import ImpossibleStack, QualityFloorMissed, WorkError
from backend.domain.jobs.progress import NoProgress
from backend.domain.recipe import precision, precision_allocation
from backend.domain.recipe.precision import SIXTEEN, MeasuredGroup
from backend.domain.recipe.recipe import Limits
from backend.engines.base import QuantizeRequest
from backend.engines.native import measure, quantize
from backend.evaluate.quality import scoring
from backend.layered.outline import Outline
from backend.worker.optimizing.precision_search import PrecisionSearch
from benchmarks import techniques_reference
from tests.families import logits, tiny
from tests.tiny import TEXT, tiny_llama

OPTIONS: dict[str, Any] = {"method": "rtn", "bits": 4, "group_size": 64, "symmetric": False, "eight_bits": "w8a8"}
CANDIDATES = precision.candidates(OPTIONS, "w8a8")


class Stopped(Exception):
    """As a kill would, in the middle of a layer."""


class RecordedNotes(NoProgress):
    """Keeps what is said; stops where a phase has come so far."""

    def __init__(self, phase: str = "", done: float = 0) -> None:
        self.stop, self.done, self.now = phase, done, ""
        self.notes: list[str] = []
        self.phases: list[str] = []

    def phase(self, name: str, message: str, **_: object) -> None:
        self.now = name
        self.phases.append(message if name == "raise" else name)

    def advance(self, done: float, **_: object) -> None:
        if self.now == self.stop and done >= self.done:
            raise Stopped

    def note(self, message: str, **_: object) -> None:
        self.notes.append(message)


def request(model: Path, out: Path, work: Path | None = None, **changes: Any) -> QuantizeRequest:
    query = {name: value for name, value in OPTIONS.items() if name != "eight_bits"} | changes
    return QuantizeRequest(
        model_dir=model, out_dir=out, calibration_texts=[TEXT], samples=8, length=32, work_dir=work, **query
    )


def hungry(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Every layer asks for more memory than any machine has once it gets more than `most` sequences."""
    import torch

    def ask(_module: Any, args: tuple[Any, ...]) -> None:
        if len(args[0]) > most:
            torch.empty(1 << 60)

    filled = Outline.fill

    def fill(outline: Outline, number: int, device: str) -> Any:
        layer = filled(outline, number, device)
        layer.register_forward_pre_hook(ask)
        return layer

    monkeypatch.setattr(Outline, "fill", fill)


def weights(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def scored(model: Path, out: Path) -> dict[str, Any]:
    scores = scoring.score(model, out, TEXT, length=64, progress=NoProgress())
    names = {"kl_mean": "kl_mean", "perplexity_after": "perplexity", "perplexity_before": "perplexity_original"}
    return {name: scores[subject] for name, subject in names.items()}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "llama", layers=3)


@pytest.fixture(scope="module")
def groups(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[MeasuredGroup]:
    return measure(request(model, tmp_path_factory.mktemp("measured") / "out"), CANDIDATES, NoProgress())


def test_a_measured_loss_is_that_of_a_checkpoint_with_only_that_group_rounded(
    model: Path, groups: list[MeasuredGroup], tmp_path: Path
) -> None:
    """Written, read again and run by transformers on the same windows. One window here, so that both see the same."""
    import torch

    from backend.engines.native.calibration import sample_tokens

    assert [group.name for group in groups][:2] == [
        "model.layers.0.self_attn.q_proj",
        "model.layers.0.self_attn.o_proj",
    ]
    assert groups[0].linears == [f"model.layers.0.self_attn.{name}_proj" for name in "qkv"]
    tokens = sample_tokens(model, [TEXT], 4, 32, 0)
    original = techniques_reference.load(model)(tokens).logits.double().log_softmax(-1)
    for number, chosen in ((0, CANDIDATES[0]), (5, CANDIDATES[2])):
        others = {group.name: SIXTEEN for group in groups if group != groups[number]} | {groups[number].name: chosen}
        out = tmp_path / str(number)
        quantize(request(model, out, precisions=others), NoProgress())
        with torch.no_grad():
            log_probabilities = techniques_reference.load(out)(tokens).logits.double().log_softmax(-1)
        kl = (original.exp() * (original - log_probabilities)).sum(-1).mean().detach()
        assert float(kl) == pytest.approx(groups[number].losses[chosen.name], rel=0.05)


def _described(group: dict[str, Any]) -> tuple[int, int | None, str]:
    return group["weights"]["num_bits"], group["weights"].get("group_size"), group["format"]


def test_each_group_gets_its_precision_and_the_file_says_so(
    model: Path, groups: list[MeasuredGroup], tmp_path: Path
) -> None:
    from safetensors.torch import load_file

    names = [group.name for group in groups]
    chosen = {names[0]: CANDIDATES[1], names[1]: SIXTEEN, names[3]: CANDIDATES[2]}
    result = quantize(request(model, tmp_path / "out", precisions=chosen), NoProgress())
    config = json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]
    described = {name: _described(group) for name, group in config["config_groups"].items()}
    assert config["format"] == "mixed-precision"
    assert described == {
        "group_0": (4, 64, "pack-quantized"),
        "group_1": (4, 32, "pack-quantized"),
        "group_2": (8, None, "int-quantized"),
    }
    assert config["config_groups"]["group_0"]["targets"] == ["Linear"]
    assert config["config_groups"]["group_1"]["targets"] == groups[0].linears
    assert set(groups[1].linears) < set(config["ignore"])
    assert {entry["name"] for entry in result.kept_16bit} >= set(groups[1].linears)
    by_name = {row["name"]: row.get("precision") for row in result.layers}
    assert by_name[groups[3].linears[0]] == "w8a8" and by_name[groups[2].linears[0]] is None
    whole = [chosen.get(name, CANDIDATES[0]) for name in names]
    bits = sum(group.stored_bits(each) for group, each in zip(groups, whole, strict=True))
    stored = load_file(tmp_path / "out/model.safetensors")
    linears = {linear for group in groups for linear in group.linears}
    tensors = [
        tensor
        for name, tensor in stored.items()
        if name.rpartition(".")[0] in linears and not name.endswith("weight_shape")
    ]
    assert 8 * sum(tensor.nbytes for tensor in tensors) == bits


def test_an_allocation_beats_4_bits_everywhere_and_an_unknown_group_is_refused(
    model: Path, groups: list[MeasuredGroup], tmp_path: Path
) -> None:
    chosen = precision_allocation.allocate(groups, CANDIDATES, 6.0)
    others = {group.name: each for group, each in zip(groups, chosen, strict=True)}
    quantize(request(model, tmp_path / "mixed", precisions=others), NoProgress())
    quantize(request(model, tmp_path / "plain"), NoProgress())
    assert scored(model, tmp_path / "mixed")["kl_mean"] < scored(model, tmp_path / "plain")["kl_mean"]
    with pytest.raises(ImpossibleStack, match="no group 'nothing'"):
        quantize(request(model, tmp_path / "other", precisions={"nothing": SIXTEEN}), NoProgress())


@pytest.mark.parametrize("kind", ["bloom", "cohere", "falcon-7b", "gemma2", "gpt2", "gpt-neox", "mixtral", "phi"])
def test_families_are_measured_to_the_end_and_mixed(kind: str, tmp_path: Path) -> None:
    """What is computed behind the last layer (norms, caps, scales, tied and renamed heads) is the model's own."""
    import torch

    source = tiny(tmp_path / "source", kind)
    measurement = measure(request(source, tmp_path / "out", group_size=32), CANDIDATES[1:], NoProgress())
    assert all(group.losses["int4-g32"] > 0 and group.losses["w8a8"] < 1 for group in measurement)
    assert sum(group.losses["w8a8"] for group in measurement) < sum(group.losses["int4-g32"] for group in measurement)
    mix = {group.name: (CANDIDATES[2], SIXTEEN)[number % 2] for number, group in enumerate(measurement[1:])}
    quantize(request(source, tmp_path / "mixed", group_size=32, precisions=mix), NoProgress())
    tokens = torch.randint(1, 256, (1, 24), generator=torch.Generator().manual_seed(1))
    original = logits(source, tokens).log_softmax(-1)
    mixed = techniques_reference.load(tmp_path / "mixed")(tokens).logits.detach().log_softmax(-1)
    strayed = (mixed - original).abs().mean()
    assert strayed > 0 and strayed < original.std() / 4


def test_a_stopped_measuring_goes_on_to_the_same_figures_and_is_then_kept(
    model: Path, groups: list[MeasuredGroup], tmp_path: Path
) -> None:
    query = request(model, tmp_path / "out", tmp_path / "probe")
    with pytest.raises(Stopped):
        measure(query, CANDIDATES, RecordedNotes("sensitivity", 2))
    assert measure(query, CANDIDATES, RecordedNotes()) == groups
    again = RecordedNotes()
    assert measure(query, CANDIDATES, again) == groups
    assert again.notes == ["What the groups cost was measured before."] and not (tmp_path / "probe").exists()


def fitting(
    model: Path, out: Path, folder: Path, limits: Limits, progress: RecordedNotes, target: float | None = None
) -> PrecisionSearch:
    query = request(model, out, folder.with_name(folder.name + "-layers"))
    return PrecisionSearch(query, {**OPTIONS, "target_bits": target}, limits, folder, progress)


def test_an_average_is_kept_within_and_told(model: Path, tmp_path: Path) -> None:
    reply = RecordedNotes()
    fit = fitting(model, tmp_path / "out", tmp_path / "fit", Limits(), reply, target=6.5)
    created, bits = fit.run(dict)
    assert bits is not None and 4.6 < bits["average_bits"] <= 6.5 and bits["attempts"] == []
    assert len({row["precision"] for row in bits["groups"]}) > 1
    assert created.bytes_after == (tmp_path / "out/model.safetensors").stat().st_size


def test_a_floor_is_reached_by_raising_what_loses_most_and_a_stopped_job_goes_on(model: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    quantize(request(model, own), NoProgress())
    limits = Limits(max_kl=scored(model, own)["kl_mean"] / 4, fall_back=True)
    sentence, out = RecordedNotes(), tmp_path / "out"
    _, bits = fitting(model, out, tmp_path / "fit", limits, sentence).run(lambda: scored(model, out))
    assert bits is not None
    *missed, remaining = bits["attempts"]
    assert remaining["missed"] is None and remaining["kl_mean"] <= limits.max_kl and remaining["raised"]
    assert missed[0]["raised"] == {} and "above the recipe's max_kl" in missed[0]["missed"]
    averages = [attempt["average_bits"] for attempt in bits["attempts"]]
    assert averages == sorted(averages) and averages[-1] < 16
    tries = [message for message in sentence.phases if message.startswith("Try ")]
    assert len(tries) == len(missed) and tries[0].startswith("Try 2 of at most 6: ")

    other = tmp_path / "other"
    with pytest.raises(Stopped):
        fitting(model, other, tmp_path / "again", limits, RecordedNotes("sensitivity", 2)).run(
            lambda: scored(model, other)
        )
    resumed = RecordedNotes()
    _, same = fitting(model, other, tmp_path / "again", limits, resumed).run(lambda: scored(model, other))
    assert same == bits and weights(other) == weights(out)
    assert resumed.phases.index("sensitivity") < resumed.phases.index("optimize"), (
        "the attempt that missed is not made again"
    )


def test_a_floor_that_cannot_be_met_fails_and_says_how_often_it_was_tried(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(QualityFloorMissed, match=r"above the recipe's max_kl 1e-12, after \d tries? of at most 6"):
        fitting(model, out, tmp_path / "fit", Limits(max_kl=1e-12, fall_back=True), RecordedNotes()).run(
            lambda: scored(model, out)
        )


def test_measuring_goes_on_with_fewer_sequences_where_memory_runs_out(
    model: Path, groups: list[MeasuredGroup], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hungry(monkeypatch, most=1)
    measurement = measure(request(model, tmp_path / "out"), CANDIDATES, NoProgress())
    for one, other in zip(measurement, groups, strict=True):
        assert one.losses == pytest.approx(other.losses, rel=1e-3, abs=1e-9)


def test_scoring_that_runs_out_of_memory_is_one_sentence(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hungry(monkeypatch, most=0)
    with pytest.raises(WorkError, match="Memory ran out on a single sequence"):
        scoring.score(model, model, TEXT, length=32, progress=NoProgress())
