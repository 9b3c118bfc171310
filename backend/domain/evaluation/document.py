"""The document of an evaluation: its variants, options and results. Other tools may rely on it.

Names follow the documentation page of the SageMaker toolkit where it has one. Times in milliseconds unless the name
ends in `_s`; prices in USD.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, ValidationError

from backend.domain.errors import Unreadable, WrittenByNewer
from backend.domain.evaluation.blocks.sequential_tests import SequentialTest
from backend.domain.evaluation.evidence.schema import Drafting, Finding, Lossless
from backend.domain.evaluation.outcome import EQUIVALENCE, Obstacle, Outcome, SloCheck, VerdictKind, verdict_kind
from backend.domain.evaluation.resource_use import Energy, StepBytes
from backend.domain.evaluation.soundness import WithValidity
from backend.domain.evaluation.startup import Startup
from backend.domain.evaluation.tasks.task_scores import TaskScore
from backend.domain.frozen import Facts, Frozen
from backend.domain.load.load import Load
from backend.domain.load.options import LoadOptions
from backend.domain.load.prompt_lines import GREEDY_PROMPTS
from backend.domain.load.records import LevelAudit
from backend.domain.recipe.recipe import Serving, Speculate
from backend.domain.recipe.speculation import PROMPT_LOOKUP, SPECULATE, KnownSpeculation, Schedule
from backend.domain.validation import matching, unreadable
from backend.domain.workload.workload import WorkloadSummary

SCHEMA: Literal[1] = 1
"""Version of the document; it changes where a field changes its name or meaning."""
LATENCY_METRICS = ("ttft_ms", "tpot_ms", "chunk_gap_ms", "client_latency_ms", "content_latency_ms")


class Speculation(Frozen):
    """A resolved `speculate` step. `draft_path` is absolute; None where no other weights draft.

    Rare fields are left out of the written form.
    """

    method: KnownSpeculation
    tokens: int
    draft_path: str | None = None
    draft_gguf: str | None = Field(None, exclude_if=lambda value: value is None)
    """The draft's GGUF file, the first part of one that was split, where llama.cpp serves."""
    heterogeneous_vocab: bool = Field(False, exclude_if=lambda value: not value)
    prompt_lookup: tuple[int, int] | None = Field(None, exclude_if=lambda value: value is None)
    """Shortest and longest n-gram, where they are not the usual ones."""
    tokens_by_batch: Schedule | None = Field(None, exclude_if=lambda value: value is None)
    proposer: str | None = Field(None, exclude_if=lambda value: value is None)
    proposers: str | None = Field(None, exclude_if=lambda value: value is None)
    """The folder in which that class lies."""
    synthetic: float | None = Field(None, ge=0, le=1, exclude_if=lambda value: value is None)
    """Accept each proposed token with this probability whatever it is, to see what speculation costs: the answers are
    noise."""

    @classmethod
    def from_step(cls, step: Speculate, draft: str | None, proposers: str | None = None) -> Speculation:
        """`draft` is the folder of the draft or head, `proposers` that of classes."""
        own = SPECULATE[step.method].engine_method == "custom_class"
        lookup = step.prompt_lookup if step.method == "ngram" and step.prompt_lookup != PROMPT_LOOKUP else None
        return cls(
            method=step.method,
            tokens=step.tokens,
            draft_path=draft if step.drafts else None,
            heterogeneous_vocab=step.heterogeneous_vocab,
            prompt_lookup=lookup,
            tokens_by_batch=step.tokens_by_batch,
            proposer=step.proposer,
            proposers=proposers if own else None,
        )


