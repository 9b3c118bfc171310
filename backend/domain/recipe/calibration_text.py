"""How much of one text stands in another, by runs of words: whether calibration has seen what quality is measured on.

Runs of 13 words are what GPT-3's authors looked for (Brown et al. 2020, arXiv 2005.14165, appendix C). Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

RUN = 13
"""Words, or single signs, in a row."""
MOST = 0.05
"""Share of the held-out runs that may occur: common lines of code do everywhere (0.7 % in the bundled texts)."""
_WORD = re.compile(r"\w+|[^\w\s]")


def share(held_out: str, texts: Iterable[str]) -> float:
    """The share of the runs of `held_out` that occur in `texts`, 0 to 1; spaces, line breaks and capitals do not count."""
    looked_for = set(_runs(held_out))
    if not looked_for:
        return 0.0
    left = set(looked_for)
    for text in texts:
        left.difference_update(_runs(text))
    return (len(looked_for) - len(left)) / len(looked_for)


def _runs(text: str) -> Iterator[tuple[str, ...]]:
    """Every run of the text; of a text shorter than one, itself."""
    words = _WORD.findall(text.lower())
    for start in range(max(1, len(words) - RUN + 1) if words else 0):
        yield tuple(words[start : start + RUN])
