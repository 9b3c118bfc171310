"""Whether a tokenizer can be the model's own, by the largest token it gave. Pure."""

from __future__ import annotations

from typing import Any

from backend.domain.errors import InvalidModel


def check(config: dict[str, Any], largest: int) -> None:
    """Raises InvalidModel where `largest` has no embedding in the model of that config.json."""
    vocabulary = config.get("text_config", config).get("vocab_size")
    if vocabulary is not None and largest >= vocabulary:
        raise InvalidModel(
            f"The tokenizer gives token {largest} and the model knows {vocabulary} (0 to {vocabulary - 1}): its tokenizer files "
            "are another model's, put its own beside config.json."
        )