class Remote(Frozen):
    """An endpoint of SageMaker as AWS described it when the evaluation was submitted: only its answers can be seen."""

    endpoint: str
    """Its name at AWS."""
    region: str
    instances: str
    """Its running instances in words: `2 x ml.g6.12xlarge`."""
    artifact: str | None = None
    """Artifact that Whetstone deployed there."""
    usd_per_hour: float | None = None
    """On-demand price of all instances; None where it is not known."""
    price_region: str | None = None
    """The region of that price, which may be another one."""
    discount: float = Field(0.0, ge=0, lt=1)
    """The discount that the price includes already."""
    findings: tuple[str, ...] = ()
    """Sentences on what its answer to a probe and its log proved, and what they did not."""


class Variant(Frozen):
    """Anything that can be served and measured: a model folder under serving settings, or a URL that already
    answers."""

    name: str
    source: str
    """Text that the user wrote: a model id, a folder, an artifact id or a URL."""
    kind: Literal["model", "artifact", "url"]
    model_path: str | None = None
    original_path: str | None = None
    """The unoptimized parent, for quality; None where unknown."""
    url: str | None = None
    served_name: str | None = None
    """The model name to send to a URL."""
    remote: Remote | None = None
    """Set for a URL that is an endpoint of SageMaker."""
    serving: Serving = Serving()
    engine_reason: str | None = Field(None, exclude_if=lambda value: value is None)
    """Why its engine was chosen, in one sentence, where a person left the choice open."""
    speculation: Speculation | None = None
    compile_cache: str | None = None
    gguf: str | None = Field(None, exclude_if=lambda value: value is None)
    """The GGUF file that is served, the first part of one that was split; `model_path` is then the folder that was
    made from it, whose tokenizer and config are the same."""
    neuron: Facts | None = None
    """For an artifact that was compiled for Neuron: the fields of its plan, with their key."""
    stored_at: str | None = None
    """For an artifact in a bucket: the address of its manifest; the paths are then those of a copy on this machine."""
    recipe_hash: str | None = None
    bytes_on_disk: int | None = None


class EvaluateOptions(LoadOptions):
    """The load, and the questions asked beside it."""

    seed: int = 0
    """Seed of the sampling, of random arrivals and of built-in workloads."""
    quality: bool = True
    """Perplexity, KL divergence and greedy match beside the speed."""
    quality_text: str | None = None
    """Text on which perplexity and KL divergence are measured: code, prose, chat, "chat and prose", or a text, JSONL or
    Parquet file that the model was neither trained nor calibrated on."""
    quality_prompts: int = Field(GREEDY_PROMPTS, ge=4, le=GREEDY_PROMPTS, exclude_if=lambda v: v == GREEDY_PROMPTS)
    """Prompts whose greedy answers are compared; held-out text is asked in proportion. Fewer give wider intervals."""
    lossless: bool = False
    """Measure whether speculation keeps the answers: each variant that speculates and the same without it are asked the
    same prompts, greedy answers are compared token by token and sampled ones by their distribution. Some minutes a
    variant."""
    tasks: tuple[str, ...] = ()
    """Score lm-eval tasks on what is served: a name that `whetstone tasks list` shows, next-line, a YAML file, or a
    folder of them; repeatable. Needs `whetstone engines install quality`."""
    task_limit: int | None = Field(None, ge=1)
    """Only the first so many samples of each task."""
    price_per_hour: float | None = Field(None, ge=0)
    """Hourly price of the machine; without it prices stay empty."""
    discount: float = Field(0.0, ge=0, lt=1)
    """Share taken off the hourly price, 0 to 1."""
    input_output_ratio: float = Field(3.0, gt=0)
    """Input tokens an output token, for the blended price."""
    bearer_env: (
        Annotated[str, matching(r"[A-Za-z_][A-Za-z0-9_]*", "it must be a variable's name, not the token")] | None
    ) = None
    """Environment variable that holds the bearer token of variants that are URLs; the token itself is never stored."""
    interleave: Literal["auto", "resident", "restart"] = "auto"
    """resident: all servers up, which you say they fit; restart: one after another; auto: resident where they fit."""
    same_within: float = Field(EQUIVALENCE, ge=0.01, le=0.5, exclude_if=lambda share: share == EQUIVALENCE)
    """Share by which two throughputs may differ and still count as the same."""
    starts_apart: bool = False
    """Start servers one after the other, so that each one's time to ready is measured; else, on a processor, those that
    stay up start two at a time, with auto after the first, and only what starts alone is measured."""

    def hourly_price(self, variant: Variant) -> float | None:
        """Return the price of the variant's own instances, else that given for the machine."""
        own = variant.remote.usd_per_hour if variant.remote else None
        return self.price_per_hour if own is None else own


