"""A recipe: an ordered stack of technique steps plus serving settings.

Frozen, hashed by content, unknown fields refused. A step is written as a mapping with one key, its technique:
`quantize: {method: w8a8}`. Knows nothing of models, of hardware (`domain/rules` does) and of YAML
(`service/plans/recipe_files` does).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator, model_serializer, model_validator

from backend.domain.errors import InvalidRecipe
from backend.domain.frozen import Frozen, digest
from backend.domain.model.gguf.file_types import GgufTypeName
from backend.domain.recipe import recovery, speculation
from backend.domain.recipe.methods import (
    GGUF,
    IMPORTANCES,
    STRUCTURE_OPTIONS,
    STRUCTURED,
    TARGETS,
    Importance,
    KnownMethod,
    OutsideExperts,
    Parts,
)
from backend.domain.recipe.serving_engines import AUTO, CacheType, EngineChoice, EngineName, choose_engine
from backend.domain.recipe.speculation import SPECULATE, KnownSpeculation, Schedule
from backend.domain.validation import first_flaw, matching

TECHNIQUES = ("prune", "quantize", "speculate", "compile", "shard")
"""The techniques, in the order in which they run."""


class _Step(Frozen):
    """A step that writes itself as `{technique: {fields that differ from the default}}`."""

    technique: str

    @model_serializer(mode="plain")
    def _serialize(self) -> dict[str, Any]:
        fields, always = type(self).model_fields, self._always_written()
        options = {}
        for name, value in self:
            differs = name != "technique" and value != fields[name].default
            if differs or name in always:
                options[name] = self._written_value(name, value)
        return {self.technique: options}

    def _written_value(self, field: str, value: Any) -> Any:
        return value

    def _always_written(self) -> set[str]:
        return {"method"}


class Prune(_Step):
    """Sets weights to zero, by their size or by their effect; or removes whole layers, neurons, heads or experts."""

    technique: Literal["prune"] = "prune"
    method: Literal["magnitude", "wanda", "sparsegpt", "depth", "width", "experts"]
    sparsity: float = Field(0.5, gt=0, lt=1)
    pattern: Literal["unstructured", "2:4", "4:8"] = "unstructured"
    engine: Literal["native", "llm-compressor"] = "native"
    calibration: str = "bundled"
    """Like that of a quantize step, whose file is used where both name one."""
    recover: recovery.Recover | None = None
    """A short fine-tune afterwards; `true` for its defaults."""
    cut_time: float | None = Field(None, gt=0, lt=1)
    """depth, width: share of the layers' time that is removed, at least."""
    cut_parameters: float | None = Field(None, gt=0, lt=1)
    """depth, width, experts: share of the model's parameters that is removed, at least."""
    max_bytes: int | None = Field(None, gt=0)
    """depth, width, experts: the most bytes of the weights as the whole recipe stores them."""
    importance: Importance | None = None
    """depth: empty is `similarity`, which takes one pass; width: empty is by activations alone."""
    parts: Parts | None = None
    """width: empty is `mlp`."""

    @field_validator("recover", mode="before")
    @classmethod
    def _read_recover(cls, value: Any) -> Any:
        return recovery.read_recover(value)

    @model_validator(mode="after")
    def _check_structure(self) -> Prune:
        foreign = ("sparsity", "pattern") if self.structured else STRUCTURE_OPTIONS
        stated = [name for name in foreign if getattr(self, name) != type(self).model_fields[name].default]
        if stated:
            takers = ", ".join(STRUCTURED) if not self.structured else "magnitude, wanda, sparsegpt"
            raise ValueError(f"prune: `{stated[0]}` goes with {takers}, not with `method: {self.method}`")
        rankers = [name for name, rankings in IMPORTANCES.items() if self.importance in rankings]
        for name, owners in (("importance", rankers), ("parts", ["width"])):
            if (value := getattr(self, name)) is not None and self.method not in owners:
                raise ValueError(f"prune: `{name}: {value}` goes with {owners[0]}, not with `method: {self.method}`")
        # One target at most.
        targets = [name for name in TARGETS if getattr(self, name) is not None]
        if len(targets) > 1:
            raise ValueError(f"prune: `{targets[0]}` and `{targets[1]}` are two targets: keep one of them")
        return self

    @property
    def structured(self) -> bool:
        """Tell whether whole parts are removed, so that the model becomes smaller."""
        return self.method in STRUCTURED


