"""The native optimization engine: one decoder layer at a time is read, calibrated, optimized, written and freed. fp32
arithmetic.

Deterministic: the same request gives the same bytes, also when it was stopped and went on. Knows nothing of jobs,
recipes or serving.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from backend.domain.errors import ImpossibleStack
from backend.domain.jobs.progress import Progress
from backend.engines.base import QuantizeRequest, QuantizeResult
from backend.engines.native import calibration
from backend.engines.native.files import checkpoint
from backend.engines.native.files.checkpoint import storage_dtype
from backend.engines.native.files.resume import LayerState, WorkFolder, request_key, versions
from backend.engines.native.input_statistics import Collected, Tally, Taps
from backend.engines.native.layer_work import LayerPlan, LayerWork, plan_units
from backend.engines.native.loss_weights import LEAVING, LossWeights, Weights
from backend.engines.native.methods import pipelines
from backend.engines.native.mixed.precision_mix import PrecisionMix
from backend.engines.native.rotated import checkpoint as rotated
from backend.layered.dequantize import open_plain
from backend.layered.freed_memory import keep_freed_memory
from backend.layered.hidden_states import HiddenStates
from backend.layered.layer_passes import LayerPasses, memory_errors
from backend.layered.matrix_products import fast_products
from backend.layered.outline import Outline
from backend.layered.weight_source import weight_files

if TYPE_CHECKING:
    import torch


def quantize(request: QuantizeRequest, progress: Progress) -> QuantizeResult:
    """Optimize the model of `request` into `out_dir`. Phases: load, optimize (unit: decoder layer), write; before
    them rotate, where that is asked for.

    Before anything is written raises ImpossibleStack (unknown family, a quantization without a reader, group size that
    divides no input), ModelDamaged (a shard or a tensor is missing, or nothing would read one), InvalidModel (stored
    otherwise than announced), InvalidWorkload (text too short), RequestError (`out_dir` not empty); later WorkError
    (weights or activations that are not finite, the tensor named; memory ran out) and DiskFull.
    """
    if request.tuning.get("rotate"):
        return rotated.quantize_rotated(request, progress, quantize)
    progress.phase("load", "Reading the model's outline", weight=0.1)
    with fast_products(), keep_freed_memory():
        # 1. Read headers, plan every layer, draw the calibration text: all that is wrong is raised before a write.
        run = _Run(request, progress)
        checkpoint.make_empty_folder(request.out_dir)
        # 2. Work layer by layer in a folder that a later attempt can continue from.
        folder = request.work_dir or request.out_dir.with_name(request.out_dir.name + ".work")
        with WorkFolder(folder, resumable=request.work_dir is not None) as work, memory_errors():
            return run.run(work)


class LayerBlock:
    """A filled layer, what enters it behind the stored layers before and what left it as the original: `group.Block`
    over the hidden states."""

    def __init__(
        self, passes: LayerPasses, number: int, hidden: HiddenStates, stored: HiddenStates, weights: Weights
    ) -> None:
        self.passes, self.number, self.hidden, self.stored = passes, number, hidden, stored
        self.weights = weights[LEAVING].view(passes.tokens.shape) if weights else None

    @property
    def sequences(self) -> int:
        return len(self.passes.tokens)

    def run(self, weights: Mapping[str, torch.Tensor], chosen: Sequence[int]) -> torch.Tensor:
        entering = self.stored.entering[list(chosen)].to(self.passes.devices[0])
        return self.passes.run_with(self.number, weights, entering)

    def target(self, chosen: Sequence[int]) -> torch.Tensor:
        return self.hidden.leaving[list(chosen)].to(self.passes.devices[0])

    def token_weights(self, chosen: Sequence[int]) -> torch.Tensor | float:
        return 1.0 if self.weights is None else self.weights[list(chosen)][..., None].to(self.passes.devices[0])


class _Run:
    """One optimization: the model's outline, the plan of its groups, the pipeline, and the calibration tokens."""

    def __init__(self, request: QuantizeRequest, progress: Progress) -> None:
        self.request, self.progress = request, progress
        # 1. The model: tensors by name, and the outline of its layers without weights.
        self.source = open_plain(request.model_dir)
        self.dtype = storage_dtype(self.source)

        # 2. The method: its own pipeline, and those of groups with another precision.
        self.pipeline = pipelines.build(request, self.dtype)
        self.outline = Outline(self.source)
        outside = pipelines.outside_precision(request)
        others = pipelines.pipeline_at(request, outside, self.dtype) if outside is not None else None
        self.units, self.refused = plan_units(self.outline, self.pipeline, request.group_size, others)
        self.plan = LayerPlan(self.outline, self.units, self.pipeline, self.dtype)
        self.mix = PrecisionMix(request, self.outline, self.units, self.dtype)
        self.pipelines = [self.pipeline, *self.mix.pipelines.values()]
        self.weights: list[Weights] = []
        """Weights of the tokens by layer; empty where they count alike."""
        self.unseen = 0
        """Experts of all layers that no token of the calibration text reached."""
        self.sequential = any(pipeline.sequential for pipeline in self.pipelines)
        self.stored: HiddenStates | None = None
        """The text behind the layers before as they are stored, where a layer learns from it and `hidden` is the
        original's."""

        # 3. The calibration text [samples, length], and the way it runs through a layer.
        samples = min(request.samples, self.pipeline.samples or request.samples)
        self.tokens = calibration.draw_tokens(request, samples if self.pipeline.reads_text else 0, progress)
        self.passes = LayerPasses(self.outline, self.tokens, request.devices, progress.warn, half=True)

    def run(self, work: WorkFolder) -> QuantizeResult:
        # 1. Continue from an earlier attempt, or embed the text: hidden [samples, length, features].
        state, hidden = self._begin(work)
        count = self.outline.count
        if self.pipeline.loss_weights and len(self.tokens) and state.done < count:
            self._weigh(hidden, work, state)
        self.progress.phase("optimize", "Optimizing layer by layer", total=count, unit="layers", weight=3.7)
        if state.done:
            self.progress.note(
                f"{state.done} of {count} layers were done before: going on with layer {state.done + 1}."
            )
        # 2. Optimize layer after layer; save the state after each, so that a killed run loses one layer at most.
        for number in range(state.done, count):
            state.layers += self._layer(number, hidden, work)
            hidden.advance()
            if self.stored is not None:
                self.stored.advance()
            state.done = number + 1
            if work.resumable:
                self._save(state, hidden, work)
            self.progress.advance(state.done)
        # 3. Join the parts and write config, tokenizer and companions.
        if self.unseen and self.pipeline.samples is None and len(self.tokens):
            self.progress.warn(
                f"{self.unseen} of {count * self.plan.experts} experts saw no token of the calibration text, so they "
                "were rounded without it: give more `samples`, a longer `length`, or text like your traffic."
            )
        return self._finish(state, work)

    def _weigh(self, hidden: HiddenStates, work: WorkFolder, state: LayerState) -> None:
        """Measure how much each token counts, once: a later attempt finds it in the work folder."""
        if self.plan.experts:
            raise ImpossibleStack("`loss_weights` weighs the tokens of dense models: leave it out for experts.")
        self.progress.phase("weigh", "Weighing the tokens of the calibration text by the loss", total=100, unit="%")
        measured = LossWeights(self.passes, self.units, self.request.seed, self.request.spill_bytes)
        self.weights = measured.measure(hidden, work, lambda share: self.progress.advance(round(100 * share, 1)))
        if work.resumable and not state.done:
            self._save(state, hidden, work)

    def _save(self, state: LayerState, hidden: HiddenStates, work: WorkFolder) -> None:
        """Save the state of the run; after the last layer the hidden states are not needed."""
        enters = state.done < self.outline.count
        state.checksum = hidden.save() if enters else 0
        state.stored_checksum = self.stored.save() if enters and self.stored is not None else 0
        work.save(state)

    def _begin(self, work: WorkFolder) -> tuple[LayerState, HiddenStates]:
        """Return what an earlier attempt left, or the embedded calibration text."""
        described = {**self.request.model_dump(exclude={"out_dir", "work_dir"}), "versions": versions()}
        key = request_key({**described, **calibration.describe(self.tokens)}, weight_files(self.request.model_dir))
        shape = (*self.tokens.shape, self.outline.config.get_text_config().hidden_size)
        state, hidden = work.begin(key, shape, self.request.spill_bytes, count=self.outline.count)
        if self.pipeline.learner is not None and not self.sequential and state.done < self.outline.count:
            self.stored = work.states_beside(shape, state.done, self.request.spill_bytes)
            if state.done and not self.stored.restore(state.stored_checksum):
                work.clear()
                return self._begin(work)
        if not state.done:
            if len(self.tokens):
                self.passes.embed(hidden)
            if self.stored is not None:
                self.stored.entering.copy_(hidden.entering)
            outside = self.source.read(self.outline.outside_names())
            stored = {name: part.to(self.dtype) if part.is_floating_point() else part for name, part in outside}
            stored |= dict(self.source.read(self.outline.carried_names()))
            checkpoint.write_part(work.part(0), stored, flush=work.resumable)
        return state, hidden

    def _layer(self, number: int, hidden: HiddenStates, work: WorkFolder) -> list[dict[str, Any]]:
        """Optimize one layer and write its part; return what the result says of its linears."""
        outline, sequential, last = self.outline, self.sequential, number + 1 == self.outline.count
        # 1. Load the weights of this layer.
        outline.fill(number, self.request.devices[0])
        outline.cache.recording = self.pipeline.cache is not None
        # 2. Run the calibration text through it; tallies collect X'X, |x| and so on of each input X [tokens, in].
        share = 0.25 if sequential else 0.5
        learned = self.pipeline.learner is not None
        keep = learned or (not sequential and not last)
        tick = self._tick(number, 0.0, share)
        device = self.request.devices[0]
        weights = self.weights[number] if self.weights else {}
        if len(self.tokens):
            taps = partial(self._taps, weights=weights)
            tallies = self.passes.run_layer(number, hidden, taps, keep, tick)
        else:
            tallies = self._taps(device)
        stats = {path: tally.stats(outline.stored_name(number, path)) for path, tally in tallies.items()}
        # 3. Prune, scale and round its linears, each [out, in].
        layer_work = LayerWork(number, self.plan, stats, self.mix.of_layer(number))
        stored = hidden if self.stored is None else self.stored
        block = LayerBlock(self.passes, number, hidden, stored, weights) if learned else None
        reports = self.mix.with_precisions(number, layer_work.run(block))
        self.unseen += len(layer_work.unseen_experts())
        # 4. Write the layer's tensors.
        outline.cache.recording = False
        checkpoint.write_part(work.part(number + 1), dict(layer_work.tensors()), flush=work.resumable)
        # 5. A sequential method feeds the next layer with what the changed layer computes. Where a layer learns, that
        # is fed beside what the original's layer computes, which it learns to reach.
        fed = hidden if sequential else self.stored
        if fed is not None and not last:
            layer_work.apply()
            self.passes.run_layer(number, fed, None, True, self._tick(number, 0.75, 0.25))
        outline.drop(number)
        return reports

    def _taps(self, device: str, weights: Weights | None = None) -> Taps:
        """Make a tally for each input of the plan, with the `weights` of its tokens."""
        # 1. Collect X'X over all tokens, or over a share of them if it only serves the report.
        total, devices = self.tokens.numel(), len(self.request.devices)
        magnitudes = any(pipeline.magnitudes for pipeline in self.pipelines)
        collected, coming = Collected(self.pipeline.gram, magnitudes), total
        gram_tokens = self.pipeline.gram_tokens
        if gram_tokens is not None and all(pipeline.gram_tokens is not None for pipeline in self.pipelines):
            every = max(1, total // gram_tokens) | 1
            collected = Collected(self.pipeline.gram, magnitudes, math.ceil(gram_tokens / devices), every)
            coming = min(gram_tokens, total)

        # 2. Make one tally for each input; experts see few tokens, so all of theirs count.
        layer, tallies = self.outline.layers[0], {}
        experts = f"{self.outline.family.experts.path}." if self.outline.family.experts else None
        for unit in self.units:
            for names in unit.inputs:
                features = layer.get_submodule(names[0]).in_features
                if experts and names[0].startswith(experts):
                    tallies[names[0]] = Tally(features, 0, collected._replace(every=1), device)
                else:
                    weighed = (weights or {}).get(names[0])
                    tallies[names[0]] = Tally(features, coming, collected, device, weighed)
        return tallies

    def _tick(self, number: int, before: float, share: float) -> Any:
        """Return a function that reports progress inside layer `number`: `before` is done, and a pass is `share`."""
        return lambda done: self.progress.advance(round(number + before + share * done, 2))

    def _finish(self, state: LayerState, work: WorkFolder) -> QuantizeResult:
        self.progress.phase("write", "Writing the checkpoint", weight=0.2)
        # 1. Weights: one file or several shards.
        source, folder = self.request.model_dir, self.request.out_dir
        after = checkpoint.join(work.parts(self.outline.count), folder)
        checkpoint.write_companions(source, folder)
        # 2. The config last: before it the folder is no model.
        unquantized = self._unquantized()
        dtype = str(self.dtype).removeprefix("torch.")
        quantization = self.mix.config(self.pipeline, self._ignored())
        checkpoint.write_config(source, folder, dtype, quantization)
        return QuantizeResult(
            layers=state.layers,
            kept_16bit=unquantized,
            calibration=calibration.describe(self.tokens),
            versions=versions(),
            bytes_before=self.source.bytes,
            bytes_after=after,
        )

    def _unquantized(self) -> list[dict[str, str]]:
        """Return each linear and embedding that stays 16-bit, and why."""
        tied = self.outline.config.get_text_config().tie_word_embeddings
        why = "shared with the embedding" if tied else "the output head decides every token and stays 16-bit"
        head = {"name": self.outline.family.head, "why": why}
        linears = []
        for number in range(self.outline.count):
            for linear in self.refused:
                linears.append({"name": self.outline.stored_name(number, linear.name), "why": linear.why})
        allocated = [{"name": name, "why": self.mix.sixteen_bit_reason} for name in self.mix.sixteen_bit_linears()]
        carried = [
            {"name": pattern.removeprefix("re:"), "why": "no part of the language model, carried byte for byte"}
            for pattern in self.outline.carried_exceptions()
        ]
        table = {"name": "embedding", "why": "a table look-up, not a matrix product"}
        return [head, table, *linears, *allocated, *carried]

    def _ignored(self) -> list[str]:
        """Return what `quantization_config` excepts: names as checkpoints have them, and as transformers calls the
        modules."""
        carried = {pattern.removeprefix("re:") for pattern in self.outline.carried_exceptions()}
        names = [entry["name"] for entry in self._unquantized() if entry["name"] not in {"embedding", *carried}]
        inside = []
        for number in range(self.outline.count):
            inside += [f"{self.outline.family.layers}.{number}.{linear.name}" for linear in self.refused]
        # Servers put the name of the language part before the head's in models of several parts.
        head = ["lm_head", "re:.*lm_head.*"] if self.outline.multimodal else ["lm_head"]
        excepted = [*names, *head, *inside, *self.mix.sixteen_bit_linears(inside=True)]
        return list(dict.fromkeys([*excepted, *self.outline.carried_exceptions()]))
