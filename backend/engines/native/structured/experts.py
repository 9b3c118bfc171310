"""Removes experts of every layer of a mixture, those that add least to its output.

REAP (Lasby et al. 2025, arXiv 2510.13999, equation 9): an expert's score is the mean, over the calibration tokens that
the router sends to it, of its router weight times the norm of its output. Rows of the router go with their experts;
the rest of the model stays as it is. The number of experts is the same in every layer.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from backend.domain.errors import ImpossibleStack, WorkError
from backend.engines.native.files import checkpoint
from backend.engines.native.structured.request import CutResult
from backend.engines.native.structured.run import CutRun
from backend.layered.hidden_states import HiddenStates

if TYPE_CHECKING:
    import torch


class ExpertCut(CutRun):
    """One removal of experts."""

    def run(self) -> CutResult:
        """Rank the experts of layer after layer, and write those that stay under new numbers.

        Raises ImpossibleStack for a model without experts, WorkError where no token reaches any expert of a layer.
        """
        if self.outline.family.experts is None or not self.before.experts:
            raise ImpossibleStack("The model has no experts: use `method: depth` or `method: width`.")
        count, hidden, ranking = self.outline.count, self.hidden_states(), []
        self.write_outside()
        self.progress.phase("structure", "Ranking the experts of each layer", total=count, unit="layers", weight=3.0)
        for number in range(count):
            # 1. Score the experts while the text goes through.
            scores = self._scores(number, hidden)
            hidden.advance()
            staying = sorted(scores.argsort(descending=True, stable=True)[: self.request.structure.experts].tolist())
            # 2. Write those that stay.
            checkpoint.write_part(self.work.part(number + 1), self._tensors(number, staying), flush=False)
            ranking += [
                {
                    "name": f"layer {number}, expert {expert}",
                    "importance": float(score),
                    "removed": expert not in staying,
                }
                for expert, score in enumerate(scores.tolist())
            ]
            self.progress.advance(number + 1)
        return self.finish(range(count), ranking=ranking)

    def _scores(self, number: int, hidden: HiddenStates) -> torch.Tensor:
        """Return each expert's mean router weight times output norm over its tokens [experts]; 0 without any."""
        import torch

        # 1. The experts' module tells which tokens go where; each expert's last matrix gives its output.
        names = self.outline.family.experts
        assert names is not None
        layer = self.outline.fill(number, self.device)
        experts = layer.get_submodule(names.path)
        sums = torch.zeros(len(experts), dtype=torch.float64)
        tokens = torch.zeros(len(experts), dtype=torch.float64)
        routed: dict[str, torch.Tensor] = {}

        def note_routing(_module: Any, args: tuple[torch.Tensor, ...]) -> None:
            _, routed["chosen"], routed["weights"] = args

        def note_output(expert: int) -> Any:
            def observe(_module: Any, _args: Any, output: torch.Tensor) -> None:
                token, place = torch.where(routed["chosen"] == expert)
                gates = routed["weights"][token, place].double()
                sums[expert] += float((gates * output.double().norm(dim=-1)).sum())
                tokens[expert] += len(token)

            return observe

        hooks = [experts.register_forward_pre_hook(note_routing)]
        hooks += [expert[names.down].register_forward_hook(note_output(each)) for each, expert in enumerate(experts)]
        # 2. One pass on one device.
        try:
            self.passes.run_layer(
                number, hidden, None, True, lambda done: self.progress.advance(round(number + done, 2))
            )
        finally:
            for hook in hooks:
                hook.remove()
            self.outline.drop(number)
        if not float(tokens.sum()):
            raise WorkError(f"No token of the calibration text reaches an expert of layer {number}: give another text.")
        unreached = int((tokens == 0).sum())
        if unreached:
            self.progress.warn(f"No token reached {unreached} of {len(experts)} experts of layer {number}.")
        return sums / tokens.clamp(min=1)

    def _tensors(self, number: int, staying: list[int]) -> dict[str, torch.Tensor]:
        """Return the layer's tensors by stored names, with `staying` experts renumbered and the router's rows."""
        import torch

        # 1. Experts by their places among those that stay.
        places = {expert: place for place, expert in enumerate(staying)}
        tensors: dict[str, torch.Tensor] = {}
        routers = {other for group in self.outline.family.groups for other in group.others}
        for name, tensor in self.stored(list(self.outline.stored_names(number))).items():
            numbered = re.search(r"\.experts\.(\d+)\.", name)
            if numbered is None:
                # 2. A row of the router for each.
                module = self.outline.stored_names(number)[name].rpartition(".")[0]
                whole = module in routers and len(tensor) == self.before.experts
                tensors[name] = tensor[torch.tensor(staying)] if whole else tensor
            elif int(numbered[1]) in places:
                start, stop = numbered.span(1)
                tensors[f"{name[:start]}{places[int(numbered[1])]}{name[stop:]}"] = tensor
        return tensors