class Quantize(_Step):
    """Stores weights, activations or the cache in fewer bits. Empty options have the method's own values."""

    technique: Literal["quantize"] = "quantize"
    method: KnownMethod
    bits: Literal[2, 3, 4, 8] | None = None
    group_size: int | None = Field(None, gt=0)
    symmetric: bool | None = None
    act_order: bool | None = None
    """gptq: columns of the largest inputs first."""
    awq_scales: bool | None = None
    """gptq, autoround: after AWQ's scales have been searched."""
    clip: bool | None = None
    """Search smaller ranges for groups of weights."""
    activations: Literal["dynamic", "static", "none"] | None = None
    """Quantized activations: scaled a token while serving, or once from the calibration text. nvfp4: dynamic, or none
    for weights alone."""
    strength: float | None = Field(None, ge=0, le=1)
    """smoothquant: how much of the difficulty moves from activations to weights."""
    kv_cache: Literal["fp8"] | None = None
    """Store scales for an FP8 key-value cache too; the server then uses one."""
    target_bits: float | None = Field(None, gt=0)
    """rtn, awq, gptq, autoround: bits a weight on average over the quantized linears, scales and zero points counted.
    Each group of linears gets a precision by what it was measured to lose at each (docs/decisions/0013)."""
    eight_bits: Literal["int8", "w8a8"] | None = None
    """The 8-bit form of groups in a 4-bit model: weights only, for GPUs, or activations too. Empty: what is served."""
    outside_experts: OutsideExperts | None = None
    """Mixtures of experts: the form of linears outside of the experts; empty gives all the same."""
    type: GgufTypeName | None = None
    """gguf: the type of the file, by llama.cpp's name."""
    imatrix: bool | None = None
    """gguf: weigh errors by an importance matrix of the calibration text."""
    learning_steps: int | None = Field(None, ge=1, le=2000)
    """autoround: steps of each layer; its own number where it is empty."""
    rotate: bool | None = None
    """Rotate the hidden state first, folded into the weights, so that no channel is an outlier (QuaRot)."""
    loss_weights: bool | None = None
    """awq, gptq, autoround: tokens of the calibration text count by how much an error there changes the answer."""
    recover: recovery.RecoverQuantized | None = None
    """rtn, awq, gptq, autoround: a short fine-tune of what is stored (quantization-aware training); `true` for its
    defaults."""
    engine: Literal["native", "llm-compressor", "autoawq"] = "native"
    calibration: str = "bundled"
    """`bundled`, or a JSONL, Parquet or text file."""
    samples: int = Field(64, ge=1, le=4096)
    """Calibration sequences; fewer are used where the text holds fewer."""
    length: int = Field(512, ge=8, le=32768)
    """Tokens of a calibration sequence."""
    format: Literal["compressed-tensors", "autoawq"] = "compressed-tensors"

    @field_validator("recover", mode="before")
    @classmethod
    def _read_recover(cls, value: Any) -> Any:
        return recovery.read_recover(value, recovery.RecoverQuantized)


