"""Runs an optimize job: the plan's steps in order, a quality score of the result, one manifest at the end."""

from __future__ import annotations

import shutil
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend import settings as configuration
from backend.artifacts import artifact_folder
from backend.catalog.text import held_out_text
from backend.channel import JobChannel
from backend.domain.errors import ModelDamaged, QualityFloorMissed
from backend.domain.evaluation.document import Speculation, Variant
from backend.domain.jobs.artifact import SCORES, Manifest
from backend.domain.jobs.jobs import OptimizeSpec
from backend.domain.jobs.progress import Progress
from backend.domain.limits.quality_loss import floor_problem
from backend.domain.needs import job_duration, serving_memory
from backend.domain.needs.hardware_rates import processor_rates
from backend.domain.neuron.compile_plan import CompilePlan
from backend.domain.recipe import precision_allocation, quantization_engines
from backend.domain.recipe.methods import TUNED
from backend.domain.recipe.quantize_step import reads_text
from backend.domain.recipe.recovery import Recover, gain_sentence
from backend.domain.rules.plan import PlannedStep
from backend.hardware import engine_status, probe, processor_speed
from backend.worker.optimizing import neuron_compile, recovery
from backend.worker.optimizing.precision_search import PrecisionSearch
from backend.worker.progress import ChannelProgress
from backend.worker.resources import PeakMemory

if TYPE_CHECKING:
    from backend.engines.base import QuantizeRequest, QuantizeResult

QUALITY_WINDOWS = (8, 24)
"""Fewest and most windows of 512 tokens scored for the artifact's own quality report, and what they may cost:"""
QUALITY_PARAMETER_WINDOWS = 4_000_000_000


NOMINAL_FLOPS = 0.2e12
"""16-bit operations/s of a core that was not measured: only the shares of the phases depend on it."""
TUNING = (*TUNED, "kv_cache", "format")
"""Options of a planned quantize step that only some methods take."""
COMMON_OPTIONS = ("method", "bits", "group_size", "symmetric", "samples", "length")
"""Options of that step that every method takes."""
RESULT = {"seconds", "peak_rss_bytes", "quality", "bytes_before", "bytes_after", "recovery"}
"""Fields of the manifest that are also in the job's result."""
PRECISION_SEARCH = "bits"
"""The name of what is kept to go on from: what groups of linears were measured to lose, and attempts that missed the
floor."""


