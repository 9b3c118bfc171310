"""Runs an optimize job: the plan's steps in order, a quality score of the result, one manifest at the end."""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend import settings as configuration
from backend.artifacts import artifact_folder
from backend.catalog.cards import gguf
from backend.catalog.text import held_out_text
from backend.channel import JobChannel
from backend.domain.errors import ModelDamaged, QualityFloorMissed
from backend.domain.evaluation.document import Speculation, Variant
from backend.domain.jobs.artifact import SCORES, Manifest
from backend.domain.jobs.jobs import OptimizeSpec
from backend.domain.jobs.progress import Progress
from backend.domain.limits.quality_loss import floor_problem
from backend.domain.machine import targets
from backend.domain.needs import job_duration, recovery_needs, serving_memory
from backend.domain.needs.hardware_rates import processor_rates
from backend.domain.neuron.compile_plan import CompilePlan
from backend.domain.recipe import precision_allocation, quantization_engines
from backend.domain.recipe.methods import GGUF, TUNED
from backend.domain.recipe.quantize_step import reads_text
from backend.domain.recipe.recovery import Recover, RecoverQuantized, gain_sentence
from backend.domain.recipe.serving_engines import AUTO
from backend.domain.rules.plan import PlannedStep
from backend.hardware import engine_status, probe, processor_speed
from backend.worker.optimizing import calibration, gguf_file, neuron_compile, recovery, structured
from backend.worker.optimizing.precision_search import PrecisionSearch
from backend.worker.progress import ChannelProgress
from backend.worker.resources import PeakMemory

if TYPE_CHECKING:
    from backend.engines.base import QuantizeRequest, QuantizeResult

NOMINAL_FLOPS = 0.2e12
"""16-bit operations/s of a core that was not measured: only the shares of the phases depend on it."""
TUNING = (*TUNED, "kv_cache", "format")
"""Options of a planned quantize step that only some methods take."""
COMMON_OPTIONS = ("method", "bits", "group_size", "symmetric", "samples", "length", "outside_experts")
"""Options of that step that every method takes."""
RESULT = {
    "seconds",
    "peak_rss_bytes",
    "quality",
    "bytes_before",
    "bytes_after",
    "recovery",
    "quantized_recovery",
    "structure",
}
"""Fields of the manifest that are also in the job's result."""
PRECISION_SEARCH = "bits"
"""The folder in which a precision search stores, for the next attempt, what groups of linears lose and which
allocations missed the floor."""