class Speculate(_Step):
    """Proposes tokens ahead, which the model then verifies."""

    technique: Literal["speculate"] = "speculate"
    method: KnownSpeculation
    draft: str | None = None
    """A model id, a folder, or `auto`, the provided one; of heads that read the target's hidden states their folder."""
    proposer: Annotated[str, matching(speculation.DOTTED, "it must be a class as package.module.Class")] | None = None
    """custom: a class in the folder of WHETSTONE_PROPOSERS, which the server runs."""
    heterogeneous_vocab: bool = False
    """draft: it has another tokenizer. Only tokens that both have are proposed (vLLM's `use_heterogeneous_vocab`)."""
    prompt_lookup_min: int | None = Field(None, ge=1, le=32)
    prompt_lookup_max: int | None = Field(None, ge=1, le=32)
    """ngram: shortest and longest n-gram that is looked up, in tokens."""
    tokens: int = Field(4, ge=1, le=speculation.MOST_TOKENS)
    """Proposed at once, at most."""
    tokens_by_batch: Schedule | None = None
    """Written `{1: 4, 8: 0}`: 4 for up to 7 sequences at a time, none from 8 on (vLLM's
    `num_speculative_tokens_per_batch_size`)."""

    @model_validator(mode="before")
    @classmethod
    def _fill_usual_tokens(cls, data: Any) -> Any:
        method = data.get("method") if isinstance(data, dict) else None
        usual = next((row.usual for name, row in SPECULATE.items() if name == method), None)
        return {"tokens": usual, **data} if usual is not None else data

    @field_validator("tokens_by_batch", mode="before")
    @classmethod
    def _read_schedule(cls, value: Any) -> Any:
        return speculation.read_schedule(value)

    @field_validator("tokens_by_batch")
    @classmethod
    def _sort_schedule(cls, value: Schedule | None) -> Schedule | None:
        return tuple(sorted(value)) if value is not None else None

    @model_validator(mode="after")
    def _check_options(self) -> Speculate:
        # 1. Every stated option must belong to the method.
        defaults = type(self).model_fields
        for option in speculation.OPTIONS:
            if getattr(self, option) != defaults[option].default and option not in SPECULATE[self.method].options:
                takes = speculation.option_takers(option)
                raise ValueError(f"speculate: `{option}` goes with {takes}, not with `method: {self.method}`")
        # 2. The n-grams must have a range.
        least, most = self.prompt_lookup
        if least > most:
            raise ValueError(f"speculate: `prompt_lookup_min` {least} is above `prompt_lookup_max` {most}: lower it")
        # 3. The schedule must agree with the draft tokens.
        if self.tokens_by_batch is not None:
            problem = speculation.schedule_problem(self.tokens_by_batch, self.tokens)
            if problem:
                raise ValueError(f"speculate: {problem}")
        return self

    def _always_written(self) -> set[str]:
        return {"method"} if SPECULATE[self.method].usual is None else {"method", "tokens"}

    def _written_value(self, field: str, value: Any) -> Any:
        return dict(value) if field == "tokens_by_batch" and value else value

    @property
    def drafts(self) -> bool:
        """Tell whether other weights propose tokens and are in memory beside the model."""
        return SPECULATE[self.method].needs in {"model", "head"}

    @property
    def prompt_lookup(self) -> tuple[int, int]:
        """(shortest, longest) n-gram. A single stated one is both where the other's default contradicts it."""
        least, most = self.prompt_lookup_min, self.prompt_lookup_max
        usual = speculation.PROMPT_LOOKUP
        return (least or min(usual[0], most or usual[0]), most or max(usual[1], least or usual[1]))

    def tokens_at(self, streams: int) -> int:
        """Return the tokens proposed for each sequence when `streams` sequences run."""
        return speculation.scheduled_tokens(self.tokens_by_batch, streams) if self.tokens_by_batch else self.tokens


class Compile(_Step):
    """Compilation ahead of time. The options are for Neuron targets alone."""

    technique: Literal["compile"] = "compile"
    stack: Literal["nxd-inference", "transformers-neuronx", "vllm-neuron"] | None = None
    """The library that compiles; None takes the one to prefer for accelerator and model type."""
    buckets: tuple[Annotated[int, Field(ge=1)], ...] | None = Field(None, min_length=1)
    """Lengths in tokens that graphs are compiled for; None doubles from 128 to the positions."""
    optimize_level: Literal[1, 2, 3] | None = None
    """The optimization level of neuronx-cc."""


class Shard(_Step):
    """Weights written one file per rank, for fast loading. The managed toolkit has it, our engines do not."""

    technique: Literal["shard"] = "shard"


Step = Annotated[Prune | Quantize | Speculate | Compile | Shard, Field(discriminator="technique")]


def run_order(step: Step) -> int:
    """Return the place of a step among the techniques, in the order in which they run."""
    return TECHNIQUES.index(step.technique)


