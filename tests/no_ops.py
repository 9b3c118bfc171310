"""Servers that silently do something else than they were asked, and honest ones: what the campaign of
`benchmarks.no_ops` judges.

Both go the whole way: the surface as text, the same readers as of a real server, counters as differences of two
readings.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from backend.domain.evaluation import vllm_flags
from backend.domain.evaluation.document import Level, Speculation, Variant
from backend.domain.evaluation.evidence import draft_counts, engine_log
from backend.domain.evaluation.evidence.findings import findings
from backend.domain.evaluation.evidence.schema import Finding, failed_findings
from backend.domain.evaluation.evidence.served_variant import StartEvidence
from backend.domain.evaluation.startup import Startup
from backend.domain.load import counters
from backend.domain.recipe.recipe import Serving
from backend.domain.recipe.speculation import scheduled_tokens
from tests import simulated
from tests.fakes.engine_surface import Surface

CONFIG = {
    "dtype": "bfloat16",
    "max_position_embeddings": 8192,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "hidden_size": 576,
}
W8A8 = {"group_0": {"weights": {"num_bits": 8, "type": "int"}, "input_activations": {"num_bits": 8, "dynamic": True}}}
W4A16 = {"group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 64}}}
KERNELS = {
    "w8a8": ("Selected CPUInt8ScaledMMLinearKernel for CompressedTensorsW8A8Int8",),
    "w4a16": (
        "Using CPUWNA16LinearKernel for mixed-precision linear",
        "Using CPUWNA16LinearKernel for CompressedTensorsWNA16",
    ),
}
SIZES = {"plain": 269_000_000, "w8a8": 163_000_000, "w4a16": 117_000_000}


@dataclass(frozen=True)
class Run:
    """A variant as asked, and its server as it was. `levels`: streams -> (steps with a draft of all, accepted by
    position)."""

    variant: Variant
    config: dict[str, Any]
    surface: Surface
    started: str = "cold"
    levels: dict[int, tuple[float, tuple[float, ...]]] = field(
        default_factory=lambda: {1: (1.0, (0.6, 0.4)), 4: (1.0, (0.6, 0.4))}
    )
    hits: float | None = 0.0
    repeats: float = 0.0
    """What the prompt cache gave, and the most that the workload gives."""

    def findings(self) -> list[Finding]:
        log = self.surface.log()
        startup = Startup.model_validate({"kind": self.started, "compile_s": None if self.started == "eager" else 5.0})
        evidence = StartEvidence(
            engine_log.parse_engine_log(log), engine_log.parse_cache_settings(self.surface.metrics()), startup
        )
        return findings(self.variant, self.config, [evidence], [self._level(streams) for streams in self.levels])

    def _level(self, streams: int) -> Level:
        share, rates = self.levels[streams]
        level = simulated.level(streams)
        steps = level.requests * 40
        drafts = round(steps * share)
        accepted = tuple(round(drafts * rate) for rate in rates)
        generated = steps + sum(accepted) + level.requests + level.audit.warmup_requests
        before, after = (
            counters.parse_counters(self.surface.metrics()),
            counters.parse_counters(self.surface.metrics(generated, drafts, accepted)),
        )
        drafting = draft_counts.count_drafting(
            [counters.counter_increase(before | dict.fromkeys(after, 0.0), after)], []
        )
        return level.model_copy(
            update={"drafting": drafting, "prefix_cache_hit_rate": self.hits, "prefix_cache_expected": self.repeats}
        )


def honest(
    weights: str = "plain",
    serving: Serving | None = None,
    speculation: Speculation | None = None,
    *,
    shipped: bool = False,
) -> Run:
    """What vLLM 0.32.0 does with such a variant, as it was recorded."""
    request = serving or Serving()
    config = CONFIG if weights == "plain" else {**CONFIG, "quantization_config": _format(weights)}
    variant = Variant(
        name=weights,
        source=weights,
        kind="model",
        serving=request,
        speculation=speculation,
        bytes_on_disk=SIZES[weights],
        compile_cache="/cache" if shipped else None,
    )
    surface = Surface(
        dtype="bfloat16" if request.dtype == "auto" else request.dtype,
        context=request.max_model_len or 8192,
        parallel=request.tensor_parallel,
        quantization=None if weights == "plain" else "compressed-tensors",
        kernels=KERNELS.get(weights, ()),
        eager=request.enforce_eager,
        mode="NONE: 0" if request.enforce_eager else "DYNAMO_TRACE_ONCE: 2",
        cache=request.kv_cache_dtype,
        element_bytes=1.0 if request.kv_cache_dtype == "fp8" else 4.0 if request.dtype == "float32" else 2.0,
        prefixes=request.prefix_caching is not False,
        chunked=request.chunked_prefill is not False,
        speculation=_speculative_settings(speculation),
        gib=SIZES[weights] / 2**30,
        running=min(4, request.max_num_seqs or 4),
        arguments={"max_num_seqs": request.max_num_seqs} if request.max_num_seqs else {},
    )
    started = "eager" if request.enforce_eager else "cached" if shipped else "cold"
    return Run(variant, config, surface, started)


def _format(weights: str) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "config_groups": W8A8 if weights == "w8a8" else W4A16,
        "ignore": ["lm_head"],
    }


def _speculative_settings(speculation: Speculation | None) -> tuple[str, str | None, int] | None:
    if speculation is None:
        return None
    config = vllm_flags.speculative_config(speculation, vllm_flags.DRAFT_LINK)
    named = config.get("model") if config["method"] != "custom_class" else None  # of a class the log names none
    return str(config["method"]), named, int(config["num_speculative_tokens"])


DRAFTED = Speculation(method="draft", tokens=4, draft_path="/draft")
LOOKED_UP = Speculation(method="ngram", tokens=3)
ADAPTIVE = Speculation(method="ngram_adaptive", tokens=8)
SCHEDULED = Speculation(method="draft", tokens=4, draft_path="/draft", tokens_by_batch=((1, 4), (8, 0)))
HEAD = Speculation(method="eagle3", tokens=4, draft_path="/draft")


@dataclass(frozen=True)
class NoOp:
    name: str
    asked: Run
    """As an honest server would do it."""
    really: Callable[[Run], Run]
    what: str
    """Of the finding that must be off."""

    def find_failed(self) -> Finding | None:
        return next(
            (each for each in failed_findings(self.really(self.asked).findings()) if each.what == self.what), None
        )


def _does(**changed: Any) -> Callable[[Run], Run]:
    return lambda run: replace(run, surface=replace(run.surface, **changed))


def _measures(**changed: Any) -> Callable[[Run], Run]:
    return lambda run: replace(run, **changed)


def _both(*changes: Callable[[Run], Run]) -> Callable[[Run], Run]:
    def changed(run: Run) -> Run:
        for change in changes:
            run = change(run)
        return run

    return changed


WARNED = "(EngineCore pid=2) WARNING 11-23 10:24:30 [{place}] {words}"
FP8_WEIGHTS_ONLY = WARNED.format(
    place="marlin_utils_fp8.py:108",
    words="Your GPU does not have native support for FP8 computation but FP8 quantization is being used. Weight-only "
    "FP8 "
    "compression will be used leveraging the Marlin kernel. This may degrade performance for compute-heavy workloads.",
)
NO_PREFIXES = WARNED.format(
    place="vllm.py:1435", words="Disabling prefix caching: this instance runs the connector that cannot keep them."
)
CAST = WARNED.format(place="model.py:2109", words="Casting torch.bfloat16 to torch.float16.")
SERVED_TWICE = {1: (1.0, (0.6, 0.4)), 16: (0.0, (0.0, 0.0))}

NO_OPS = (
    NoOp(
        "draft ignored: the engine starts without it",
        honest(speculation=DRAFTED),
        _does(speculation=None),
        "speculation",
    ),
    NoOp(
        "another draft is loaded",
        honest(speculation=DRAFTED),
        _does(speculation=("draft_model", "other", 4)),
        "speculation",
    ),
    NoOp(
        "draft taken for n-gram",
        honest(speculation=DRAFTED),
        _does(speculation=("ngram", "draft-model", 4)),
        "speculation",
    ),
    NoOp(
        "adaptive n-grams taken for plain",
        honest(speculation=ADAPTIVE),
        _does(speculation=("ngram", None, 8)),
        "speculation",
    ),
    NoOp(
        "head taken for a draft model",
        honest(speculation=HEAD),
        _does(speculation=("draft_model", "draft-model", 4)),
        "speculation",
    ),
    NoOp(
        "fewer tokens proposed than asked",
        honest(speculation=DRAFTED),
        _does(speculation=("draft_model", "draft-model", 1)),
        "speculation",
    ),
    NoOp(
        "draft never runs: answers too short",
        honest(speculation=DRAFTED),
        _measures(levels={1: (0.0, ()), 4: (0.0, ())}),
        "speculation",
    ),
    NoOp(
        "n-gram never finds anything",
        honest(speculation=LOOKED_UP),
        _measures(levels={1: (0.0, ()), 4: (0.0, ())}),
        "speculation",
    ),
    NoOp(
        "speculation off above a batch size", honest(speculation=DRAFTED), _measures(levels=SERVED_TWICE), "speculation"
    ),
    NoOp(
        "a schedule that turns it off everywhere",
        honest(speculation=SCHEDULED),
        _measures(levels={1: (0.0, ()), 16: (0.0, ())}),
        "speculation",
    ),
    NoOp(
        "speculation off for most of a level",
        honest(speculation=HEAD),
        _measures(levels={8: (0.2, (0.6, 0.4))}),
        "speculation",
    ),
    NoOp(
        "not one drafted token accepted",
        honest(speculation=DRAFTED),
        _measures(levels={1: (1.0, (0.0, 0.0))}),
        "speculation",
    ),
    NoOp(
        "acceptance made up",
        honest(speculation=DRAFTED),
        _does(arguments={"speculative_config": {"rejection_sample_method": "synthetic"}}),
        "speculation",
    ),
    NoOp("speculation that nobody asked for", honest(), _does(speculation=("mtp", "target-model", 1)), "speculation"),
    NoOp("weights silently in 16 bits", honest("w8a8"), _does(quantization=None, kernels=()), "quantization"),
    NoOp("weights of another size", honest("w8a8"), _does(gib=0.25), "quantization"),
    NoOp("random weights", honest(), _does(load_format="dummy"), "quantization"),
    NoOp("a quantized folder in place of the original", honest(), _does(quantization="awq", gib=0.25), "quantization"),
    NoOp(
        "kernel that computes in 16 bits",
        honest("w8a8"),
        _does(kernels=("Using EmulationInt8LinearKernel for CompressedTensorsW8A8Int8",)),
        "kernel",
    ),
    NoOp("no layer is quantized: all ignored", honest("w4a16"), _does(kernels=()), "kernel"),
    NoOp(
        "activations not quantized",
        honest("w8a8"),
        _does(kernels=("Using CPUWNA16LinearKernel for CompressedTensorsWNA16",)),
        "kernel",
    ),
    NoOp("weights only, as the hardware lacks 8 bits", honest("w8a8"), _does(notes=(FP8_WEIGHTS_ONLY,)), "kernel"),
    NoOp("compile cache missed", honest(shipped=True), _measures(started="cold"), "compilation"),
    NoOp(
        "eager instead of compiled",
        honest(),
        _both(_does(eager=True, mode="NONE: 0"), _measures(started="eager")),
        "compilation",
    ),
    NoOp(
        "compilation switched off by level",
        honest(),
        _both(_does(mode="NONE: 0"), _measures(started="eager")),
        "compilation",
    ),
    NoOp(
        "compiled instead of eager",
        honest(serving=Serving(enforce_eager=True)),
        _does(eager=False, mode="VLLM_COMPILE: 3"),
        "compilation",
    ),
    NoOp("compile cache loaded by an eager server", honest(shipped=True), _measures(started="eager"), "compilation"),
    NoOp(
        "prefix cache off",
        honest(serving=Serving(prefix_caching=True)),
        _does(prefixes=False, notes=(NO_PREFIXES,)),
        "prefix_cache",
    ),
    NoOp(
        "prefix cache on, but never hit",
        honest(serving=Serving(prefix_caching=True)),
        _measures(repeats=0.4),
        "prefix_cache",
    ),
    NoOp(
        "prefix cache on where off was asked",
        honest(serving=Serving(prefix_caching=False)),
        _does(prefixes=True),
        "prefix_cache",
    ),
    NoOp(
        "cache precision ignored",
        honest(serving=Serving(kv_cache_dtype="fp8")),
        _does(cache="auto", element_bytes=2.0),
        "kv_cache",
    ),
    NoOp(
        "cache says fp8, holds 16 bits",
        honest(serving=Serving(kv_cache_dtype="fp8")),
        _does(element_bytes=2.0),
        "kv_cache",
    ),
    NoOp("cache quantized unasked", honest(), _does(cache="fp8", element_bytes=1.0), "kv_cache"),
    NoOp("context shortened", honest(serving=Serving(max_model_len=4096)), _does(context=2048), "context"),
    NoOp("another dtype", honest(serving=Serving(dtype="bfloat16")), _does(dtype="float16", notes=(CAST,)), "dtype"),
    NoOp("16-bit model computed in 32", honest(), _does(dtype="float32", element_bytes=4.0), "dtype"),
    NoOp("tensor parallel ignored", honest(serving=Serving(tensor_parallel=2)), _does(parallel=1), "tensor_parallel"),
    NoOp(
        "more sequences at once than asked",
        honest(serving=Serving(max_num_seqs=2)),
        _does(arguments={}, running=8),
        "streams",
    ),
    NoOp(
        "fewer sequences at once than asked",
        honest(serving=Serving(max_num_seqs=64)),
        _does(arguments={"max_num_seqs": 8}),
        "streams",
    ),
    NoOp("chunked prefill off", honest(serving=Serving(chunked_prefill=True)), _does(chunked=False), "chunked_prefill"),
)


def honest_runs(number: int, seed: int = 0) -> Iterator[Run]:
    """At random, of everything that can be asked; what an honest server measures varies too."""
    rng = random.Random(seed)
    for _ in range(number):
        serving = _serving(rng)
        speculation = rng.choice((None, DRAFTED, LOOKED_UP, ADAPTIVE, HEAD, SCHEDULED))
        run = honest(
            rng.choice(tuple(SIZES)), serving, speculation, shipped=not serving.enforce_eager and rng.random() < 0.3
        )
        arguments = {} if rng.random() < 0.5 else run.surface.arguments  # vLLM leaves out what is its own default
        run = replace(
            run, surface=replace(run.surface, running=rng.randint(0, run.surface.running), arguments=arguments)
        )
        levels = {
            streams: _measured(rng, speculation, streams) for streams in rng.sample((1, 2, 4, 8, 16), rng.randint(1, 3))
        }
        repeats = rng.choice((0.0, 0.05, 0.5))
        hits = None if rng.random() < 0.2 else repeats * rng.uniform(0.3, 1.0) if run.surface.prefixes else 0.0
        yield replace(run, levels=levels, repeats=repeats, hits=hits, started=_started(rng, run))


def _serving(rng: random.Random) -> Serving:
    return Serving(
        dtype=rng.choice(("auto", "bfloat16", "float16", "float32")),
        max_model_len=rng.choice((None, 512, 4096)),
        max_num_seqs=rng.choice((None, 1, 8, 64)),
        tensor_parallel=rng.choice((1, 1, 2)),
        kv_cache_dtype=rng.choice(("auto", "fp8")),
        prefix_caching=rng.choice((None, True, False)),
        chunked_prefill=rng.choice((None, True, False)),
        enforce_eager=rng.random() < 0.3,
    )


def _measured(rng: random.Random, speculation: Speculation | None, streams: int) -> tuple[float, tuple[float, ...]]:
    """n-grams propose where they find something, adaptive ones at times nothing, others nearly always; what is accepted
    falls with the position."""
    if speculation is None or (
        speculation.tokens_by_batch and not scheduled_tokens(speculation.tokens_by_batch, streams)
    ):
        return 0.0, ()
    if speculation.method == "ngram_adaptive" and rng.random() < 0.3:
        return 0.0, ()
    share = rng.uniform(0.02, 0.6) if speculation.method.startswith("ngram") else rng.uniform(0.85, 1.0)
    first = rng.uniform(0.05, 0.9)
    return share, tuple(first * 0.7**position for position in range(speculation.tokens))


def _started(rng: random.Random, run: Run) -> str:
    return run.started if run.started != "cold" else rng.choice(("cold", "cached"))


def false_alarms(runs: Sequence[Run]) -> list[tuple[Run, Finding]]:
    return [(run, finding) for run in runs for finding in failed_findings(run.findings())]
