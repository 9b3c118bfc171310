"""Values in page addresses: a recipe's YAML, packed if it is long, and the pair of the playground."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence

from backend.domain.errors import InvalidRecipe
from backend.service.plans.recipe_files import MAX_BYTES

LONGEST = 6000
"""Characters; servers and browsers refuse much longer addresses."""
MARK = "z:"
"""Prefix of a packed recipe. No YAML of a recipe begins so: it would be a mapping without its first key."""


SIDES = ("original", "optimized")
NOTHING = "nothing"


def playground_parameters(sources: Sequence[str]) -> dict[str, str]:
    """Return the parameters of the playground for one or two sources."""
    return dict(zip(SIDES, [*sources, NOTHING], strict=False))


def write_recipe(text: str) -> str | None:
    """Return the address value of this text; None if it is too long."""
    if len(text) <= LONGEST:
        return text
    packed = MARK + base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode()
    return packed if len(packed) <= LONGEST else None


def read_recipe(address: str) -> str:
    """Return the text of an address value. Raises InvalidRecipe if a packed one is damaged or unpacks to too much."""
    # Short text is not packed.
    if not address.startswith(MARK):
        return address
    try:
        # Unpack at most what a recipe may have.
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
