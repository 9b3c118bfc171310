"""Products and attention for calibration: exact where they say so, and the same as torch's own where they are not."""

from __future__ import annotations

import pytest
import torch

from backend.domain.errors import WorkError
from backend.engines.native import input_statistics as gram
from backend.engines.native.group import Stats
from backend.engines.native.input_statistics import Collected, Tally
from backend.layered import attention
from backend.layered.attention import causal
from backend.layered.freed_memory import keep_freed_memory
from backend.layered.kv_cache_range import make_recorder
from backend.layered.layer_passes import AllTapsRead, tapped
from backend.layered.matrix_products import fast_products, half_precision


def test_fast_products_keep_fp32_accuracy_and_leave_no_trace() -> None:
    before = torch.backends.mkldnn.matmul.fp32_precision
    left, right = torch.randn(300, 200), torch.randn(200, 100)
    with fast_products():
        result = left @ right
    true = left.double() @ right.double()
    assert float((result - true).norm() / true.norm()) < 1e-5
    assert torch.backends.mkldnn.matmul.fp32_precision == before


@pytest.mark.parametrize("tokens", [1, 127, 128, 129, 300])
def test_blocked_attention_is_causal_attention(tokens: int) -> None:
    query, key, value = torch.randn(3, 2, 4, tokens, 16)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    torch.testing.assert_close(causal(query * 16**-0.5, key, value), expected)