class Optimization:
    """Runs the steps of one plan, each on the output of the one before, and collects the facts of the manifest."""

    def __init__(self, spec: OptimizeSpec, channel: JobChannel) -> None:
        self.spec, self.channel = spec, channel
        self.model = self.scored = channel.output / "model"
        self.source = Path(spec.model.path)
        """The checkpoint that the next step goes on from: the model, or the smaller one of a structured pruning."""
        pruning = self._planned("prune")
        self.recovers = pruning is not None and "recover" in pruning.options
        self.cuts = pruning is not None and "structure" in pruning.options
        quantization = self._planned("quantize")
        self.trains = quantization is not None and "recover" in quantization.options
        weights = {
            "prune": 14.0 if self.recovers else 4.0,
            "quantize": 14.0 if self.trains else 4.0,
            "speculate": 0.2,
            "compile": 8.0,
        }
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
        """Make the artifact's files in the channel's output, and score weights that were changed."""
        # 1. A plan that changes no weights begins with a copy of them.
        self.channel.output.mkdir(parents=True)
        if self.spec.neuron is not None or not self.rewrites:
            self.progress.phase("copy", "Copying the weights", weight=0.5)
            self._copy(Path(self.spec.model.path), self.model)
        if self.spec.neuron is not None:
            self._compile_for_neuron(self.spec.neuron)
            return

        # 2. Run the steps in the plan's order.
        techniques = {
            "prune": self._prune,
            "quantize": self._quantize,
            "speculate": self._add_draft,
            "compile": self._compile,
        }
        for step in self.spec.plan.steps:
            techniques[step.technique](step)

        # 3. Score the result, and refuse it if it misses the recipe's limits.
        if self.rewrites:
            self._check_quality()

    def _compile_for_neuron(self, plan: CompilePlan) -> None:
        """Compile the original for Neuron; its stack rounds the weights itself, so the artifact has them unchanged."""
        draft = Path(self.spec.draft.path) if self.spec.draft else None
        if draft is not None:
            copy_model(draft, self.channel.output / "draft")
        device = self.spec.target == targets.LOCAL_NEURON
        self.facts |= neuron_compile.compile_for_neuron(
            plan, Path(self.spec.model.path), draft, self.channel.output, self.progress, device=device
        )

    def _prune(self, step: PlannedStep) -> None:
        """Prune, unless a quantization follows: then `_quantize` does both in one pass over the weights. A structured
        pruning is a step of its own, whose smaller model any other goes on from."""
        if self.cuts:
            self._cut(step)
        elif self._planned("quantize") is None:
            self._rewrite({}, step, step.engine)

    def _cut(self, step: PlannedStep) -> None:
        """Make the smaller model of a structured pruning, which is the result unless another step goes on from it."""
        smaller = structured.run(self.spec, step, self.channel.resume(), self.progress)
        self.source = smaller.folder
        self.facts |= smaller.facts
        if self._planned("quantize") is None:
            recovery.copy_checkpoint(smaller.folder, self.model)

    def _quantize(self, step: PlannedStep) -> None:
        if step.options["method"] == GGUF:
            self.scored, facts = gguf_file.write(self.spec, step, self.source, self.model, self.channel, self.progress)
            if self.cuts and "calibration" in self.facts and facts["calibration"]["source"] == "none":
                facts.pop("calibration")  # text decided what was removed, and nothing of the file
            self.facts |= {"layers": []} | facts
            return
        self._rewrite(step.options, None if self.cuts else self._planned("prune"), step.engine)

    def _rewrite(self, options: dict[str, Any], pruning: PlannedStep | None, engine: str) -> None:
        """Prune and quantize the model's weights in one pass; `options` are those of the quantize step."""
        from backend.engines.base import Pruning, QuantizeRequest, QuantizeResult
        from backend.engines.native import devices

        # 1. Make the engine's request.
        sparsity = None
        if pruning is not None:
            sparsity = Pruning(**{name: value for name, value in pruning.options.items() if name != "recover"})
        model, reads = self.source, reads_text(self.spec.recipe)
        request = QuantizeRequest(
            model_dir=model,
            out_dir=self.model,
            **request_fields(options),
            seed=self.spec.seed,
            pruning=sparsity,
            calibration_texts=calibration.texts(self.spec.calibration_path, model) if reads else [],
            devices=devices(),
            work_dir=self.channel.resume("quantize" if self.cuts else ""),
        )

        # 2. Change the weights, with a recovery after pruning or quantization if the recipe has one.
        change = partial(self._change_weights, engine, options, pruning)
        if self.trains:
            trained, original = RecoverQuantized(**options["recover"]), Path(self.spec.model.path)
            changed = recovery.quantize_and_recover(request, trained, original, self.progress, change)
        else:
            changed = change(request)
        result = QuantizeResult.model_validate(changed.result)

        # 3. Collect what the manifest says of it.
        source = self.spec.calibration_path or ("bundled" if reads else "none")
        described = {**result.calibration, "source": source, "seed": self.spec.seed}
        self.facts |= {"layers": result.layers, "kept_16bit": result.kept_16bit}
        self.facts |= {"calibration": described, "versions": result.versions}
        records = changed.model_dump(include={"recovery", "quantized_recovery"})
        self.facts |= {name: record for name, record in records.items() if record is not None}

    def _change_weights(
        self, engine: str, options: dict[str, Any], pruning: PlannedStep | None, request: QuantizeRequest
    ) -> recovery.Changed:
        """Run the request, with a recovery between pruning and quantization if the recipe has one."""
        quantize = partial(self._run_engine, engine, options)
        if pruning is None or not self.recovers:
            return recovery.Changed(result=quantize(request).model_dump(mode="json"))
        recover = Recover(**pruning.options["recover"])
        return recovery.prune_and_recover(request, recover, self.progress, quantize)

    def _run_engine(self, engine: str, options: dict[str, Any], request: QuantizeRequest) -> QuantizeResult:
        """Run the request in its engine; if the plan allows several precisions, find one for each group of linears."""
        if "eight_bits" not in options:
            return run_engine(engine, request, self.progress)
        folder = self.channel.resume(PRECISION_SEARCH)
        search = PrecisionSearch(request, options, self.spec.recipe.limits, folder, self.progress)
        result, self.facts["bits"] = search.run(self._score_result)
        shutil.rmtree(folder, ignore_errors=True)
        return result

    def _planned(self, technique: str) -> PlannedStep | None:
        return next((step for step in self.spec.plan.steps if step.technique == technique), None)

    def _add_draft(self, step: PlannedStep) -> None:
        """Copy the draft model into the artifact; speculation changes no weights."""
        if self.spec.draft is not None:
            self.progress.phase("draft", f"Packing the draft {self.spec.draft.id}", weight=0.2)
            self._copy(Path(self.spec.draft.path), self.channel.output / "draft")

    def _copy(self, source: Path, destination: Path) -> None:
        """Copy a model, and the GGUF file that it was made from where llama.cpp may serve it."""
        copy_model(source, destination)
        if self.spec.recipe.serving.engine in {"llama.cpp", AUTO}:
            copy_gguf(source, destination)

    def _compile(self, step: PlannedStep) -> None:
        """Fill the artifact's compile cache, so that no server compiles at its start."""
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
            serving=recipe.serving.on_engine(recipe.serving.engine_name),
            speculation=speculation,
        )

    def _score(self, folder: Path) -> dict[str, Any]:
        """Score the weights in a folder against the original's, on held-out text."""
        from backend.evaluate.quality import scoring
        from backend.evaluate.quality.model_logits import ScoringPlace
        from backend.layered.layer_passes import devices

        windows = self.spec.scored_windows or job_duration.scored_windows(self.spec.model)
        settings = configuration.load()
        original = Path(self.spec.model.path)
        place = ScoringPlace(devices(), self.channel.work, cache=settings.kept_scoring)
        text = held_out_text.read(None, original)
        scores = scoring.score(original, folder, text.documents, windows=windows, progress=self.progress, place=place)
        return {**scores, "text": text.name, "text_sha256": text.sha256}

    def _score_result(self) -> dict[str, Any]:
        """Score the artifact's weights and record the quality for the manifest."""
        scored = self._score(self.scored)
        quality: dict[str, Any] = {
            "perplexity_before": scored["perplexity_original"],
            "perplexity_after": scored["perplexity"],
            **{name: scored[name] for name in (*SCORES[2:], "text", "text_sha256", "windows", "tokens")},
        }
        self.facts["quality"] = quality
        return quality

    def _check_quality(self) -> None:
        """Score the result, and raise QualityFloorMissed if it misses a limit of the recipe; warn if it is ruined."""
        # 1. Score the artifact, unless the precision search did, and the stages before it.
        if "quality" not in self.facts:
            self._score_result()
        if self.recovers:
            inside = self.trains and not self.cuts
            folder = self.channel.resume() / recovery.BEFORE if inside else self.channel.resume()
            quantized = self._planned("quantize") is not None
            stages = recovery.score_stages(folder, self.facts["quality"], self._score, quantized=quantized)
            self.facts["recovery"]["quality"] = stages
            self.progress.note(gain_sentence(stages))
        if self.trains:
            folder = self.channel.resume("quantize" if self.cuts else "")
            stages = recovery.score_quantized(folder, self.facts["quality"], self._score)
            self.facts["quantized_recovery"]["quality"] = stages
            self.progress.note(gain_sentence(stages))
        # Beside the prediction, which is too low: it leaves out how errors of several groups add up.
        if self.facts.get("bits") is not None:
            self.facts["bits"]["measured_kl"] = self.facts["quality"]["kl_mean"]

        # 2. Judge it by the recipe's limits, then by the studio's floor.
        missed = precision_allocation.missed_limit(self.spec.recipe.limits, self.facts["quality"])
        if missed is not None:
            raise QualityFloorMissed(f"{missed[:1].upper()}{missed[1:]}: nothing was registered.")
        ruined = floor_problem(self.facts["quality"], configuration.load().quality_floor)
        if ruined is not None:
            self.facts["quality"]["below_floor"] = ruined
            self.progress.warn(ruined)