class Summary(Frozen):
    """Order statistics of one metric over a level's good requests; `ci95` is of the mean over repeats, None for one
    repeat."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    ci95: tuple[float, float] | None = None


class Price(Frozen):
    per_million_input: float | None
    per_million_output: float | None
    per_million_total: float | None
    blended: float | None
    """(r x input + output) / (r + 1) with the ratio r as asked, the hour split between prefill and decode as the audit
    says."""
    blended_sagemaker: float | None
    """The announcement's formula: ignores prefill, prices input at 0."""


class Level(WithValidity):
    """One variant at one load, over all repeats. A latency is None where no request gave one.

    Tokens/s are None where answers came without token counts: a rate of the others would be too low. They are 0 where
    every request failed.
    """

    load: Load
    concurrency: int
    """Requests under way: the streams of a closed loop; in an open loop the measured mean, rounded, at least 1."""
    repeats: int
    requests: int
    duration_s: float
    ttft_ms: Summary | None
    tpot_ms: Summary | None
    chunk_gap_ms: Summary | None
    tokens_per_chunk: float | None
    client_latency_ms: Summary | None
    content_latency_ms: Summary | None
    input_tokens_per_s: float | None
    output_tokens_per_s: float | None
    steady_output_tokens_per_s: float | None
    input_tokens_per_s_per_request: float | None
    output_tokens_per_s_per_request: float | None
    input_tokens: float | None
    """Mean per request, as the documentation page defines it."""
    output_tokens: float | None
    invocations: int
    invocation_errors: int
    tokenizer_failed: int
    """Answers whose text came without a token count."""
    empty_responses: int
    short_responses: int = 0
    """Answers of one token that the model ended, where more were requested."""
    errors: dict[str, int] = Field(default_factory=dict)
    """Errors by kind: refused, timeout, reset, http_429, malformed..."""
    buffered_responses: int = 0
    """Answers of several chunks that came at once: the time between their tokens is not known."""
    looping_outputs: int = 0
    """Answers whose end repeats one short cycle: they inflate the gain of speculative decoding."""
    price: Price | None = None
    acceptance_rate: float | None = None
    """Accepted / drafted tokens from the server's counters over the level; `VariantResult.no_acceptance` says why it is
    None."""
    drafting: Drafting | None = None
    """Drafted tokens, position by position; None without speculation, and where the server does not report them."""
    prefix_cache_hit_rate: float | None = None
    """Share of prompt tokens from the server's prefix cache; None where it does not report them."""
    prefix_cache_expected: float | None = None
    """The most that the workload itself repeats (`prefix_cache`): a hit rate clearly above it makes the level
    invalid."""
    client_limited: bool = False
    audit: LevelAudit = LevelAudit()
    blocks: list[dict[str, float]] = Field(default_factory=list)
    """One mapping for each slice, metric -> value: what the comparison pairs. A repeat is one slice, or several where
    the requests of the variants alternated."""
    requests_per_s: float | None = None
    """Answers without error per second of the level's duration."""
    slo: SloCheck | None = None
    """In a sweep: whether this level meets the objectives."""
    energy: Energy | None = None
    """None where the machine reports none, and for an endpoint that was not started here."""

    @property
    def answers(self) -> int:
        """Requests that did not fail."""
        return self.invocations - self.invocation_errors