@pytest.mark.parametrize("sharing", [2, 4])
def test_heads_that_share_keys_see_their_own(sharing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few at a time too, where the last heads are fewer."""
    query, (key, value) = torch.randn(2, 3 * sharing, 150, 16), torch.randn(2, 2, 3, 150, 16)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    torch.testing.assert_close(causal(query * 16**-0.5, key, value), expected)
    monkeypatch.setattr(attention, "NEAR", 4 * sharing * attention.BLOCK * 150 * query.element_size())
    torch.testing.assert_close(causal(query * 16**-0.5, key, value), expected)


def test_blocked_attention_takes_a_few_heads_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value = torch.randn(3, 2, 3, 150, 16)
    together = causal(query, key, value)
    monkeypatch.setattr(attention, "NEAR", 4 * attention.BLOCK * 150 * query.element_size())
    torch.testing.assert_close(causal(query, key, value), together)


@pytest.mark.parametrize("form", ["gram", "rows"])
def test_rough_statistics_rank_as_exact_ones_do(form: str) -> None:
    rows, errors = torch.randn(96, 128) * torch.rand(128).exp(), torch.randn(20, 32, 128)
    values = {"gram": rows.T @ rows} if form == "gram" else {"rows": rows}
    stats = Stats(len(rows), rows.abs().mean(0), rows.abs().amax(0), **values)
    for error in errors:
        assert stats.rough().squared(error) == pytest.approx(stats.squared(error), rel=3e-3)
    assert {each.dtype for each in (stats.gram, stats.rows) if each is not None} == {torch.float32}


def test_memory_that_is_kept_is_usable_and_given_back() -> None:
    with keep_freed_memory():
        assert float(sum(torch.ones(1 << 20).sum() for _ in range(3))) == 3 << 20
    assert float(torch.ones(1 << 20).sum()) == 1 << 20


@pytest.mark.parametrize("features", [5, 128, 200, 1100])
def test_a_gram_matrix_of_half_the_products_is_whole(features: int) -> None:
    rows = torch.randn(2 * features, features)
    tally = Tally(features, len(rows), Collected(), "cpu")
    for part in rows.split(gram.FEWEST - 1):
        tally.add(part)
    torch.testing.assert_close(tally.stats("x").matrix(), rows.T @ rows, rtol=1e-4, atol=1e-2)


def test_a_gram_matrix_may_be_of_the_first_tokens_only() -> None:
    rows = torch.randn(60, 8)
    tally = Tally(8, 60, Collected(gram_tokens=25), "cpu")
    for part in rows.split(20):
        tally.add(part)
    stats = tally.stats("x")
    assert stats.tokens == 60
    torch.testing.assert_close(stats.mean_abs, rows.abs().mean(0))
    torch.testing.assert_close(stats.matrix(), rows[:25].T @ rows[:25])


@pytest.mark.parametrize("features", [4, 40])
def test_every_so_many_tokens_may_be_kept_whatever_the_batches(features: int) -> None:
    """As X'X where that is smaller, else as they are."""
    rows = torch.randn(60, features)
    tally = Tally(features, 20, Collected(gram_tokens=20, every=3), "cpu")
    for part in rows.split([7, 20, 1, 32]):
        tally.add(part)
    stats = tally.stats("x")
    assert (stats.rows is None) == (features == 4) and stats.tokens == 60
    torch.testing.assert_close(stats.matrix(), rows[::3].T @ rows[::3])
    torch.testing.assert_close(stats.max_abs, rows.abs().amax(0))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_token_that_is_not_finite_is_noticed_though_none_of_the_kept_ones_is(bad: float) -> None:
    rows = torch.randn(60, 4)
    rows[31, 2] = bad
    tally = Tally(4, 20, Collected(gram_tokens=20, every=3), "cpu")
    tally.add(rows)
    with pytest.raises(WorkError, match="The input of x is not finite"):
        tally.stats("x")


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_key_that_is_not_finite_is_noticed(bad: float) -> None:
    cache = make_recorder()
    cache.recording = True
    keys, values = torch.randn(2, 1, 2, 5, 4)
    cache.update(keys, values, 0)
    keys[0, 1, 3, 2] = bad
    with pytest.raises(WorkError, match="keys or values of layer 0 are not finite"):
        cache.update(keys, values, 0)


def test_merging_keeps_few_tokens_of_a_wide_input_as_they_are() -> None:
    """However many were seen: [in, in] would be far larger than what is kept."""
    tallies = [Tally(40, 20, Collected(gram_tokens=10, every=9), "cpu") for _ in range(2)]
    parts = torch.randn(2, 90, 40)
    for tally, rows in zip(tallies, parts, strict=True):
        tally.add(rows)
    tallies[0].merge(tallies[1])
    stats = tallies[0].stats("x")
    assert stats.gram is None and stats.rows is not None and stats.tokens == 180
    torch.testing.assert_close(stats.rows, torch.cat([rows[::9] for rows in parts]))


def test_a_layer_stops_once_all_was_seen_and_not_before() -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    tallies = {path: Tally(4, 6, Collected(), "cpu") for path in ("0", "1")}
    with torch.no_grad(), tapped(layer, tallies, stop=True):
        for _ in range(2):
            with pytest.raises(AllTapsRead):
                layer(torch.randn(3, 4))
    assert [tally.tokens for tally in tallies.values()] == [6, 6]
    with torch.no_grad(), tapped(layer, {"0": Tally(4, 6, Collected(), "cpu")}):
        assert layer(torch.randn(3, 4)).shape == (3, 4)


def test_half_precision_is_bfloat16_or_nothing() -> None:
    with half_precision("cpu"):
        dtype = torch.nn.functional.linear(torch.randn(2, 3), torch.randn(4, 3)).dtype
    able = torch.cpu.get_capabilities()
    assert dtype == (torch.bfloat16 if able.get("avx512_bf16") or able.get("amx_bf16") else torch.float32)


def test_magnitudes_that_nobody_asked_for_cannot_be_taken_for_figures() -> None:
    rows = torch.randn(20, 4)
    request, spared = (Tally(4, len(rows), Collected(magnitudes=required), "cpu") for required in (True, False))
    for tally in (request, spared):
        tally.add(rows)
    stats = spared.stats("linear")
    assert stats.mean_abs.isnan().all() and stats.max_abs.isnan().all()
    assert torch.equal(stats.matrix(), request.stats("linear").matrix())
