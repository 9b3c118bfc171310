"""Write the bundled texts: calibration from the training side, quality text and prompts from the held-out side.

    python assets/starter/training/extract_texts.py

The prompts come from other held-out files than the quality text. Every prompt is the beginning of a top-level
definition or class with what stands before it, 250 to 700 characters.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

from corpus import texts

ASSETS = Path(__file__).resolve().parents[2]
CALIBRATION_CHARACTERS = 300_000
HELD_OUT_CHARACTERS = 250_000
OWN_CHARACTERS = 40
PROMPTS, MORE_PROMPTS = 160, 864
"""The second are sampled from other windows of the same files, to be asked where a load takes more lines than the first
have."""


def sample(documents: list[str], characters: int, seed: int, longest: int) -> str:
    """Whole-line excerpts of at most `longest` characters from shuffled documents until there is enough."""
    order = random.Random(seed).sample(documents, len(documents))
    excerpts, total = [], 0
    for document in order:
        excerpt = document[:longest].rsplit("\n", 1)[0] + "\n"
        excerpts.append(excerpt)
        total += len(excerpt)
        if total >= characters:
            break
    return "\n\n".join(excerpts)


def prompts(documents: list[str], count: int, seed: int) -> list[str]:
    chooser = random.Random(seed)
    found = []
    for document in documents:
        for match in re.finditer(r"^(?:    )?(?:def|class) .*:\n", document, flags=re.MULTILINE):
            begin = document.rfind("\n", 0, max(0, match.end() - chooser.randint(250, 700))) + 1
            if match.end() - begin >= 200:
                found.append(document[begin : match.end()])
    return chooser.sample(found, count)


def more(documents: list[str], first: list[str], count: int) -> list[str]:
    """So many more, none of which begins as another does: each is a window of its own."""
    begun = {prompt[:OWN_CHARACTERS] for prompt in first}
    found: list[str] = []
    for seed in range(3, 1000):
        for prompt in prompts(documents, len(first), seed):
            if prompt[:OWN_CHARACTERS] not in begun and len(found) < count:
                begun.add(prompt[:OWN_CHARACTERS])
                found.append(prompt)
        if len(found) == count:
            break
    return found


def main() -> None:
    # Character codecs are near copies of each other on both sides of the split: they would flatter every figure.
    held_out = sorted((text for text in texts(held_out=True) if "class IncrementalEncoder(codecs" not in text), key=len)
    quality, asked = held_out[0::2], held_out[1::2]
    (ASSETS / "text" / "calibration.txt").write_text(sample(texts(held_out=False), CALIBRATION_CHARACTERS, 0, 6000))
    (ASSETS / "text" / "held_out.txt").write_text(sample(quality, HELD_OUT_CHARACTERS, 1, 24000))
    first = prompts(asked, PROMPTS, 2)
    lines = [json.dumps({"prompt": prompt}) for prompt in [*first, *more(asked, first, MORE_PROMPTS)]]
    (ASSETS / "workloads" / "starter-code.jsonl").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