def predicted_seconds(spec: OptimizeSpec) -> dict[str, float]:
    """Return the seconds of each phase by the planner's formula, so that the progress bar follows the time.

    Empty if an engine or a recovery has phases of its own.
    """
    pruning = spec.recipe.step("prune")
    changes = (step for step in spec.plan.steps if step.technique in {"quantize", "prune"})
    has_own_phases = recovery_needs.find_recoveries(spec.recipe) or getattr(pruning, "structured", False)
    if any(step.engine != "native" for step in changes) or has_own_phases:
        return {}
    measured = processor_speed.find_measured(configuration.load().cache)
    flops = measured.speed.flops if measured else NOMINAL_FLOPS * probe.cores()
    rates = processor_rates(flops, probe.cores(), probe.probe()["flags"])
    moved = spec.model.weights_bytes + serving_memory.weights(spec.model, spec.recipe).total
    least, most = (job_duration.job_phases(spec.model, spec.recipe, rates, moved, end) for end in (0, 1))
    return {name: (least[name] * most[name]) ** 0.5 for name in least}


def run(spec: OptimizeSpec, channel: JobChannel, memory: PeakMemory) -> dict[str, Any]:
    """Fill the channel's output with an artifact and return this kind's part of the result."""
    # 1. Run the plan; checkpoints between its steps go when it ends.
    work = Optimization(spec, channel)
    with ExitStack() as stack:
        if work.recovers or work.cuts or work.trains:
            for name in ("", "quantize"):
                stack.enter_context(recovery.removing_stages(channel.resume(name)))
        began = time.monotonic()
        work.run()

        # 2. Describe what was made.
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
    """Return the options of a planned quantization as fields of a `QuantizeRequest`."""
    named = {name: options[name] for name in COMMON_OPTIONS if name in options}
    return {**named, "tuning": {name: value for name, value in options.items() if name in TUNING}}


