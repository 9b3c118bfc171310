"""Compares the imported folder, as transformers computes it, with the GGUF file's own forward pass, layer by layer.

Every layer is given the same input on both sides, so that rounding does not add up and a difference names its layer.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.domain.errors import InvalidModel
from backend.engines.gguf.reference_forward import Reference
from backend.layered.outline import Call, Outline
from backend.layered.weight_source import WeightSource

if TYPE_CHECKING:
    import numpy as np

TOKENS = 12
FAR = 2048
"""The largest position: beyond it 32-bit floats hold the angle of fast rotations no better than the tolerance."""
TOLERANCE = 1e-3
"""Largest difference relative to what a layer adds to a token, root mean square. Rounding in 32 bits stays below 1e-4
(decision 0044)."""


def check(reference: Reference, folder: Path) -> float:
    """Return the largest relative difference over all layers and the logits. Raises InvalidModel above TOLERANCE."""
    import torch

    # 1. Embed a few tokens on both sides.
    outline = Outline(WeightSource(folder))
    vocabulary = int(outline.config.vocab_size)
    tokens = [(7919 * number + 3) % vocabulary for number in range(TOKENS)]
    positions = places(int(outline.config.max_position_embeddings), TOKENS)
    entering = reference.embed(tokens)
    embedded, calls = _embedded(outline, tokens, positions)
    worst = _compare("the embedding", embedded, entering)

    # 2. Give each layer the reference's input on both sides, and compare what each adds to it.
    for number in range(outline.count):
        layer = outline.fill(number, "cpu")
        with torch.no_grad():
            left = layer(torch.from_numpy(entering)[None], *calls[number].args, **calls[number].kwargs)
        outline.drop(number)
        leaving = reference.layer(number, entering, positions)
        own = (left[0] if isinstance(left, tuple) else left).reshape(leaving.shape).numpy()
        worst = max(worst, _compare(f"layer {number}", own - entering, leaving - entering))
        entering = leaving

    # 3. Compare the logits.
    with outline.head("cpu") as logits:
        own = logits(torch.from_numpy(entering)).numpy()
    return max(worst, _compare("the output", own, reference.logits(entering)))


def places(context: int, count: int) -> list[int]:
    """Choose positions in order: one half side by side, the rest ever farther apart, up to FAR or the model's last."""
    last = min(context, FAR) - 1
    if last < count:
        return list(range(count))
    near = count // 2
    far = [round(near * (last / near) ** (step / (count - near))) for step in range(1, count - near + 1)]
    spread = list(range(near))
    for position in far:
        spread.append(max(spread[-1] + 1, position))
    return spread


def _embedded(outline: Outline, tokens: list[int], positions: list[int]) -> tuple[np.ndarray[Any, Any], list[Call]]:
    """Return what transformers lets into the first layer [tokens, hidden], and calls each with, rotated for these
    positions."""
    import torch

    for entering, calls in outline.embed([torch.tensor([tokens])], "cpu"):
        rotary = outline.model.base_model.rotary_emb(entering, torch.tensor([positions]))
        return entering[0].numpy(), [Call(call.args, call.kwargs | {"position_embeddings": rotary}) for call in calls]
    raise AssertionError


def _compare(where: str, own: np.ndarray[Any, Any], expected: np.ndarray[Any, Any]) -> float:
    """Return the largest relative difference of a token. Raises InvalidModel where it is more than rounding."""
    import numpy as np

    size = np.sqrt((expected**2).mean(-1))
    # A token to which a layer adds next to nothing is measured against what it adds to others.
    size = np.maximum(size, 1e-2 * size.max()) + 1e-12
    apart = float((np.sqrt(((own - expected) ** 2).mean(-1)) / size).max())
    if not apart <= TOLERANCE:
        raise InvalidModel(
            f"what was imported does not compute what the file says: {where} differs by {apart:.1%} from the file's "
            "own tensors. Import the original model"
        )
    return apart
