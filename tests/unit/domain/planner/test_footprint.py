"""Memory on each instance: the same answer as the planner's memory rule, and a chart that says it."""

from __future__ import annotations

from itertools import chain

import plotly.graph_objects as graph
import pytest

from backend.catalog.bundled import instances, published
from backend.domain.planner.footprint import Footprint, footprints
from backend.domain.rules import catalog_filter, rules
from backend.present.charts import memory
from backend.present.charts.theme import Theme
from backend.service.machines import targets

PLACES = [(where.name, where.device) for where in instances.load().targets()]
LLAMA = published.published()["meta-textgeneration-llama-3-70b"]


def footprints_of(kind: str = catalog_filter.ORIGINAL_KIND) -> list[Footprint]:
    return footprints(LLAMA, catalog_filter.technique_recipes()[kind], PLACES)


@pytest.mark.parametrize("kind", ["original", "awq", "w8a8"])
def test_fits_where_the_memory_rule_says_so(kind: str) -> None:
    recipe = catalog_filter.technique_recipes()[kind]
    fitting = set(chain.from_iterable(each.names for each in footprints_of(kind) if each.fits))
    for where in instances.load().targets():
        refused = any(
            reason.rule == "memory" for reason in rules.reasons(LLAMA, recipe, targets.rule_facts(where, LLAMA, None))
        )
        assert refused == (where.name not in fitting), where.name


def test_each_instance_stands_under_one_kind_of_hardware() -> None:
    names = list(chain.from_iterable(each.names for each in footprints_of()))
    assert sorted(names) == sorted(name for name, _ in PLACES) and len(footprints_of()) < len(names)
    sizes = [each.device.units * each.device.memory_bytes for each in footprints_of()]
    assert sizes == sorted(sizes)


def test_the_shares_are_those_of_known_figures() -> None:
    """141.1 GB in 16 bit: 593 % of one A10G with the runtime, and an eighth on eight of 40 GB each is 41 %."""
    by_label = {memory.label(each): each for each in footprints_of()}
    a100 = by_label["8 x A100-40GB (p4d)"]
    assert a100.fits and a100.memory.tensor_parallel == 8
    assert memory.parts(a100)[0] == pytest.approx(100 * 141.1e9 / 8 / (40 * 2**30), rel=0.01)
    assert sum(memory.parts(a100)) == pytest.approx(92, abs=0.1)  # vLLM's share of a GPU's memory
    h100, a10g = (memory.parts(by_label[name])[0] for name in ("8 x H100 (p5)", "8 x A10G (g5)"))
    assert h100 < a10g / 3, "all accelerators are counted, so the larger ones look larger"
    assert not by_label["1 x A10G (g5)"].fits and by_label["1 x A10G (g5)"].used_bytes > 141e9


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("kind", ["original", "awq"])
def test_the_chart_is_one_that_plotly_accepts(theme: Theme, kind: str) -> None:
    result = footprints_of(kind)
    drawn = memory.memory(result, theme)
    graph.Figure(drawn["data"], drawn["layout"])
    bars = {name for trace in drawn["data"] for name in trace["y"]}
    assert bars == {memory.label(each) for each in result}
    assert all("estimated" in hover for trace in drawn["data"] for hover in trace["hovertext"])


def test_the_chart_says_in_words_where_it_fits_and_where_not() -> None:
    alt_text = memory.alt(footprints_of())
    fits, others = alt_text.split("It does not fit on ")
    assert "8 x H100 (p5)" in fits and "1 x A10G (g5)" in others and "estimated" in fits
    assert [row["Fits"] for row in memory.rows(footprints_of())] == [
        "yes" if each.fits else "no" for each in footprints_of()
    ]


def test_no_instances_are_told() -> None:
    drawn = memory.memory([])
    graph.Figure(drawn["data"], drawn["layout"])
    assert "no instance" in drawn["layout"]["annotations"][0]["text"] and "no instance" in memory.alt([])