class Quality(Frozen):
    perplexity: float | None = None
    perplexity_original: float | None = None
    kl_mean: float | None = None
    kl_ci95: tuple[float, float] | None = None
    kl_median: float | None = None
    kl_p99: float | None = None
    kl_p999: float | None = None
    """Over positions of the held-out text; the mean's interval is over its windows."""
    same_top: float | None = None
    """Share of positions of the held-out text whose most probable token is the original's, the text itself as
    context."""
    same_top_ci95: tuple[float, float] | None = None
    text: str | None = None
    """The held-out text: the name of a bundled one, or of a file."""
    greedy_match: float | None = None
    """Share of identical tokens in greedy answers of the served variants to the same prompts, up to the shorter one. Of
    the baseline: in its own answers when it is asked a second time, the noise that the others' figure has in it."""
    served_kl: float | None = None
    """KL divergence of what is served from the served original, by the probabilities that both tell: a lower bound."""
    served_kl_ci95: tuple[float, float] | None = None
    served_same_top: float | None = None  # share of positions whose most probable token is the same as served
    greedy_self: float | None = None
    """The baseline's own `greedy_match`, beside a variant's."""
    first_divergence_share: float | None = None
    """First divergences / generated tokens."""
    exact_match: float | None = None
    """Share of those answers with the same words as the baseline's (`answer_agreement`)."""
    token_f1: float | None = None
    """Mean F1 over their words."""
    answers: int | None = None
    """Number of answers compared: those that both variants gave. None where they were not counted."""
    answers_asked: int | None = None
    """Number of answers that were requested."""
    greedy_ci95: tuple[float, float] | None = None
    exact_ci95: tuple[float, float] | None = None
    token_f1_ci95: tuple[float, float] | None = None
    """95% intervals over prompts such as those that were asked (`answer_agreement`)."""
    scored: Literal["dequantized", "original", "unavailable"] = "dequantized"
    note: str | None = None

    @property
    def known_as_served(self) -> bool:
        """Return whether more was lost as served than by the scored weights, or only that was measured."""
        return self.served_kl is not None and (self.kl_mean is None or self.served_kl > self.kl_mean)

    @property
    def known_kl(self) -> float | None:
        """Mean KL divergence, nats a token: the larger of that of the scored weights and that as served."""
        return self.served_kl if self.known_as_served else self.kl_mean

    @property
    def known_same_top(self) -> float | None:
        """Share of positions with the original's most probable token, measured like `known_kl`."""
        return self.served_same_top if self.known_as_served else self.same_top


class VariantResult(Frozen):
    name: str
    variant: Variant
    levels: list[Level]
    quality: Quality | None = None
    tasks: list[TaskScore] = Field(default_factory=list)
    """Scores of lm-eval tasks on the served variant; none where none were asked for."""
    ready_seconds: float | None = None
    """Until its server answered, in the fastest of its starts alone."""
    starts: list[Startup] = Field(default_factory=list)
    """Every start of its server, phase by phase; the first may compile what the others load."""
    step: StepBytes | None = None
    """Bytes that a step reads from memory; None for a URL, for experts and on hardware other than the processor."""
    peak_rss_bytes: int | None = None
    """Peak memory of its server with all processes, shared pages counted once."""
    speculates: bool | None = None
    """True if its server drafts tokens. None where that is not known: a server of others without counters of it."""
    weights_sha256: str | None = None
    """SHA-256 of the files that it was served from (`folders.digest`); None for a URL."""
    findings: list[Finding] = Field(default_factory=list)
    """Checks that it was served as requested; none for a server that was not started here."""
    lossless: Lossless | None = None
    """Result of the test that speculation leaves answers unchanged; None where it was not measured."""
    lost: str | None = None
    """Description of the failure if its server ended before all was measured; None otherwise."""

    @property
    def timed_starts(self) -> list[Startup]:
        """Return the starts whose time to ready is a result: no other server started meanwhile. The slowest first."""
        return sorted((start for start in self.starts if not start.beside), key=lambda start: -start.ready_s)

    @property
    def no_acceptance(self) -> str:
        """Why there is no acceptance rate, in words: `no speculation` only where that is known."""
        ours = self.variant.kind != "url"
        if self.speculates or (ours and self.variant.speculation is not None):
            return "not measured"
        return "no speculation" if ours or self.speculates is False else "not told"