class Optimization:
    """One run: what the steps have in common, and what the manifest is made of."""

    def __init__(self, spec: OptimizeSpec, channel: JobChannel) -> None:
        self.spec, self.channel = spec, channel
        self.model = channel.output / "model"
        pruning = self._planned("prune")
        self.recovers = pruning is not None and "recover" in pruning.options
        weights = {"prune": 14.0 if self.recovers else 4.0, "quantize": 4.0, "speculate": 0.2, "compile": 8.0}
        expected = (
            1.0 + sum(weights.get(step.technique, 1.0) for step in spec.plan.steps) + (2.0 if self.rewrites else 0.5)
        )
        self.progress = ChannelProgress(channel, expected, predicted_seconds(spec))
        self.facts: dict[str, Any] = {}

    @property
    def rewrites(self) -> bool:
        """Tell whether the weights change."""
        return any(step.technique in {"prune", "quantize"} for step in self.spec.plan.steps)

    def run(self) -> None:
        self.channel.output.mkdir(parents=True)
        if self.spec.neuron is not None or not self.rewrites:
            self.progress.phase("copy", "Copying the weights", weight=0.5)
            copy_model(Path(self.spec.model.path), self.model)
        if self.spec.neuron is not None:
            self._for_neuron(self.spec.neuron)
            return
        for step in self.spec.plan.steps:
            getattr(self, f"_{step.technique}")(step)
        if self.rewrites:
            self._measure_quality()

    def _for_neuron(self, plan: CompilePlan) -> None:
        """The stack rounds the weights itself: the artifact has the original ones beside what was compiled."""
        draft = Path(self.spec.draft.path) if self.spec.draft else None
        if draft is not None:
            copy_model(draft, self.channel.output / "draft")
        device = self.spec.target == "local:neuron"
        self.facts |= neuron_compile.compile_for_neuron(
            plan, Path(self.spec.model.path), draft, self.channel.output, self.progress, device=device
        )

    def _prune(self, step: PlannedStep) -> None:
        """Prune, unless a quantization follows: then `_quantize` does both in one pass over the weights."""
        if self._planned("quantize") is None:
            self._rewrite({}, step, step.engine)

    def _quantize(self, step: PlannedStep) -> None:
        self._rewrite(step.options, self._planned("prune"), step.engine)

    def _rewrite(self, options: dict[str, Any], pruning: PlannedStep | None, engine: str) -> None:
        from backend.engines.base import Pruning, QuantizeRequest
        from backend.engines.native import devices

        dropped = {name: value for name, value in pruning.options.items() if name != "recover"} if pruning else None
        model, reads = Path(self.spec.model.path), reads_text(self.spec.recipe)
        request = QuantizeRequest(
            model_dir=model,
            out_dir=self.model,
            **request_fields(options),
            seed=self.spec.seed,
            pruning=Pruning(**dropped) if dropped else None,
            calibration_texts=calibration_texts(self.spec.calibration_path, model) if reads else [],
            devices=devices(),
            work_dir=self.channel.resume(),
        )
        make = partial(self._changed, engine, options)
        if pruning and self.recovers:
            recover = Recover(**pruning.options["recover"])
            quantize, self.facts["recovery"] = recovery.prune_and_recover(request, recover, self.progress, make)
        else:
            quantize = make(request)
        source = self.spec.calibration_path or ("bundled" if reads else "none")
        calibration = {**quantize.calibration, "source": source, "seed": self.spec.seed}
        self.facts |= {"layers": quantize.layers, "kept_16bit": quantize.kept_16bit}
        self.facts |= {"calibration": calibration, "versions": quantize.versions}

    def _changed(self, engine: str, options: dict[str, Any], request: QuantizeRequest) -> QuantizeResult:
        """The weights of the request's model rewritten by the engine, with a precision for each group where the plan
        says so."""
        if "eight_bits" not in options:
            return run_engine(engine, request, self.progress)
        folder = self.channel.resume(PRECISION_SEARCH)
        fitting = PrecisionSearch(request, options, self.spec.recipe.limits, folder, self.progress)
        quantize, self.facts["bits"] = fitting.run(self._score)
        shutil.rmtree(folder, ignore_errors=True)
        return quantize

    def _planned(self, technique: str) -> PlannedStep | None:
        return next((step for step in self.spec.plan.steps if step.technique == technique), None)

    def _speculate(self, step: PlannedStep) -> None:
        if self.spec.draft is not None:
            self.progress.phase("draft", f"Packing the draft {self.spec.draft.id}", weight=0.2)
            copy_model(Path(self.spec.draft.path), self.channel.output / "draft")

    def _compile(self, step: PlannedStep) -> None:
        from backend.serving import compile_cache

        self.progress.phase("compile", "Compiling ahead of time by starting vLLM once", weight=8.0)
        python = engine_status.engine_python(configuration.load(), "serve")
        log = self.channel.side_log("compile")
        self.facts["compile_key"] = compile_cache.build_compile_cache(
            self.variant(), python, self.channel.output / "compile_cache", log, self.progress
        )

    def variant(self) -> Variant:
        """Return the variant made so far, as it will be served."""
        recipe = self.spec.recipe
        step: Any = recipe.step("speculate")
        draft = str(self.channel.output / "draft") if self.spec.draft else None
        speculation = Speculation.from_step(step, draft, configuration.load().classes(step.method)) if step else None
        return Variant(
            name=recipe.name,
            source=self.spec.model.id,
            kind="artifact",
            model_path=str(self.model),
            serving=recipe.serving,
            speculation=speculation,
        )

    def _scored(self, folder: Path) -> dict[str, Any]:
        from backend.evaluate.quality import scoring
        from backend.evaluate.quality.model_logits import ScoringPlace
        from backend.layered.layer_passes import devices

        fewest, most = QUALITY_WINDOWS  # fewer for a large model; the interval in the report widens with it
        windows = max(fewest, min(most, QUALITY_PARAMETER_WINDOWS // max(self.spec.model.parameters, 1)))
        settings = configuration.load()
        original, place = (
            Path(self.spec.model.path),
            ScoringPlace(devices(), self.channel.work, cache=settings.kept_scoring),
        )
        text = held_out_text.read(None, original)
        scores = scoring.score(original, folder, text.documents, windows=windows, progress=self.progress, place=place)
        return {**scores, "text": text.name, "text_sha256": text.sha256}

    def _score(self) -> dict[str, Any]:
        scored = self._scored(self.model)
        quality: dict[str, Any] = {
            "perplexity_before": scored["perplexity_original"],
            "perplexity_after": scored["perplexity"],
            **{name: scored[name] for name in (*SCORES[2:], "text", "text_sha256", "windows", "tokens")},
        }
        self.facts["quality"] = quality
        return quality

    def _measure_quality(self) -> None:
        if "quality" not in self.facts:
            self._score()
        if self.recovers:
            folder, quantized = self.channel.resume(), self._planned("quantize") is not None
            stages = recovery.score_stages(folder, self.facts["quality"], self._scored, quantized=quantized)
            self.facts["recovery"]["quality"] = stages
            self.progress.note(gain_sentence(stages))
        # beside what was predicted, which leaves out how errors meet, so it is too low
        if self.facts.get("bits") is not None:
            self.facts["bits"]["measured_kl"] = self.facts["quality"]["kl_mean"]
        if missed := precision_allocation.missed_limit(self.spec.recipe.limits, self.facts["quality"]):
            raise QualityFloorMissed(f"{missed[:1].upper()}{missed[1:]}: nothing was registered.")
        if ruined := floor_problem(self.facts["quality"], configuration.load().quality_floor):
            self.facts["quality"]["below_floor"] = ruined
            self.progress.warn(ruined)


def predicted_seconds(spec: OptimizeSpec) -> dict[str, float]:
    """Seconds of each phase by the planner's formula, so that progress goes with time; nothing where an engine or a
    recovery has phases of its own."""
    step = spec.recipe.step("prune")
    if any(each.engine not in {"native", "vllm"} for each in spec.plan.steps) or getattr(step, "recover", None):
        return {}
    measured = processor_speed.find_measured(configuration.load().cache)
    flops = measured.speed.flops if measured else NOMINAL_FLOPS * probe.cores()
    rates = processor_rates(flops, probe.cores(), probe.probe()["flags"])
    moved = spec.model.weights_bytes + serving_memory.weights(spec.model, spec.recipe).total
    least, most = (job_duration.job_phases(spec.model, spec.recipe, rates, moved, end) for end in (0, 1))
    return {name: (least[name] * most[name]) ** 0.5 for name in least}


def run(spec: OptimizeSpec, channel: JobChannel, memory: PeakMemory) -> dict[str, Any]:
    """Fill the channel's output with an artifact; the result document's own part."""
    work = Optimization(spec, channel)
    with recovery.removing_stages(channel.resume()) if work.recovers else nullcontext():
        began = time.monotonic()
        work.run()
        work.progress.phase("manifest", "Hashing every file", weight=0.5)
        manifest = Manifest(
            job=channel.job,
            parent=spec.model,
            recipe=spec.recipe,
            recipe_hash=spec.recipe.hash,
            files=artifact_folder.describe(channel.output),
            bytes_before=spec.model.weights_bytes,
            bytes_after=weight_bytes(work.model),
            draft=spec.draft,
            hardware=probe.probe(),
            seed=spec.seed,
            peak_rss_bytes=memory.peak,
            seconds=round(time.monotonic() - began, 2),
            **work.facts,
        )
        artifact_folder.write_manifest(channel.output, manifest)
    document = manifest.model_dump(mode="json", include=RESULT)
    return {**document, "artifact": manifest.id, "average_bits": (manifest.bits or {}).get("average_bits")}


def request_fields(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a planned quantization, as fields of a `QuantizeRequest`."""
    named = {name: options[name] for name in COMMON_OPTIONS if name in options}
    return {**named, "tuning": {name: value for name, value in options.items() if name in TUNING}}


def calibration_texts(path: str | None, model: Path) -> list[str]:
    """Return the calibration texts of a file or the bundled ones; answered prompts use the model's chat template."""
    from backend.layered import tokenizers

    documents = held_out_text.calibration(path, model)
    if all(isinstance(document, str) for document in documents):
        return [str(document) for document in documents]
    loaded = tokenizers.load(model)
    return [document if isinstance(document, str) else tokenizers.written(loaded, *document) for document in documents]


def run_engine(engine: str, request: QuantizeRequest, progress: Progress) -> QuantizeResult:
    """The native engine here, a library in its own environment. Raises EngineMissing, and what the engine raises."""
    environment = quantization_engines.environment(engine)
    if environment is None:
        from backend.engines import native

        return native.quantize(request, progress)
    from backend.engines.libraries import library_client

    return library_client.quantize(
        engine, engine_status.engine_python(configuration.load(), environment), request, progress
    )


def weight_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def copy_model(source: Path, destination: Path) -> None:
    """Copy what a server needs and nothing that could run code: safetensors, JSON, tokenizer files.

    Raises ModelDamaged where no weights are there: the folder may have gone since the job was submitted, or lie on
    another host.
    """
    from backend.layered import tokenizers
    from backend.layered.weight_source import weight_files

    if not any(source.glob("*.safetensors")):
        raise ModelDamaged(f"There are no weights in {source} any more: put them back, then resume the job.")
    destination.mkdir(parents=True)
    patterns = ("*.json", "*.model", "*.txt", "*.jinja")
    weights = weight_files(source)  # not every file: published Mistral models hold their weights twice
    for path in sorted({*weights, *(path for pattern in patterns for path in source.glob(pattern))}):
        shutil.copyfile(path, destination / path.name)
    if any((source / name).is_file() for name in (tokenizers.FILE, tokenizers.SETTINGS)):  # a head has no tokenizer
        tokenizers.carry(source, destination)
