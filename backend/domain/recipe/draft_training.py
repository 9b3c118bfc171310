"""The options of a training: the kind of draft, the loss, the data, the time."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field

from backend.domain.frozen import Frozen

DraftKind = Literal["small", "eagle3", "medusa"]
KINDS: tuple[DraftKind, ...] = get_args(DraftKind)
LossName = Literal["kl", "rkl", "jsd", "tv", "ce", "nla", "lk_hybrid"]
LOSS_NAMES: tuple[LossName, ...] = get_args(LossName)
METHODS: dict[DraftKind, str] = {"small": "draft", "eagle3": "eagle3", "medusa": "medusa"}
"""The `method` of the speculate step that such a draft is for."""
TITLES: dict[DraftKind, str] = {"small": "small model", "eagle3": "EAGLE-3 head", "medusa": "Medusa heads"}
LOSS_TITLES: dict[LossName, str] = {
    "kl": "forward KL",
    "rkl": "reverse KL",
    "jsd": "Jensen-Shannon",
    "tv": "total variation",
    "ce": "cross-entropy",
    "nla": "LK (-ln acceptance)",
    "lk_hybrid": "LK hybrid",
}


class Training(Frozen):
    """`steps` with `answers` is for a run that must come to the same bytes again; else both follow from `minutes`,
    once."""

    kind: DraftKind = "small"
    loss: LossName = "lk_hybrid"
    minutes: float = Field(10.0, gt=0, le=7 * 24 * 60)
    """Minutes from the start of the job to the draft, answers included."""
    tokens: int = Field(4, ge=1, le=16)
    """Proposed a round, for which acceptance is measured."""
    temperature: float = Field(1.0, gt=0, le=2)
    """Temperature of sampled answers; the others are greedy."""
    greedy: float = Field(0.5, ge=0, le=1)
    """The share of answers that are greedy."""
    on_policy: float = Field(0.0, ge=0, le=1)
    """The share of batches whose answers the draft itself says (DistillSpec); only of a small model."""
    answer_tokens: int = Field(160, ge=8, le=4096)
    """The longest answer."""
    answers: int | None = Field(None, ge=2)
    """The most answers that the target generates; None: as many as a third of the time allows."""
    start: Literal["fresh", "pruned"] = "fresh"
    """Start of a small model: with embeddings of its own width, or layers of the target."""
    layers: int | None = Field(None, ge=1, le=64)
    hidden: int | None = Field(None, ge=32, le=16384)
    """Width of a fresh model."""
    steps: int | None = Field(None, ge=1)
    batch: int | None = Field(None, ge=1, le=256)
    """Sequences a step; None: 2 on a processor, where more take as much longer, else 8."""
    learning_rate: float | None = Field(None, gt=0, le=1)
    seed: int = 0
