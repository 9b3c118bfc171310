"""Makes every layer narrower: neurons of the MLP, attention heads by whole groups, channels of the hidden state.

Width pruning as Minitron does it (Muralidharan et al. 2024, arXiv 2407.14679, section 2.2): importance from the
activations of a small calibration text alone, one width for all layers. Neurons and heads are ranked by what the
output loses without them, and the matrix that reads them is fitted to make up for them (`fitting`), layer after
layer, each reading what the narrower layers before it compute. With `gradients` tokens count there by the squared
gradient of the loss at that output, so that it estimates the loss itself (LLM-Pruner, Ma et al. 2023, arXiv 2305.11627,
takes weight x gradient; here it is the Fisher information of `loss_weights`). Channels of the hidden state are ranked
by the mean |x| that the norms give, over all layers; each norm is then scaled, since it divides by fewer channels.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from backend.domain.errors import WorkError
from backend.engines.native.files import checkpoint
from backend.engines.native.input_statistics import Collected, Tally
from backend.engines.native.layer_work import Unit
from backend.engines.native.loss_weights import LossWeights, Weights
from backend.engines.native.structured import fitting
from backend.engines.native.structured.fitting import Fitted
from backend.engines.native.structured.request import CutResult
from backend.engines.native.structured.run import CutRun
from backend.layered.hidden_states import HiddenStates

if TYPE_CHECKING:
    import torch

OUTPUT, DOWN = "self_attn.o_proj", "mlp.down_proj"
"""The matrices that read heads and neurons."""
QUERY, KEY, VALUE = "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"
GATE, UP = "mlp.gate_proj", "mlp.up_proj"
NORMS = {QUERY: "input_layernorm", GATE: "post_attention_layernorm"}
"""The norm that a matrix reads."""
ROWS = 4096
"""Tokens whose energy is summed at a time."""


class Channels(NamedTuple):
    """Figures of the channels of the hidden state, [hidden] each, in double precision."""

    magnitude: torch.Tensor
    """Sum over the layers of the mean |x| that their norms give."""
    energy: list[torch.Tensor]
    """Mean share of a token's squared hidden state, where each layer begins and behind the last one."""


