"""What stands in the addresses of pages: a recipe's YAML, as it is or packed where it is long, and the playground's
pair."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence

from backend.domain.errors import InvalidRecipe
from backend.service.plans.recipe_files import MAX_BYTES

LONGEST = 6000
"""Characters; servers and browsers refuse much longer addresses."""
MARK = "z:"
"""Before a packed recipe. No YAML of a recipe begins so: it would be a mapping without its first key."""


SIDES = ("original", "optimized")
NOTHING = "nothing"


def playground_parameters(sources: Sequence[str]) -> dict[str, str]:
    """The playground's parameters for one or two sources."""
    return dict(zip(SIDES, [*sources, NOTHING], strict=False))


def write_recipe(text: str) -> str | None:
    """What stands in the address for this text; None where it does not fit."""
    if len(text) <= LONGEST:
        return text
    packed = MARK + base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode()
    return packed if len(packed) <= LONGEST else None


def read_recipe(address: str) -> str:
    """The text that stands in the address. Raises InvalidRecipe where a packed one is damaged or unpacks to too
    much."""
    if not address.startswith(MARK):
        return address
    try:
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(base64.urlsafe_b64decode(address.removeprefix(MARK)), MAX_BYTES)
        if unpacker.unconsumed_tail:
            raise InvalidRecipe(
                f"The recipe in the address has more than {MAX_BYTES // 1000} kB: a recipe has a few lines."
            )
        if not unpacker.eof:
            raise ValueError("cut off")
        return content.decode()
    except (ValueError, zlib.error):
        raise InvalidRecipe("The recipe in the address is damaged: part of the link is missing.") from None
