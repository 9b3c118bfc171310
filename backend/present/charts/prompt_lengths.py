"""Chart of the prompt lengths of a workload. Pure data for plotly."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from backend.domain.figures import counted
from backend.present.charts.theme import COLOURS, Figure, Theme, empty, layout, style, text

BINS = 20


def token_histogram(lengths: Sequence[int], workload: str, model: str, theme: Theme = "light") -> Figure:
    """Chart prompts by length in tokens of `model`, in at most BINS bars of equal width in whole tokens."""
    title = "Prompts by length"
    if not lengths:
        return empty(title, "No prompt was counted.", theme)
    # Count the prompts of each bar.
    bars = histogram(lengths)
    width = bars[0][1] - bars[0][0]
    hover_texts = [
        f"{counted(count, 'prompt')} of {start}{f' to {end - 1}' if width > 1 else ''} tokens"
        for start, end, count in bars
    ]
    # Draw the bars between the first and the last token that they count.
    x = {"label": "Tokens", "rangemode": "normal"}
    where = f"counted with the tokenizer of {text(model)}"
    drawn = layout(title, x, {"label": "Prompts", "rangemode": "tozero"}, theme, provenance=where)
    series = {
        "type": "bar",
        "name": text(workload),
        "customdata": [text(workload)] * len(bars),
        "x": [(start + end - 1) / 2 for start, end, _ in bars],
        "y": [count for _, _, count in bars],
        "width": [width] * len(bars),
        "hovertext": [f"{words}<br>{where}" for words in hover_texts],
        "hoverinfo": "text",
        "marker": {"color": style(1, theme).colour, "line": {"width": 1, "color": COLOURS[theme].panel}},
    }
    # The chart is low, since the page has more below it.
    return {
        "data": [series],
        "layout": {**drawn, "height": 240, "margin": {**drawn["margin"], "b": 52}, "showlegend": False},
    }


def histogram(lengths: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return (first, one past the last, count) of each bar, ascending, without gaps."""
    low, high = min(lengths), max(lengths)
    width = max(1, math.ceil((high - low + 1) / BINS))
    counts = Counter((length - low) // width for length in lengths)
    return [(start, start + width, counts[number]) for number, start in enumerate(range(low, high + 1, width))]
