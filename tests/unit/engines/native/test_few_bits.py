"""Weights of three values, of about one bit, and of groups with a bit more or fewer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from backend.engines.base import QuantizeRequest
from backend.engines.native.files import schemes
from backend.engines.native.group import Linear, Stats
from backend.engines.native.methods import billm, bitnet, slim_llm
from backend.engines.native.methods.rounding import Snapped, compress, in_groups
from tests.matrices import randn, skewed
from tests.properties import examples
from tests.tiny import TEXT

GROUP = 32


def statistics(inputs: Any) -> Stats:
    magnitude = inputs.abs()
    return Stats(len(inputs), magnitude.mean(0), magnitude.amax(0), inputs.T @ inputs)


@examples(40)
@given(seed=st.integers(0, 10_000), spread=st.sampled_from([1e-4, 0.02, 30.0]), zeros=st.booleans())
def test_ternary_weights_have_three_values_a_group_and_read_back_as_scored(
    seed: int, spread: float, zeros: bool
) -> None:
    weight = randn(8, 64, seed=seed) * spread
    if zeros:
        weight[::2] = 0
    rounding = schemes.weight_only(2, GROUP, symmetric=True, dtype=torch.bfloat16)
    snapped = bitnet.ternary(weight, rounding)
    points = in_groups(snapped.values, rounding) / snapped.grid.scale[..., None]
    assert set(points.round().unique().tolist()) <= {-1.0, 0.0, 1.0}
    mean = in_groups(weight, rounding).abs().mean(-1)
    assert torch.allclose(snapped.grid.scale, mean.clamp_min(1e-37), rtol=0.01)
    assert {"weight_packed", "weight_scale"} <= compress(snapped.values, rounding, snapped.grid).keys()


@examples(25)
@given(seed=st.integers(0, 10_000))
def test_binarizing_twice_loses_less_than_once_and_parts_stay_apart(seed: int) -> None:
    weight, part = randn(6, 40, seed=seed), torch.zeros(6, 40, dtype=torch.bool)
    part[:, ::3] = True
    once, twice = billm.binarized(weight, part), billm.twice_binarized(weight, part)
    assert bool((once[~part] == 0).all()) and bool((twice[~part] == 0).all())
    assert all(len(row[part[0]].unique()) <= 2 for row in once)
    assert float((weight - twice)[part].square().sum()) <= float((weight - once)[part].square().sum()) + 1e-6
    empty = billm.binarized(weight, torch.zeros_like(part))
    assert bool((empty == 0).all())


def test_columns_that_matter_are_salient_and_the_split_is_never_worse_than_none() -> None:
    weight = randn(32, 64, seed=3)
    weight[:, [5, 40]] *= 20
    values, count = billm.binarized_block(weight, weight.square())
    others = torch.ones(64, dtype=torch.bool)
    others[[5, 40]] = False
    salient = (~others).expand(32, 64)
    unsplit = billm.twice_binarized(weight, salient) + billm.binarized(weight, ~salient)
    assert count >= 2
    assert float((weight - values).square().sum()) < float((weight - unsplit).square().sum())
    assert all(len(row[others].unique()) <= 4 for row in values) or count > 2


@pytest.mark.parametrize("bits", [2, 3])
def test_groups_share_out_the_bits_and_the_average_is_the_one_asked_for(bits: int) -> None:
    weight, inputs = randn(24, 8 * GROUP, seed=4), skewed(400, 8 * GROUP, 5)
    weight[:, :GROUP] *= 8
    weight[:, -GROUP:] *= 0.05
    stats = statistics(inputs)
    plain: dict[int, Snapped] = {}
    for width in (bits - 1, bits, bits + 1):
        rounding = schemes.weight_only(max(width, 2), GROUP, symmetric=False, dtype=torch.float32)
        plain[width] = slim_llm.signs(weight, rounding) if width == 1 else slim_llm.rounded_plainly(weight, rounding)
    salience = slim_llm.group_salience(weight, stats, GROUP)
    chosen = slim_llm.allocate(weight, stats, plain, salience)
    assert sum(chosen) == bits * len(chosen) and set(chosen) <= {bits - 1, bits, bits + 1}
    assert chosen[int(salience.argmax())] >= chosen[int(salience.argmin())]
    uniform = stats.squared(weight - plain[bits].values)
    assert stats.squared(weight - slim_llm.joined(plain, chosen, GROUP)) <= uniform


@pytest.mark.parametrize("pruned", [False, True])
def test_narrow_groups_fit_in_what_is_stored_and_zeros_stay(pruned: bool) -> None:
    weight, stats = randn(16, 4 * GROUP, seed=6), statistics(skewed(300, 4 * GROUP, 7))
    changed = weight * (randn(16, 4 * GROUP, seed=8) > 0) if pruned else weight
    ones = torch.ones
    linear = Linear("a", changed, weight, ones(16), ones(4 * GROUP), stats)
    request = QuantizeRequest(
        model_dir="m",
        out_dir="o",
        method="slim_llm",
        bits=2,
        group_size=GROUP,
        calibration_texts=[TEXT],
        tuning={"clip": True, "act_order": True},
    )
    pipeline = slim_llm.slim_llm(request, torch.bfloat16)
    (stored,) = pipeline.rounder.store([linear])
    assert stored.report["bits"] == 2 and stored.tensors["weight_packed"].dtype == torch.int32
    assert bool((stored.effective[changed == 0] == 0).all())