class WidthCut(CutRun):
    """One narrowing of all layers."""

    def run(self) -> CutResult:
        """Narrow layer after layer, then the hidden state; write the result."""
        import torch

        # 1. Layer after layer: heads and neurons go, and the next layer reads what is left.
        count, hidden = self.outline.count, self.hidden_states()
        self.size = getattr(self.text, "head_dim", None) or self.before.hidden // self.before.heads
        self.channels = Channels(torch.zeros(self.before.hidden, dtype=torch.float64), [])
        self.weights = self._weigh(hidden) if self.request.importance == "gradients" else None
        self.progress.phase("structure", "Narrowing layer after layer", total=count, unit="layers", weight=3.0)
        self.write_outside()
        reports: list[dict[str, Any]] = []
        for number in range(count):
            reports += self._layer(number, hidden)
            hidden.advance()
            self.progress.advance(number + 1)
        self.channels.energy.append(_energy(hidden.entering))
        # 2. Channels of the hidden state, in every part.
        if self.request.structure.hidden < self.before.hidden:
            self._narrow_hidden_state()
        return self.finish(range(count), layers=reports)

    def _layer(self, number: int, hidden: HiddenStates) -> list[dict[str, Any]]:
        """Narrow one layer, write its part, and let the calibration text through it; return its reports."""
        # 1. What the last matrices of attention and MLP read [tokens, in], and what the norms give.
        layer, reports = self.outline.fill(number, self.device), []
        after, groups = self.request.structure, self.before.heads // self.before.kv_heads
        stats = {
            path: tally.stats(self.outline.stored_name(number, path))
            for path, tally in self.passes.run_layer(
                number, hidden, partial(self._taps, number), False, self._tick(number, 0.0)
            ).items()
        }
        if self._cuts_hidden:
            self.channels.energy.append(_energy(hidden.entering))
            for path in NORMS:
                self.channels.magnitude.add_(stats[path].mean_abs.double().cpu())
        # 2. Heads by whole groups, then neurons.
        fitted: dict[str, Fitted] = {}
        for path, size, left, whole in (
            (OUTPUT, groups * self.size, after.kv_heads, self.before.kv_heads),
            (DOWN, 1, after.intermediate, self.before.intermediate),
        ):
            if left == whole:
                continue
            weight, gram = layer.get_submodule(path).weight.data, stats[path].matrix()
            fitted[path] = fitting.remove_blocks(weight, gram, size, left)
            error = fitting.relative_error(weight, gram, fitted[path])
            if not bool(fitted[path].weight.isfinite().all()):
                raise WorkError(f"{path} of layer {number} is not finite after fitting: use another calibration text.")
            reports.append(
                {
                    "name": self.outline.stored_name(number, path),
                    "relative_error": error,
                    "removed": weight.shape[1] - len(fitted[path].columns),
                }
            )
            # The layer computes with zeros where columns went: the same as without them.
            weight.zero_()
            weight[:, fitted[path].columns] = fitted[path].weight
        # 3. Write the narrower tensors, and send the text through.
        checkpoint.write_part(self.work.part(number + 1), self._tensors(number, fitted), flush=False)
        self.passes.run_layer(number, hidden, None, True, self._tick(number, 0.5))
        self.outline.drop(number)
        return reports

    @property
    def _cuts_hidden(self) -> bool:
        return self.request.structure.hidden < self.before.hidden

    def _weigh(self, hidden: HiddenStates) -> list[Weights]:
        """Return how much each token counts, by what heads and neurons are read by, of every layer."""
        self.progress.phase("weigh", "Weighing the tokens of the calibration text by the loss", total=100, unit="%")
        unit = Unit(((OUTPUT,), (DOWN,)), None, None, (), OUTPUT)
        measured = LossWeights(self.passes, [unit], self.request.seed, self.request.spill_bytes)
        return measured.measure(hidden, self.work, lambda share: self.progress.advance(round(100 * share, 1)))

    def _taps(self, number: int, device: str) -> dict[str, Tally]:
        """Make a tally of each matrix that is fitted, and of what the norms give where channels are ranked."""
        layer, after, taps = self.outline.layers[0], self.request.structure, {}
        total = self.tokens.numel()
        for path, cut in ((OUTPUT, after.kv_heads < self.before.kv_heads), (DOWN, True)):
            if cut:
                features = layer.get_submodule(path).in_features
                weights = self.weights[number][path] if self.weights else None
                taps[path] = Tally(features, total, Collected(gram=True, magnitudes=False), device, weights)
        if self._cuts_hidden:
            magnitudes = Collected(gram=False, magnitudes=True)
            taps |= {path: Tally(self.before.hidden, total, magnitudes, device) for path in NORMS}
        return taps

    def _tick(self, number: int, before: float) -> Any:
        """Return a function that reports the progress inside layer `number`, of which `before` is done."""
        return lambda done: self.progress.advance(round(number + before + done / 2, 2))

    def _tensors(self, number: int, fitted: dict[str, Fitted]) -> dict[str, torch.Tensor]:
        """Return the tensors of the layer by their stored names: rows of what feeds a fitted matrix, and itself."""
        tensors, rows = self.stored(list(self.outline.stored_names(number))), self._rows(fitted)
        names = {name: path.rpartition(".") for name, path in self.outline.stored_names(number).items()}
        for name, (module, _, kind) in names.items():
            if module in rows:
                tensors[name] = tensors[name][rows[module]]
            elif module in fitted and kind == "weight":
                tensors[name] = fitted[module].weight.to(self.dtype).cpu()
        return tensors

    def _rows(self, fitted: dict[str, Fitted]) -> dict[str, torch.Tensor]:
        """Return the rows that stay of each matrix that feeds a fitted one."""
        import torch

        rows: dict[str, torch.Tensor] = {}
        if DOWN in fitted:
            rows |= dict.fromkeys((GATE, UP), fitted[DOWN].columns.cpu())
        if OUTPUT in fitted:
            queries = fitted[OUTPUT].columns.cpu()
            width = self.before.heads // self.before.kv_heads * self.size
            heads = torch.unique(queries // width)
            keys = fitting.columns_of(heads, self.size)
            rows |= {QUERY: queries, KEY: keys, VALUE: keys}
        return rows

    def _narrow_hidden_state(self) -> None:
        """Keep the channels of the largest importance in every part, and scale the norms."""
        from safetensors.torch import load_file

        # 1. The channels that stay [left], and for each layer what its norms must be multiplied by.
        left, whole = self.request.structure.hidden, self.before.hidden
        channels = self.channels.magnitude.argsort(descending=True, stable=True)[:left].sort().values
        scales = [float(energy[channels].sum() * whole / left) ** 0.5 for energy in self.channels.energy]
        # 2. Every part again, with these channels alone.
        last = {f"{self.outline.family.norm}.weight", f"{self.outline.family.norm}.weight".partition(".")[2]}
        for place in range(self.outline.count + 1):
            path, number = self.work.part(place), place - 1
            local = {} if place == 0 else self.outline.stored_names(number)
            tensors = {}
            for name, tensor in load_file(path).items():
                module = local.get(name, name).rpartition(".")[0]
                scale = scales[-1] if name in last else None
                if module in NORMS.values():
                    following = scales[number : number + 2]
                    scale = scales[number] if module == NORMS[QUERY] else sum(following) / len(following)
                tensors[name] = _narrowed(tensor, module, channels, whole, scale)
            checkpoint.write_part(path, tensors, flush=False)


def _narrowed(
    tensor: torch.Tensor, module: str, channels: torch.Tensor, whole: int, scale: float | None
) -> torch.Tensor:
    """Return a tensor with `channels` of the hidden state alone: rows of what writes it, columns of what reads it, and
    a norm multiplied by `scale`."""
    if scale is not None:
        return (tensor[channels].float() * scale).to(tensor.dtype)
    if module in {OUTPUT, DOWN}:
        return tensor[channels]
    if tensor.ndim == 2 and tensor.shape[1] == whole:
        return tensor[:, channels].contiguous()
    return tensor


def _energy(states: torch.Tensor) -> torch.Tensor:
    """Return each channel's mean share of a token's squared hidden state [hidden], of `states` [sequences, length,
    hidden]."""
    import torch

    rows = states.view(-1, states.shape[2])
    total = torch.zeros(states.shape[2], dtype=torch.float64)
    for start in range(0, len(rows), ROWS):
        squares = rows[start : start + ROWS].double().square()
        total += (squares / squares.sum(1, keepdim=True).clamp(min=1e-30)).sum(0)
    return total / max(1, len(rows))
