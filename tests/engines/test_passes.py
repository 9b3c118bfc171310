"""Sequences through a layer: several devices give what one gives, and a device short of memory gets fewer at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from backend.domain.errors import WorkError
from backend.engines.native.input_statistics import Collected, Tally, Taps
from backend.layered.hidden_states import HiddenStates
from backend.layered.layer_passes import LayerPasses, memory_errors
from backend.layered.outline import Outline
from backend.layered.weight_source import WeightSource
from tests.families import HIDDEN, tiny

SEQUENCES, LENGTH = 12, 32
WIDE = "mlp.down_proj"


ROUNDING: dict[str, float] = {"rtol": 0.02, "atol": 0.01}
"""Calibration runs in bfloat16 where the processor has it, and the size of a batch decides how sums are rounded."""


class Bench:
    """One layer of a tiny model, its calibration sequences and what was warned of."""

    def __init__(self, folder: Path, devices: tuple[str, ...], kind: str = "llama") -> None:
        import torch

        self.outline = Outline(WeightSource(tiny(folder, kind)))
        tokens = torch.randint(1, 256, (SEQUENCES, LENGTH), generator=torch.Generator().manual_seed(0))
        self.warnings: list[str] = []
        self.passes = LayerPasses(self.outline, tokens, devices, self.warnings.append, half=True)
        self.passes.batch = 3
        self.hidden = HiddenStates((SEQUENCES, LENGTH, HIDDEN), folder)
        self.passes.embed(self.hidden)
        self.outline.fill(0, "cpu")

    def run(self) -> tuple[Any, Any]:
        """What leaves the layer, and X'X of its widest input."""
        tallies = self.passes.run_layer(0, self.hidden, self.taps, True, lambda _: None)
        return self.hidden.leaving.clone(), tallies[WIDE].stats(WIDE).matrix()

    def taps(self, device: str) -> Taps:
        features = self.outline.layers[0].get_submodule(WIDE).in_features
        return {WIDE: Tally(features, SEQUENCES * LENGTH, Collected(), device)}


def test_several_devices_see_all_that_one_sees(tmp_path: Path) -> None:
    import torch

    alone = Bench(tmp_path / "one", ("cpu",)).run()
    together = Bench(tmp_path / "two", ("cpu", "cpu")).run()
    torch.testing.assert_close(together, alone, **ROUNDING)


def test_what_lies_behind_the_last_sequence_is_not_read_or_written(tmp_path: Path) -> None:
    """Measuring by group keeps copies there, and the last batch ends before them though it is smaller than the
    others."""
    import torch

    alone = Bench(tmp_path / "one", ("cpu",)).run()
    bench = Bench(tmp_path / "two", ("cpu",))
    wider = HiddenStates((SEQUENCES + 4, LENGTH, HIDDEN), tmp_path)
    for buffer in (wider.entering, wider.leaving):
        buffer.fill_(torch.nan)
    wider.entering[:SEQUENCES] = bench.hidden.entering
    bench.hidden, bench.passes.batch = wider, 5
    left, gram = bench.run()
    torch.testing.assert_close((left[:SEQUENCES], gram), alone, **ROUNDING)
    assert bool(left[SEQUENCES:].isnan().all())


def limited(bench: Bench, most: int) -> None:
    """Let the layer ask for more memory than any machine has once it gets more than `most` sequences."""
    import torch

    def ask(_module: Any, args: tuple[Any, ...]) -> None:
        if len(args[0]) > most:
            torch.empty(1 << 60)

    bench.outline.layers[0].register_forward_pre_hook(ask)


def test_a_device_that_runs_out_of_memory_gets_half_and_says_so(tmp_path: Path) -> None:
    import torch

    alone = Bench(tmp_path / "one", ("cpu",)).run()
    bench = Bench(tmp_path / "two", ("cpu",))
    bench.passes.batch = 6
    limited(bench, 2)
    torch.testing.assert_close(bench.run(), alone, **ROUNDING)
    assert bench.warnings == [
        "Memory ran out: going on with 3 sequences at a time.",
        "Memory ran out: going on with 1 sequence at a time.",
    ]


def test_a_single_sequence_that_is_too_much_is_one_sentence(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "one", ("cpu",))
    limited(bench, 0)
    with pytest.raises(WorkError, match="Memory ran out on a single sequence"):
        bench.run()


def test_memory_that_runs_out_where_nothing_can_be_halved_is_one_sentence() -> None:
    import torch

    with pytest.raises(WorkError, match="Memory ran out on the matrices of one layer: use a device"), memory_errors():
        torch.empty(1 << 60)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), memory_errors():
        torch.empty(2, 3) @ torch.empty(2, 3)


def test_calls_for_another_batch_size_are_made_when_they_are_needed(tmp_path: Path) -> None:
    """BLOOM's bias by position has one row a sequence and head: it cannot stand in for another number of sequences."""
    import torch

    alone = Bench(tmp_path / "one", ("cpu",), "bloom")
    alone.passes.batch = 12
    first = alone.passes.run_layer(0, alone.hidden, None, True, lambda _: None)
    whole = alone.hidden.leaving.clone()
    alone.passes.batch = 5
    assert alone.passes.run_layer(0, alone.hidden, None, True, lambda _: None) == first == {}
    torch.testing.assert_close(alone.hidden.leaving, whole, **ROUNDING)


def test_when_a_pass_is_given_up_no_device_goes_on(tmp_path: Path) -> None:
    """Else a cancelled job would wait for all that the other devices still had to do."""
    bench = Bench(tmp_path / "one", ("cpu", "cpu"))
    bench.passes.batch = 1
    others: list[int] = []

    def wait(module: Any, args: tuple[Any, ...]) -> None:
        if module is not bench.outline.layers[0]:
            others.append(len(args[0]))
            assert bench.passes.given_up.wait(60)

    def give_up(_done: float) -> None:
        raise KeyboardInterrupt

    bench.outline.layers[0].register_forward_pre_hook(wait)
    with pytest.raises(KeyboardInterrupt):
        bench.passes.run_layer(0, bench.hidden, bench.taps, True, give_up)
    assert len(others) <= 1