class Comparison(Frozen):
    """One metric of one variant against the baseline at one load. `ratio` is variant / baseline, None without figures.

    `ci95` is of the ratio and covers it at the level of its test (`comparison`); `p_value` is Holm-adjusted, None
    without a test.
    """

    load: Load
    metric: str
    baseline: str
    variant: str
    outcome: Outcome
    why: Obstacle | None
    """None where a test was made."""
    ratio: float | None
    ci95: tuple[float, float] | None
    p_value: float | None = None
    more_blocks: int | None = None
    """Number of further blocks that would decide an undecided test, by the measured spread (`maths.sample_size`); None
    where even many would not."""
    secondary: bool = Field(False, exclude_if=lambda value: not value)
    """Tested by itself, without correction for the number of tests; older evaluations corrected all of them."""

    @property
    def significant(self) -> bool:
        """A test named a difference."""
        return self.outcome in {"better", "worse"}

    @property
    def kind(self) -> VerdictKind:
        """Return the kind of verdict that a reader is shown."""
        return verdict_kind(self.outcome, self.why)


class Evaluation(Frozen):
    """The whole document. `read_evaluation` is the way in for one that was stored."""

    model_config = ConfigDict(serialize_by_alias=True)

    schema_: Literal[1] = Field(alias="schema")
    variants: list[VariantResult]
    comparison: list[Comparison]
    workload: WorkloadSummary
    hardware: Facts
    """Facts that `hardware.probe` reported; the fields differ from machine to machine."""
    versions: dict[str, str]
    """Version of each library that was used."""
    options: EvaluateOptions
    """Requested options; `repeats` is the number of blocks, also where a rule decided it."""
    interleave: str
    measured_at: str
    warnings: list[str] = Field(default_factory=list)
    continues: str | None = None
    """Id of the evaluation whose blocks are the first of these."""
    sessions: tuple[int, ...] = ()
    """Blocks of each time that its servers were started for it: of an evaluation that was continued, more than one
    figure."""
    looks: tuple[SequentialTest, ...] = ()
    """Every test so far, those of the evaluations that it continues too; `comparison` is the last one."""

    @property
    def has_price(self) -> bool:
        """Tell whether any variant has an hourly price."""
        return any(self.options.hourly_price(result.variant) is not None for result in self.variants)

    @property
    def loads(self) -> list[Load]:
        """Every load that any variant was measured at, rising."""
        return sorted({level.load for result in self.variants for level in result.levels})


def read_evaluation(text: str | bytes) -> Evaluation:
    """Read a stored document. Raises WrittenByNewer, or Unreadable for an older schema or anything else."""
    try:
        return Evaluation.model_validate_json(text)
    except ValidationError as error:
        raise _unreadable(error) from None


def _unreadable(error: ValidationError) -> Unreadable:
    first = error.errors()[0]
    stored = first["input"]
    if first["loc"] == ("schema",) and not (isinstance(stored, int) and stored > SCHEMA):
        written = "of no schema" if first["type"] == "missing" else f"of schema {str(stored)[:40]}"
        return Unreadable(f"The evaluation is {written}, and this version reads schema {SCHEMA}: measure it again.")
    if isinstance(newer := unreadable(error, "the evaluation"), WrittenByNewer):
        return newer
    return Unreadable(
        f"The evaluation is damaged at {'.'.join(map(str, first['loc'])) or 'its beginning'}: measure it again."
    )