def run_engine(engine: str, request: QuantizeRequest, progress: Progress) -> QuantizeResult:
    """Quantize: with the native engine in this process, with a library in its own environment.

    Raises EngineMissing, and what the engine raises.
    """
    environment = quantization_engines.environment(engine)
    if environment is None:
        from backend.engines import native

        return native.quantize(request, progress)
    from backend.engines.libraries import library_client

    return library_client.quantize(
        engine, engine_status.engine_python(configuration.load(), environment), request, progress
    )


def weight_bytes(folder: Path) -> int:
    """Return the bytes of the weight files in a model's folder; where it has a GGUF file, that is what is served."""
    weights = list((folder / GGUF).glob("*.gguf")) or list(folder.glob("*.safetensors"))
    return sum(path.stat().st_size for path in weights)


def copy_gguf(source: Path, destination: Path) -> None:
    """Copy the GGUF file that is kept in a model's folder, with all its parts; nothing where none is."""
    first = gguf.find_original(source)
    if first is not None:
        shutil.copytree(first.parent, destination / first.parent.name)


def copy_model(source: Path, destination: Path) -> None:
    """Copy what a server needs and nothing that could run code: safetensors, JSON, tokenizer files.

    Raises ModelDamaged if there are no weights: the folder may have been deleted after the job was submitted, or be on
    another host.
    """
    from backend.layered import tokenizers
    from backend.layered.weight_source import weight_files

    if not any(source.glob("*.safetensors")):
        raise ModelDamaged(f"There are no weights in {source} any more: put them back, then resume the job.")
    destination.mkdir(parents=True)
    patterns = ("*.json", "*.model", "*.txt", "*.jinja")
    weights = weight_files(source)  # not every file: published Mistral models hold their weights twice
    copied = set(weights)
    for pattern in patterns:
        copied |= set(source.glob(pattern))
    for path in sorted(copied):
        shutil.copyfile(path, destination / path.name)
    if any((source / name).is_file() for name in (tokenizers.FILE, tokenizers.SETTINGS)):  # a head has no tokenizer
        tokenizers.complete_copy(source, destination)
