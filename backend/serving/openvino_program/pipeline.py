"""OpenVINO GenAI's continuous batching, stepped between the turns of the server's event loop.

`ContinuousBatchingPipeline.step` of GenAI 2026.4 holds the interpreter's lock while it computes
(src/python/py_continuous_batching_pipeline.cpp), so a thread of its own would gain nothing: the loop takes turns.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from backend.serving.openvino_program.requests import Completion, Refusal, Sampling

BLOCK = 32
"""Tokens in a block of the cache on a processor (GenAI, cache_orchestrator)."""
TURNS = 4
"""Turns of the event loop between two steps: data that came becomes a request in three."""
PROBED_EVERY = 8
"""Positions between two of a prompt whose most probable tokens are reported: each reads the prompt's beginning anew."""
WARM_UP_TOKENS = 8


class PipelineOptions(NamedTuple):
    """`ngram_tokens` and `ngram_most` are draft tokens and the longest n-gram of prompt lookup; 0 is without.

    `step_tokens`: the most tokens of one step; `eviction_tokens`: the most that the cache keeps of a request while it
    generates; `sparse_attention`: how prompts are read, by GenAI's name. 0 and empty leave it to GenAI.
    """

    model: Path
    device: str
    threads: int
    cache_type: str
    cache_tokens: int
    most_sequences: int
    prefix_caching: bool
    ngram_tokens: int = 0
    ngram_most: int = 0
    step_tokens: int = 0
    eviction_tokens: int = 0
    sparse_attention: str = ""


class NewTokens(NamedTuple):
    """Tokens that one step added to an answer; `finish` says why they are the last, None where more follow."""

    choice: int
    ids: list[int]
    logprobs: list[float]
    finish: str | None
    score: float = 0.0


Arrivals = asyncio.Queue[NewTokens | None]
"""The new tokens of a request's answers; None where its client is gone."""


class Generation:
    """One answer that is being computed."""

    def __init__(self, choice: int, handle: Any, arrivals: Arrivals) -> None:
        self.choice, self.handle, self.arrivals = choice, handle, arrivals