DEVICE = "it must be CPU, GPU or GPU.N: OpenVINO batches requests on no other device, NPUs included"
BACKEND = "it must be vLLM's name of a backend, such as FLASH_ATTN"
ENGINE_OPTIONS: dict[str, tuple[EngineName, ...]] = {
    "threads": ("llama.cpp", "openvino"),
    "batch_threads": ("llama.cpp",),
    "device": ("openvino",),
    "micro_batch_tokens": ("llama.cpp",),
    "flash_attention": ("llama.cpp",),
    "block_size": ("vllm",),
    "attention_backend": ("vllm",),
    "performance_mode": ("vllm",),
    "pipeline_parallel": ("vllm",),
    "data_parallel": ("vllm",),
    "expert_parallel": ("vllm",),
    "cache_eviction_tokens": ("openvino",),
    "sparse_attention": ("openvino",),
}
"""Serving settings that some engines have."""


class Serving(Frozen):
    """The settings with which the variant is served; each field from `dtype` on that vLLM knows is its option of that
    name.

    Fields that came later are left out of the written form where nobody set them, so that recipes from before keep
    their hash.
    """

    engine: EngineChoice = Field("vllm", exclude_if=lambda value: value == "vllm")
    """`auto` is chosen when a variant is made: the variant that is served names an engine."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    max_model_len: int | None = Field(None, ge=16)
    max_num_seqs: int | None = Field(None, ge=1)
    tensor_parallel: int = Field(1, ge=1)
    kv_cache_dtype: CacheType = "auto"
    """fp8 of vLLM, q8_0 and q4_0 of llama.cpp, u8 and u4 of OpenVINO."""
    prefix_caching: bool | None = None
    chunked_prefill: bool | None = None
    enforce_eager: bool = False
    """True skips vLLM's compilation at start; false is vLLM's default."""
    threads: int | None = Field(None, ge=1, le=1024, exclude_if=lambda value: value is None)
    """llama.cpp, OpenVINO: threads that generate; None takes one a core."""
    batch_threads: int | None = Field(None, ge=1, le=1024, exclude_if=lambda value: value is None)
    """llama.cpp: threads that read prompts; None takes `threads`."""
    device: Annotated[str, matching(r"CPU|GPU(?:\.\d+)?", DEVICE)] | None = Field(
        None, exclude_if=lambda value: value is None
    )
    """OpenVINO's name of the device; None is the processor. GPUs are Intel's, and were never run here."""
    max_num_batched_tokens: int | None = Field(None, ge=16, exclude_if=lambda value: value is None)
    """The most tokens of one step, over all requests: vLLM and OpenVINO by that name, `--batch-size` of llama.cpp."""
    micro_batch_tokens: int | None = Field(None, ge=16, exclude_if=lambda value: value is None)
    """llama.cpp: the most tokens of one pass through the layers (`--ubatch-size`)."""
    flash_attention: bool | None = Field(None, exclude_if=lambda value: value is None)
    """llama.cpp; None leaves it to the engine."""
    block_size: int | None = Field(None, ge=1, le=1024, exclude_if=lambda value: value is None)
    """vLLM: tokens of a block of the key-value cache."""
    attention_backend: Annotated[str, matching(r"[A-Z][A-Z0-9_]{1,39}", BACKEND)] | None = Field(
        None, exclude_if=lambda value: value is None
    )
    """vLLM's name of the kernels for attention; on a processor there is one, so this is for GPUs."""
    performance_mode: Literal["balanced", "interactivity", "throughput"] | None = Field(
        None, exclude_if=lambda value: value is None
    )
    """vLLM: what its own choices favour."""
    pipeline_parallel: int | None = Field(None, ge=2, le=64, exclude_if=lambda value: value is None)
    """vLLM: stages of consecutive layers, each on accelerators of its own; None is one stage."""
    data_parallel: int | None = Field(None, ge=2, le=64, exclude_if=lambda value: value is None)
    """vLLM: copies of the model behind one address, each over `tensor_parallel` x `pipeline_parallel` accelerators."""
    expert_parallel: bool | None = Field(None, exclude_if=lambda value: value is None)
    """vLLM: whole experts on each accelerator, rather than a part of every expert on all of them."""
    cache_eviction_tokens: int | None = Field(None, ge=96, multiple_of=32, exclude_if=lambda value: value is None)
    """OpenVINO: the most tokens of a request that its cache keeps; the least attended are dropped."""
    sparse_attention: Literal["trishape", "xattention"] | None = Field(None, exclude_if=lambda value: value is None)
    """OpenVINO: how prompts are read with attention to a part of the tokens before each."""

    @property
    def engine_name(self) -> EngineName:
        """The engine; vLLM, which serves every recipe's result, while `auto` is still open."""
        return "vllm" if self.engine == AUTO else self.engine

    @property
    def model_devices(self) -> int:
        """Accelerators that one copy of the model is spread over."""
        return self.tensor_parallel * (self.pipeline_parallel or 1)

    @property
    def devices(self) -> int:
        """Accelerators that all copies take."""
        return self.model_devices * (self.data_parallel or 1)

    def on_engine(self, engine: EngineChoice) -> Serving:
        """Return the same settings for that engine."""
        return self if engine == self.engine else self.model_copy(update={"engine": engine})

    @model_validator(mode="after")
    def _check_engine_options(self) -> Serving:
        for option, engines in ENGINE_OPTIONS.items():
            if getattr(self, option) is not None and self.engine not in engines:
                takes = " or ".join(f"`engine: {engine}`" for engine in engines)
                raise ValueError(f"`{option}` goes with {takes}, not with {self.engine}")
        return self


