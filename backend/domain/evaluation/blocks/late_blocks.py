"""Names the blocks that a level does without, because the load generator was late in them. Pure.

On a machine that others use, the load generator is delayed now and then, and what it measured then is not the server's.
All variants were asked the same prompts in a block, so it is left out for all of them and the comparison stays paired.
Only delays of the generator's own count, never those that a slow server causes: leaving those out would flatter it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from backend.domain.load.records import Audit

MOST_LEFT_OUT = 1 / 3
"""Share of the blocks. If more are late, the generator cannot keep up with this load, and the level is not valid."""


def find_late_blocks(audits: Iterable[Sequence[Audit]]) -> tuple[int, ...]:
    """Return the blocks to leave out of a level, from 0 on; none if too many are late.

    `audits`: those of each variant, one for each block.
    """
    audits_of_variants = [*audits]
    blocks = max((len(own) for own in audits_of_variants), default=0)
    late = {block for own in audits_of_variants for block, audit in enumerate(own) if audit.late}
    return tuple(sorted(late)) if len(late) <= MOST_LEFT_OUT * blocks else ()