def make_scheduler(genai: Any, options: PipelineOptions) -> Any:
    """Return GenAI's `SchedulerConfig` of the options."""
    # 1. What every server has.
    scheduler = genai.SchedulerConfig()
    scheduler.num_kv_blocks = -(-options.cache_tokens // BLOCK)
    scheduler.max_num_seqs = options.most_sequences
    scheduler.enable_prefix_caching = options.prefix_caching
    if options.step_tokens:
        scheduler.max_num_batched_tokens = options.step_tokens
    # 2. The first block and the newest quarter are always kept; of the rest those with the least attention are dropped.
    if options.eviction_tokens:
        recent = max(1, options.eviction_tokens // BLOCK // 4) * BLOCK
        scheduler.use_cache_eviction = True
        scheduler.cache_eviction_config = genai.CacheEvictionConfig(
            BLOCK, recent, options.eviction_tokens, genai.AggregationMode.NORM_SUM
        )
    # 3. Prompts.
    if options.sparse_attention:
        scheduler.use_sparse_attention = True
        scheduler.sparse_attention_config = genai.SparseAttentionConfig(
            getattr(genai.SparseAttentionMode, options.sparse_attention.upper())
        )
    return scheduler


class Pipeline:
    """One model in continuous batching. `run` steps it for as long as the server lives."""

    def __init__(self, options: PipelineOptions) -> None:
        import openvino_genai

        self._genai, self.options = openvino_genai, options
        # 1. The scheduler and the device's properties.
        self.scheduler = scheduler = make_scheduler(openvino_genai, options)
        properties: dict[str, Any] = {}
        if options.device == "CPU":
            properties["INFERENCE_NUM_THREADS"] = options.threads
        if options.cache_type != "auto":
            properties["KV_CACHE_PRECISION"] = options.cache_type
        if options.ngram_tokens:
            properties["prompt_lookup"] = True
        # 2. The pipeline, which compiles for the first sizes of its input before anybody asks.
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            str(options.model), scheduler, options.device, properties
        )
        self._active: list[Generation] = []
        self._work = asyncio.Event()
        self._number = 0
        self._warm_up()
        metrics = self._pipeline.get_metrics()
        self.cache_bytes_per_token = metrics.cache_size_in_bytes / (scheduler.num_kv_blocks * BLOCK)
        """Bytes as GenAI counts them: an element of u4 as one byte (2026.4)."""

    def add(self, prompt: Sequence[int], config: Any, choice: int, arrivals: Arrivals) -> Generation:
        """Begin an answer, whose tokens come into `arrivals`. Raises Refusal."""
        import numpy
        import openvino

        self._number += 1
        ids = openvino.Tensor(numpy.array([prompt], dtype=numpy.int64))
        try:
            handle = self._pipeline.add_request(self._number, ids, config)
        except RuntimeError as error:
            raise Refusal(f"OpenVINO GenAI refuses the request: {_last_line(error)}") from None
        generation = Generation(choice, handle, arrivals)
        self._active.append(generation)
        self._work.set()
        return generation

    def cancel(self, generations: Sequence[Generation]) -> None:
        """Stop answers that nobody waits for any more."""
        for generation in generations:
            if generation in self._active:
                self._active.remove(generation)
                generation.handle.cancel()

    async def run(self) -> None:
        """Step while there is anything to compute, and wait while there is not."""
        while True:
            if not self._pipeline.has_non_finished_requests():
                self._work.clear()
                await self._work.wait()
            self._pipeline.step()
            self._hand_out()
            for _ in range(TURNS):
                await asyncio.sleep(0)

    def running(self) -> int:
        """Return how many answers are being computed or wait."""
        return len(self._active)

    def config(self, request: Completion, most_tokens: int, ending_ids: frozenset[int], choice: int) -> Any:
        """Return GenAI's configuration of one answer."""
        config = self._plain_config(most_tokens, ending_ids, request.ignore_eos)
        config.min_new_tokens = request.least_tokens
        config.logprobs = int(request.logprobs)
        _set_sampling(config, request.sampling, choice)
        return config

    async def most_probable(self, prompt: Sequence[int], most: int) -> list[dict[int, float] | None]:
        """Return the log-probabilities of the `most` probable tokens at each PROBED_EVERY-th position, None elsewhere.

        GenAI reports the chosen token's alone. A beam search over one token has the most probable ones, with their
        log-probabilities as scores (src/cpp/src/sampling/sampler.cpp). Raises Refusal.
        """
        if self.options.ngram_tokens:
            raise Refusal("prompt_logprobs does not go with prompt lookup: serve without it.", "prompt_logprobs")
        # 1. A beam for each token.
        config = self._plain_config(1, frozenset(), ignore_eos=True)
        config.num_beams = config.num_return_sequences = max(2, most)
        # 2. Each beginning of the prompt by itself.
        positions: list[dict[int, float] | None] = [None for _ in prompt]
        for length in range(PROBED_EVERY, len(prompt), PROBED_EVERY):
            arrivals = Arrivals()
            self.add(prompt[:length], config, 0, arrivals)
            beams: dict[int, float] = {}
            while len(beams) < config.num_return_sequences:
                beam = await arrivals.get()
                if beam is None or not beam.ids:
                    raise Refusal("The prompt does not fit the server's cache: send a shorter one.", "prompt")
                beams[beam.ids[0]] = beam.score
            positions[length] = dict(sorted(beams.items(), key=lambda beam: -beam[1])[:most])
        return positions

    def _plain_config(self, most_tokens: int, ending_ids: frozenset[int], ignore_eos: bool) -> Any:
        config = self._genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = most_tokens, ignore_eos, False
        if ending_ids:
            config.stop_token_ids = set(ending_ids)
            config.eos_token_id = min(ending_ids)
        if self.options.ngram_tokens:
            config.num_assistant_tokens, config.max_ngram_size = self.options.ngram_tokens, self.options.ngram_most
        return config

    def _hand_out(self) -> None:
        """Give the tokens of the last step to those who wait for them."""
        running = self._genai.GenerationStatus.RUNNING
        for generation in list(self._active):
            handle = generation.handle
            ended = handle.get_status() != running
            outputs = []
            while handle.can_read():
                outputs += list(handle.read().values())
            for output in outputs:
                finish = self._finish(output) if ended else None
                generation.arrivals.put_nowait(
                    NewTokens(generation.choice, output.generated_ids, output.generated_log_probs, finish, output.score)
                )
            if ended:
                self._active.remove(generation)
                if not outputs:  # GenAI ignores what never fits its cache
                    generation.arrivals.put_nowait(NewTokens(generation.choice, [], [], "ignored"))

    def _finish(self, output: Any) -> str:
        return "length" if output.finish_reason == self._genai.GenerationFinishReason.LENGTH else "stop"

    def _warm_up(self) -> None:
        config = self._plain_config(2, frozenset(), ignore_eos=True)
        self.add(list(range(1, WARM_UP_TOKENS + 1)), config, 0, Arrivals())
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
        self._active.clear()


def _set_sampling(config: Any, sampling: Sampling, choice: int) -> None:
    """Set how tokens are chosen; each of several answers to a prompt has a seed of its own."""
    config.repetition_penalty = sampling.repetition_penalty
    config.presence_penalty, config.frequency_penalty = sampling.presence_penalty, sampling.frequency_penalty
    if sampling.temperature == 0:
        return
    config.do_sample, config.temperature = True, sampling.temperature
    config.top_p, config.min_p = sampling.top_p, sampling.min_p
    if sampling.top_k:
        config.top_k = sampling.top_k
    first = secrets.randbits(63) if sampling.seed is None else sampling.seed
    config.rng_seed = (first + choice) % 2**64


def check_device(device: str) -> None:
    """Exit with one sentence where OpenVINO does not see the device."""
    import openvino

    devices = openvino.Core().available_devices
    if device not in devices and device.partition(".")[0] not in devices:
        raise SystemExit(f"OpenVINO sees no device {device} here: it sees {', '.join(devices) or 'none'}")


def _last_line(error: Exception) -> str:
    """Return the sentence of an OpenVINO error, which begins with the place in its source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