class Limits(Frozen):
    """The quality floor. The optimize job fails when a limit is exceeded, unless it may fall back."""

    max_kl: float | None = Field(None, gt=0)
    max_perplexity_increase: float | None = Field(None, gt=0)
    """Relative: 0.01 allows 1 %."""
    fall_back: bool = Field(False, exclude_if=lambda value: not value)
    """Raise the precision of the groups of linears that lose most, try after try, until the limits hold. Left out of
    the written form where false, so that recipes from before it keep their hash."""


NAME_PATTERN = r"[^-\s`][^\x00-\x1f\x7f`\u2028\u2029]*"
NAME = "it must be one line without backticks, and begin with neither a dash nor a space"
"""A name appears in sentences, in commands and in the arguments of servers."""


class Recipe(Frozen):
    """An ordered stack of steps with serving settings and limits. `steps: []` is the original, unchanged."""

    name: Annotated[str, matching(NAME_PATTERN, NAME)] = Field("original", min_length=1, max_length=80)
    steps: tuple[Step, ...] = ()
    serving: Serving = Serving()
    limits: Limits = Limits()

    @model_validator(mode="before")
    @classmethod
    def _read_steps(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("steps"), list | tuple):
            return data
        return {**data, "steps": [_read_step(step) for step in data["steps"]]}

    @model_validator(mode="after")
    def _serve_what_was_made(self) -> Recipe:
        """Set the engine that serves GGUF files where a step makes one and nobody chose an engine."""
        step = self.step("quantize")
        if isinstance(step, Quantize) and step.method == GGUF and "engine" not in self.serving.model_fields_set:
            object.__setattr__(self, "serving", self.serving.model_copy(update={"engine": choose_engine(GGUF)}))
        return self

    def step(self, technique: str) -> Step | None:
        """Return the first step of that technique; None if there is none."""
        return next((step for step in self.steps if step.technique == technique), None)

    @property
    def hash(self) -> str:
        """sha256 over the canonical JSON without the name, so that equal recipes hash equal."""
        return digest(self.model_dump(mode="json", exclude={"name"}))


ORIGINAL = Recipe()


def _read_step(step: Any) -> Any:
    if not isinstance(step, dict) or "technique" in step:
        return step
    if len(step) != 1:
        raise ValueError("each step is a mapping with one key, its technique, such as `quantize: {method: w8a8}`")
    ((technique, fields),) = step.items()
    if fields is not None and not isinstance(fields, dict):
        raise ValueError(f"{technique}: the options must be a mapping, such as `{technique}: {{...}}`")
    return {"technique": technique, **(fields or {})}


def read(document: Any) -> Recipe:
    """Return a document, as parsed from YAML or JSON, as a recipe.

    Raises InvalidRecipe with one sentence that names the first wrong field.
    """
    if not isinstance(document, dict):
        raise InvalidRecipe(
            "The recipe must be a mapping with `name` and `steps`; compare it with what `whetstone recipe show awq` "
            "prints."
        )
    try:
        return Recipe.model_validate(document)
    except ValidationError as error:
        raise InvalidRecipe(first_flaw(error, TECHNIQUES).sentence("the recipe")) from None
