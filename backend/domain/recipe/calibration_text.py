"""Checks whether a text is good to calibrate with: its overlap with the held-out text, and its tokenizer.

Runs of 13 words are what GPT-3's authors compared (Brown et al. 2020, arXiv 2005.14165, appendix C). Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from backend.domain.errors import InvalidModel

RUN = 13
"""Words, or single signs, in a row."""
MOST = 0.05
"""Share of the held-out runs that may occur: common lines of code do everywhere (0.7 % in the bundled texts)."""
_WORD = re.compile(r"\w+|[^\w\s]")


def share(held_out: str, texts: Iterable[str]) -> float:
    """Return the share of the runs of `held_out` that occur in `texts`, 0 to 1.

    Spaces, line breaks and capitals do not count.
    """
    looked_for = set(runs(held_out))
    if not looked_for:
        return 0.0
    left = set(looked_for)
    for text in texts:
        left.difference_update(runs(text))
    return (len(looked_for) - len(left)) / len(looked_for)


def runs(text: str) -> Iterator[tuple[str, ...]]:
    """Yield every run of `RUN` words of the text; a shorter text is one run."""
    words = _WORD.findall(text.lower())
    for start in range(max(1, len(words) - RUN + 1) if words else 0):
        yield tuple(words[start : start + RUN])


def check_vocabulary(config: dict[str, Any], largest: int) -> None:
    """Raise InvalidModel if the tokenizer cannot be the model's own: its token `largest` has no embedding there."""
    vocabulary = config.get("text_config", config).get("vocab_size")
    if vocabulary is not None and largest >= vocabulary:
        raise InvalidModel(
            f"The tokenizer gives token {largest} and the model knows {vocabulary} (0 to {vocabulary - 1}): its "
            "tokenizer files are another model's, put its own beside config.json."
        )
