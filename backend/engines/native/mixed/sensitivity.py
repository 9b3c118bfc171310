"""Measures what each group of linears alone costs at each precision: the KL divergence with only that group rounded.

One pass over the layers. At each layer every group is rounded by every candidate's own algorithms, windows of the
calibration run through it, and what leaves is carried on beside the original through the layers behind, which are as
they were. So each loss is measured to the end of the model, the rounding of inputs included; it costs a forward pass
for each group and candidate from its layer on, and no gradient. Every allocation assumes that losses of groups add up;
docs/decisions/0013 says how far that held.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from backend.domain.jobs.progress import Progress
from backend.domain.needs.job_duration import probe_windows
from backend.domain.needs.job_memory import MEASURED_ROWS
from backend.domain.recipe.precision import SIXTEEN, MeasuredGroup, Precision
from backend.engines.attempt_state import AttemptState
from backend.engines.base import QuantizeRequest
from backend.engines.native import calibration
from backend.engines.native.files import checkpoint
from backend.engines.native.files.checkpoint import storage_dtype
from backend.engines.native.files.resume import WorkFolder, request_key, versions
from backend.engines.native.group import Linear, Stats, Stored
from backend.engines.native.input_statistics import Collected, Tally, Taps
from backend.engines.native.layer_work import LayerPlan, LayerWork, plan_units
from backend.engines.native.methods import pipelines
from backend.layered.dequantize import open_plain
from backend.layered.hidden_states import HiddenStates
from backend.layered.layer_passes import LayerPasses, memory_errors, out_of_memory
from backend.layered.outline import Outline
from backend.layered.rounded_inputs import round_input
from backend.layered.weight_source import weight_files

if TYPE_CHECKING:
    import torch


class SensitivityState(AttemptState):
    groups: list[MeasuredGroup]


class Slot(NamedTuple):
    """A copy of the windows that is carried on: the layer, group and candidate that it differs by."""

    number: int
    group: str
    precision: Precision


def measure(request: QuantizeRequest, candidates: Sequence[Precision], progress: Progress) -> list[MeasuredGroup]:
    """Return the groups of the model of `request`, in order, with what each loses at each candidate.

    Phases: load, sensitivity (unit: layer). The result is stored beside `request.work_dir` and read from there when the
    same is asked again; a stopped run goes on at the next layer. Works on the first device. Raises what `quantize`
    raises.
    """
    # 1. Read what an earlier attempt measured.
    progress.phase("load", "Reading the model's outline", weight=0.1)
    probe = _Probe(request, candidates, progress)
    resumable = request.work_dir is not None
    folder = request.work_dir or request.out_dir.with_name(request.out_dir.name + ".probe")
    done = folder.with_name(folder.name + ".json")
    earlier = SensitivityState.read(done, probe.key)
    if earlier is not None:
        progress.note("What the groups cost was measured before.")
        return earlier.groups

    # 2. Else measure, and store the result for the next attempt.
    with WorkFolder(folder, resumable) as work, memory_errors():
        groups = probe.run(work)
    if resumable:
        checkpoint.write_json(done, SensitivityState(key=probe.key, groups=groups).model_dump())
    return groups


class _Probe:
    """One measurement. `slots` are the copies in the order in which they come up; the original is before them."""

    def __init__(self, request: QuantizeRequest, candidates: Sequence[Precision], progress: Progress) -> None:
        # 1. The model, its groups of linears, and the candidates that change anything.
        self.request, self.progress = request, progress
        source = open_plain(request.model_dir)
        self.dtype, self.outline, self.device = storage_dtype(source), Outline(source), request.devices[0]
        own = pipelines.build(request, self.dtype)
        self.units, _ = plan_units(self.outline, own, request.group_size)
        self.gram = own.gram or not own.reads_text  # text is read here in any case, and losses are those of outputs
        self.candidates = [
            candidate for candidate in candidates if candidate.method is not None or request.pruning is not None
        ]
        self.linears: dict[str, list[str]] = {}
        """Linears by group."""
        for unit in self.units:
            self.linears.setdefault(unit.group, []).extend(unit.linears)

        # 2. A copy for each layer, candidate and group.
        self.slots: list[Slot] = []
        for number in range(self.outline.count):
            for candidate in self.candidates:
                self.slots += [Slot(number, group, candidate) for group in self.linears]

        # 3. The windows of the calibration text, as many as the copies allow.
        windows = probe_windows(len(self.slots))
        texts, length, seed = request.calibration_texts, request.length, request.seed
        self.tokens = calibration.sample_tokens(request.model_dir, texts, windows, length, seed)
        self.passes = LayerPasses(self.outline, self.tokens, [self.device], progress.warn)

    @property
    def key(self) -> str:
        options = self.request.model_dump(exclude={"out_dir", "work_dir", "precisions", "devices"})
        candidates = [candidate.model_dump() for candidate in self.candidates]
        described = {**options, "candidates": candidates, "versions": versions()}
        return request_key({**described, **calibration.describe(self.tokens)}, weight_files(self.request.model_dir))

    def run(self, work: WorkFolder) -> list[MeasuredGroup]:
        # 1. Room for the original and a copy for each slot: [(1 + slots) x windows, length, features].
        count, windows = self.outline.count, len(self.tokens)
        self.progress.phase(
            "sensitivity", "Measuring what each group of linears costs", total=count, unit="layers", weight=2.0
        )
        shape = (
            (1 + len(self.slots)) * windows,
            *self.tokens.shape[1:],
            self.outline.config.get_text_config().hidden_size,
        )
        state, hidden = work.begin(self.key, shape, self.request.spill_bytes, parts=False)
        if not state.done:
            self.passes.embed(hidden)
        # 2. Take all of them through layer after layer; each layer starts its own copies.
        for number in range(state.done, count):
            self._layer(number, hidden)
            hidden.advance()
            state.done = number + 1
            if work.resumable and state.done < count:
                state.checksum = hidden.save()
                work.save(state)
            self.progress.advance(state.done)
        # 3. Compare what leaves the last layer with the original's.
        losses = dict(zip(self.slots, self._losses(hidden), strict=True))
        return [self._measured(number, group, losses) for number in range(count) for group in self.linears]

    def _layer(self, number: int, hidden: HiddenStates) -> None:
        """Take the copies of earlier layers through the layer as it is, and start one for each group and candidate."""
        # 1. The original, whose inputs give the statistics, and the copies of earlier layers.
        windows = len(self.tokens)
        layer = self.outline.fill(number, self.device)
        before = next((place for place, slot in enumerate(self.slots) if slot.number == number), len(self.slots))
        stats = self._originals(number, layer, hidden)
        self._through(number, layer, hidden, slice(windows, (1 + before) * windows))
        # 2. For each candidate: round every group, and send the original through with only that group rounded.
        for candidate in self.candidates:
            pipeline = pipelines.pipeline_at(self.request, candidate, self.dtype)
            work = LayerWork(number, LayerPlan(self.outline, self.units, pipeline, self.dtype), stats)
            work.run()
            for group in self.linears:
                place = 1 + self.slots.index(Slot(number, group, candidate))
                with self._rounded(layer, work, group):
                    self._through(number, layer, hidden, slice(0, windows), place * windows)
        self.outline.drop(number)

    def _originals(self, number: int, layer: Any, hidden: HiddenStates) -> dict[str, Stats]:
        """Return what the groups read of the original, which goes through the layer here."""

        def taps(device: str) -> Taps:
            tallies = {}
            for unit in self.units:
                for names in unit.inputs:
                    coming = self.tokens.numel() if unit.group == names[0] else 0
                    features = layer.get_submodule(names[0]).in_features
                    tallies[names[0]] = Tally(features, coming, Collected(self.gram), device)
            return tallies

        collected = self.passes.run_layer(number, hidden, taps, True, lambda _done: None)
        return {path: tally.stats(self.outline.stored_name(number, path)) for path, tally in collected.items()}

    def _through(self, number: int, layer: Any, hidden: HiddenStates, which: slice, to: int | None = None) -> None:
        """Run the sequences of `which` through the layer; they leave to position `to`, or to their own."""
        start = which.start
        while start < which.stop:
            stop = min(start + self.passes.batch, which.stop)
            try:
                leaving = self.passes.run_batch(number, layer, hidden.entering[start:stop].to(self.device))
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
                self.passes.halve()
                continue
            place = start if to is None else start - which.start + to
            hidden.leaving[place : place + stop - start].copy_(leaving)
            start = stop

    @contextmanager
    def _rounded(self, layer: Any, work: LayerWork, group: str) -> Iterator[None]:
        """Let the layer compute with the rounded linears of `group`, while the context lasts."""
        # 1. Put the rounded weights in place, and round what they read.
        modules = {name: layer.get_submodule(name) for name in self.linears[group]}
        originals = {name: module.weight.data for name, module in modules.items()}
        hooks = []
        for name, module in modules.items():
            module.weight.data = work.stored[name].effective
            rounding = work.pipeline.rounding
            if rounding is not None and rounding.scheme.input_activations is not None:
                hooks.append(
                    module.register_forward_pre_hook(_inputs(work.linears[name], work.stored[name], rounding.scheme))
                )

        # 2. Run, and put the originals back.
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()
            for name, module in modules.items():
                module.weight.data = originals[name]

    def _losses(self, hidden: HiddenStates) -> list[float]:
        """Compute KL(original || copy) of each slot over the full vocabulary, in nats per token."""
        import torch

        windows = len(self.tokens)
        totals = torch.zeros(len(self.slots), dtype=torch.float64)
        with self.outline.head(self.device) as logits:
            for window in range(windows):
                reference = logits(hidden.entering[window])
                for place in range(len(self.slots)):
                    row = (1 + place) * windows + window
                    totals[place] += _kl(reference, logits(hidden.entering[row]))
        return [max(0.0, float(total)) for total in totals / self.tokens.numel()]

    def _measured(self, number: int, group: str, losses: dict[Slot, float]) -> MeasuredGroup:
        """Return one group of one layer with its losses by precision; 16 bits lose nothing."""
        layer, name_of, linears = self.outline.layers[number], self.outline.stored_name, self.linears[group]
        by_precision = {candidate.name: losses[Slot(number, group, candidate)] for candidate in self.candidates}
        return MeasuredGroup(
            name=name_of(number, group),
            linears=[name_of(number, name) for name in linears],
            shapes=[tuple(layer.get_submodule(name).weight.shape) for name in linears],
            losses={SIXTEEN.name: 0.0} | by_precision,
        )


def _inputs(linear: Linear, stored: Stored, scheme: Any) -> Any:
    """Make a hook that rounds what a linear reads as its stored form will, by its static scale or one a token."""
    args, static = scheme.input_activations, stored.tensors.get("input_scale")
    whole = stored.tensors.get("input_global_scale")

    def hook(module: Any, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        rounded = round_input(inputs[0] / linear.columns, args, None if static is None else static.float(), whole)
        return rounded * linear.columns, *inputs[1:]

    return hook


def _kl(reference: torch.Tensor, logits: torch.Tensor) -> float:
    """Sum KL(reference || logits) over positions, in nats; both [length, vocabulary]."""
    total = 0.0
    for start in range(0, len(reference), MEASURED_ROWS):
        part = slice(start, start + MEASURED_ROWS)
        log_p, log_q = reference[part].double().log_softmax(-1), logits[part].double().log_softmax(-1)
        total += float((log_p.exp() * (log_p - log_q)).sum())
    return total
