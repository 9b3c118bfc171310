"""Removes whole decoder layers, those of least importance.

By similarity: Block Influence of ShortGPT (Men et al. 2024, arXiv 2403.03853, section 3.2): one minus the cosine of
what enters and what leaves a layer, averaged over the calibration tokens; all layers go at once. By the loss: KL
divergence of the model without the layer from the whole one, on windows of the calibration text; layers go one by one,
and the others are measured anew after each (SLEB, Song et al. 2024, arXiv 2402.09025, ranks so by perplexity).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from backend.domain.errors import WorkError
from backend.domain.needs.job_duration import LOSS_WINDOWS
from backend.engines.native.files import checkpoint
from backend.engines.native.structured.request import CutResult
from backend.engines.native.structured.run import CutRun
from backend.layered.hidden_states import HiddenStates

if TYPE_CHECKING:
    import torch

ROWS = 4096
"""Tokens that are compared at a time."""
SHORTLIST = 2
"""Layers that are measured anew after each, in layers that still go: those that lost least before."""


class DepthCut(CutRun):
    """One removal of layers."""

    def run(self) -> CutResult:
        """Rank the layers, and write the others under new numbers."""
        # 1. Rank the layers.
        count, left = self.outline.count, self.request.structure.layers
        if self.request.importance == "loss":
            removed, importance = self._by_loss(count - left)
        else:
            importance = self._by_similarity()
            removed = sorted(range(count), key=importance.__getitem__)[: count - left]
        staying = [number for number in range(count) if number not in removed]
        # 2. Write what stays.
        self.write_outside()
        for place, number in enumerate(staying):
            checkpoint.write_part(self.work.part(place + 1), self._renumbered(number, place), flush=False)
        ranking = [
            {"name": f"layer {number}", "importance": importance[number], "removed": number in removed}
            for number in range(count)
        ]
        return self.finish(staying, removed=sorted(removed), ranking=ranking)

    def _renumbered(self, number: int, place: int) -> dict[str, torch.Tensor]:
        """Return the tensors of a layer under the names that they have at another place."""
        before, after = f"{self.outline.root}{number}.", f"{self.outline.root}{place}."
        tensors = self.stored(list(self.outline.stored_names(number)))
        return {after + name.removeprefix(before): tensor for name, tensor in tensors.items()}

    def _by_similarity(self) -> list[float]:
        """Return one minus the mean cosine of what enters and leaves each layer.

        Raises WorkError for values that are not finite.
        """
        # 1. One pass of the calibration text through all layers.
        count, hidden, importance = self.outline.count, self.hidden_states(), []
        self.progress.phase("structure", "Ranking the layers by what they change", total=count, unit="layers")
        for number in range(count):
            self.outline.fill(number, self.device)
            self.passes.run_layer(number, hidden, None, True, lambda _done: None)
            self.outline.drop(number)
            # 2. Compare what enters and what leaves, token by token.
            similarity = _mean_cosine(hidden)
            if similarity != similarity:
                raise WorkError(f"Layer {number} gives values that are not finite: check the model's weights.")
            importance.append(1 - similarity)
            hidden.advance()
            self.progress.advance(number + 1)
        return importance

    def _by_loss(self, going: int) -> tuple[list[int], list[float]]:
        """Return the layers that go, and what the model loses without each: measured last for those that stay, and
        when it went for those that go."""
        # 1. The windows, and the whole model's states after the last layer.
        self.tokens = self.passes.tokens = self.tokens[:LOSS_WINDOWS]
        total = float(sum(range(going + 1)) * SHORTLIST + self.outline.count)
        self.progress.phase("structure", "Ranking the layers by the loss without each", total=total, unit="layers")
        remaining, candidates = list(range(self.outline.count)), list(range(self.outline.count))
        reference: torch.Tensor | None = None
        removed: list[int] = []
        losses, done = [0.0] * self.outline.count, 0.0
        # 2. Layer after layer goes: the one without which the model loses least.
        while len(removed) < going:
            hidden = self._without_each(remaining, candidates)
            if reference is None:
                reference = hidden.entering[: len(self.tokens)].clone()
            measured = self._losses(reference, hidden, len(candidates))
            for number, loss in zip(candidates, measured, strict=True):
                losses[number] = loss
            done += len(candidates)
            self.progress.advance(min(total, done))
            least = min(candidates, key=lambda number: losses[number])
            removed.append(least)
            remaining.remove(least)
            ranked = sorted((number for number in candidates if number != least), key=lambda number: losses[number])
            candidates = sorted(ranked[: max(SHORTLIST * (going - len(removed)), SHORTLIST)])
        return removed, losses

    def _without_each(self, remaining: Sequence[int], candidates: Sequence[int]) -> HiddenStates:
        """Return what leaves the last layer [(1 + candidates) x windows, length, hidden]: of the remaining layers, then
        without each candidate."""
        # 1. Room for the model and a copy for each candidate.
        windows = len(self.tokens)
        shape = ((1 + len(candidates)) * windows, self.tokens.shape[1], self.text.hidden_size)
        hidden = HiddenStates(shape, self.work.folder, 0, self.request.spill_bytes)
        self.passes.embed(hidden)
        # 2. Each layer takes the model and the copies begun before; a candidate begins the copy that leaves it out.
        begun = 0
        for number in remaining:
            layer = self.outline.fill(number, self.device)
            stop = (1 + begun) * windows
            for start in range(0, stop, self.passes.batch):
                part = slice(start, min(start + self.passes.batch, stop))
                leaving = self.passes.run_batch(number, layer, hidden.entering[part].to(self.device))
                hidden.leaving[part].copy_(leaving)
            if number in candidates:
                hidden.leaving[stop : stop + windows].copy_(hidden.entering[:windows])
                begun += 1
            self.outline.drop(number)
            hidden.advance()
        return hidden

    def _losses(self, reference: torch.Tensor, hidden: HiddenStates, count: int) -> list[float]:
        """Return KL(whole model || copy) of each copy, in nats per token.

        Raises WorkError for values that are not finite.
        """
        import torch

        windows, totals = len(self.tokens), torch.zeros(count, dtype=torch.float64)
        with self.outline.head(self.device) as logits:
            for window in range(windows):
                expected = logits(reference[window]).float().log_softmax(-1)
                for place in range(count):
                    computed = logits(hidden.entering[(1 + place) * windows + window]).float().log_softmax(-1)
                    totals[place] += float((expected.exp() * (expected - computed)).sum())
        if not bool(totals.isfinite().all()):
            raise WorkError("The model's output is not finite without one of its layers: use `importance: similarity`.")
        return [max(0.0, float(total)) for total in totals / self.tokens.numel()]


def _mean_cosine(hidden: HiddenStates) -> float:
    """Return the mean cosine of what entered a layer and what left it, over all tokens."""
    import torch

    width, total = hidden.shape[2], 0.0
    entering, leaving = hidden.entering.view(-1, width), hidden.leaving.view(-1, width)
    for start in range(0, len(entering), ROWS):
        part = slice(start, start + ROWS)
        total += float(torch.nn.functional.cosine_similarity(entering[part], leaving[part], dim=-1).double().sum())
    return total / max(1, len(entering))
