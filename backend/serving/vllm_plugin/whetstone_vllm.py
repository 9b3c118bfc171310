"""A vLLM plugin, loaded by every process of a CPU server: mends the compile cache, speculation above temperature 0 and
what it costs there, synthetic acceptance, Medusa heads of a reduced vocabulary, seeds of prompts that are read in
parts, 8-bit products of models in the form of transformers, and starts.

vLLM 0.32 saves what it compiled on CPU, and asks what it loads again for `finalize_loading`, which only its own GPU
backend's functions have: Inductor's plain function has not, so every start compiled again.

vLLM 0.32's CPU stand-in for `expand_kernel` hands its C++ code an int64 copy of the output and never copies it back, so
that a float tensor, the temperatures of the batch, stays uninitialised: the target's probabilities become noise, nearly
every draft token is refused and the answers are gibberish.

vLLM 0.32 draws noise over the whole vocabulary for every request of a step in which any has a draft, for the one token
that may have to stand in for a refused one: at 16 requests that costs a processor a fifth of its tokens. `sparing`
draws it for the refused ones alone, with the kernel that draws tokens elsewhere.

vLLM 0.32's CPU stand-ins for the kernels of rejection sampling assert that nobody asks for `rejection_sample_method:
synthetic`, by which the payoff map makes a draft be accepted as often as it wants; `synthetic` does what their Triton
originals do.

vLLM 0.32's Medusa heads take the reduced vocabulary of a checkpoint, `token_map`, but do not say that they did, so that
its check of what was loaded ends the server ("not initialized from checkpoint: {'token_map'}"); `mapped` says it.

vLLM 0.32 draws a token for every request of a step, also for one whose prompt is not read whole yet, and takes such a
draw back: the request's own generator, which it has where it came with a seed, is turned back by an offset. Those of a
processor have none, and the server ends ("CPU Generator does not use offset"). `undrawn` lets such requests draw from
the common one instead.

vLLM 0.32 multiplies by 8-bit weights with another kernel where a processor has AMX, which takes matrices alone: a model
that vLLM serves in the form of transformers (Phi) hands it [1, tokens, hidden], and the server ends at its first
request ("mat1 must be a 2D tensor"). `flat` makes a matrix of it, as vLLM does for its kernel elsewhere.

vLLM 0.32 begins the engine's process anew on CPU, for the sake of workers whose threads it binds: everything is
imported a second time. Where the model runs in the engine's own process (decision 0020) it is forked, before anything
was computed.

vLLM 0.32 hashes that there is speculation at all into the name of what it compiles, so that a model and the same model
with n-grams, which compute the same graph, were each compiled; `same_graph` hashes those alike (decision 0039).

vLLM 0.32 compiles every layer of a model anew, though all are alike: see whetstone_layers.py (decision 0040).

Runs under the serve environment's interpreter; imports nothing of Whetstone.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

FORK = "WHETSTONE_FORK"
"""Environment variable: the engine's process is forked from the API server's."""
LAYERS = "WHETSTONE_LAYERS"
"""Environment variable: layers that are alike are compiled once."""
WEIGHTLESS = ("ngram", "custom_class", "suffix")
"""Ways to guess tokens that look at no state of the model's."""
SAMPLER = "vllm.v1.sample.rejection_sampler"
EXPAND, GREEDY, RANDOM = (
    f"{SAMPLER}.{name}_kernel" for name in ("expand", "rejection_greedy_sample", "rejection_random_sample")
)


def expand(
    output: torch.Tensor,
    values: torch.Tensor,
    cumulative: torch.Tensor,
    replace_from: float,
    replace_to: float,
    MAX_NUM_TOKENS: int | None = None,
) -> None:
    """output[tokens] = values[batch], each repeated over its request's tokens; `cumulative` [batch] counts tokens up to
    each.

    `replace_from` becomes `replace_to` on the way. Any dtype, written in place.
    """
    import torch

    counts = torch.diff(cumulative, prepend=cumulative.new_zeros(1))
    replaced = torch.where(values == replace_from, torch.full_like(values, replace_to), values)
    output.copy_(torch.repeat_interleave(replaced, counts))


def synthetic(
    output: torch.Tensor,
    cumulative: torch.Tensor,
    drafted: torch.Tensor,
    instead: torch.Tensor,
    bonus: torch.Tensor,
    uniform: torch.Tensor,
    rates: torch.Tensor,
    chosen: torch.Tensor | None = None,
) -> None:
    """Fill `output` [batch, most drafted + 1]: each request's drafted tokens while `uniform` lies below the conditional
    rate of their position (and none is padding, -1), then the target's own token from `instead`, or `bonus` where none
    was refused.

    `cumulative` [batch] counts drafted tokens up to each request; `drafted`, `instead` and `uniform` are of all of
    them; `rates` of positions. `chosen` [batch]: only those requests.
    """
    import torch

    first, tokens, own, odds = 0, drafted.tolist(), instead.tolist(), uniform.tolist()
    limits, further, ends = rates.tolist(), bonus.flatten().tolist(), cumulative.tolist()
    for request, last in enumerate(ends):
        if chosen is None or bool(chosen[request]):
            count = 0
            while first + count < last and odds[first + count] < limits[count] and tokens[first + count] >= 0:
                count += 1
            after = own[first + count] if first + count < last else further[request]
            output[request, : count + 1] = torch.tensor([*tokens[first : first + count], after], dtype=output.dtype)
        first = last


def greedy(plain: Callable[..., None]) -> Callable[..., None]:
    """vLLM's greedy kernel with synthetic acceptance; `plain` is its own, for all else."""

    def rejection_greedy_sample(
        output_token_ids: Any,
        cu_num_draft_tokens: Any,
        draft_token_ids: Any,
        target_argmax: Any,
        bonus_token_ids: Any,
        is_greedy: Any,
        max_spec_len: Any,
        uniform_probs: Any = None,
        synthetic_conditional_rates: Any = None,
        SYNTHETIC_MODE: bool = False,
    ) -> None:
        common = (output_token_ids, cu_num_draft_tokens, draft_token_ids, target_argmax, bonus_token_ids)
        if SYNTHETIC_MODE:
            synthetic(*common, uniform_probs, synthetic_conditional_rates, is_greedy)
        else:
            plain(*common, is_greedy, max_spec_len)

    return rejection_greedy_sample


def random(plain: Callable[..., None]) -> Callable[..., None]:
    """The same of the kernel for requests above temperature 0."""

    def rejection_random_sample(
        output_token_ids: Any,
        cu_num_draft_tokens: Any,
        draft_token_ids: Any,
        draft_probs: Any,
        target_probs: Any,
        bonus_token_ids: Any,
        recovered_token_ids: Any,
        uniform_probs: Any,
        is_greedy: Any,
        max_spec_len: Any,
        vocab_size: Any,
        synthetic_conditional_rates: Any = None,
        NO_DRAFT_PROBS: bool = False,
        SYNTHETIC_MODE: bool = False,
    ) -> None:
        common = (output_token_ids, cu_num_draft_tokens, draft_token_ids)
        if SYNTHETIC_MODE:
            rest = (recovered_token_ids, bonus_token_ids, uniform_probs, synthetic_conditional_rates)
            synthetic(*common, *rest, None if is_greedy is None else ~is_greedy)
        else:
            others = (draft_probs, target_probs, bonus_token_ids, recovered_token_ids, uniform_probs, is_greedy)
            plain(*common, *others, max_spec_len, vocab_size, NO_DRAFT_PROBS=NO_DRAFT_PROBS)

    return rejection_random_sample


def sparing(
    plain: Callable[..., torch.Tensor], uniform: Callable[..., torch.Tensor], draw: Callable[..., torch.Tensor]
) -> Any:
    """vLLM's `rejection_sample` for requests above temperature 0; `plain` is its own, for all else.

    A drafted token is accepted with min(1, p / q); the first that is not is replaced by one drawn from max(0, p - q),
    scaled (Leviathan et al. 2023, section 2.3). `uniform` is vLLM's generate_uniform_probs; `draw(logits [n, V], seeds
    [n])` draws a token for each row.
    """
    import torch

    def rejection_sample(
        draft_token_ids: Any,
        num_draft_tokens: list[int],
        max_spec_len: int,
        cu_num_draft_tokens: Any,
        draft_probs: Any,
        target_logits: Any,
        bonus_token_ids: Any,
        sampling_metadata: Any,
        synthetic_mode: bool = False,
        synthetic_conditional_rates: Any = None,
        use_fp64_gumbel: bool = False,
    ) -> torch.Tensor:
        # 1. Leave what needs no sampling, or another kind of it, to vLLM.
        if synthetic_mode or use_fp64_gumbel or sampling_metadata.all_greedy:
            return plain(
                draft_token_ids,
                num_draft_tokens,
                max_spec_len,
                cu_num_draft_tokens,
                draft_probs,
                target_logits,
                bonus_token_ids,
                sampling_metadata,
                synthetic_mode,
                synthetic_conditional_rates,
                use_fp64_gumbel,
            )
        # 2. Accept drafted tokens by their odds; where a request is greedy, if they are the likeliest.
        drafted, own = draft_token_ids.long().unsqueeze(1), sampling_metadata.generators
        odds = (target_logits.gather(1, drafted).squeeze(1) - target_logits.logsumexp(-1)).exp()
        if draft_probs is not None:
            # infinite, and accepted, where the draft never says it
            odds = odds / draft_probs.gather(1, drafted).squeeze(1)
        accepted = uniform(len(odds), num_draft_tokens, own, odds.device) <= odds
        greedy = _greedy_rows(sampling_metadata, num_draft_tokens)
        if greedy:
            accepted[greedy] = target_logits[greedy].argmax(-1) == drafted[greedy].squeeze(1)
        # 3. Draw a token in place of the first that is refused in each request.
        counts, refused = _accepted_counts(accepted.tolist(), num_draft_tokens)
        instead = dict(
            zip(refused, _instead(refused, drafted, draft_probs, target_logits, own, draw, {*greedy}), strict=True)
        )
        # 4. What each request says: accepted tokens, then the drawn one, or the bonus token if all were accepted.
        output = torch.full(
            (len(num_draft_tokens), max_spec_len + 1), -1, dtype=torch.int32, device=target_logits.device
        )
        tokens, further, first = draft_token_ids.tolist(), bonus_token_ids.flatten().tolist(), 0
        for request, (count, drafts) in enumerate(zip(counts, num_draft_tokens, strict=True)):
            after = further[request] if count == drafts else instead[request, first + count]
            output[request, : count + 1] = torch.tensor([*tokens[first : first + count], after], dtype=torch.int32)
            first += drafts
        return output

    rejection_sample.sparing = True  # type: ignore[attr-defined]
    return rejection_sample


def _greedy_rows(metadata: Any, drafts: list[int]) -> list[int]:
    """Drafted tokens of requests at temperature 0."""
    if metadata.all_random:
        return []
    rows: list[int] = []
    first = 0
    for temperature, count in zip(metadata.temperature.tolist(), drafts, strict=True):
        rows += range(first, first + count) if temperature == 0 else ()
        first += count
    return rows


def _accepted_counts(accepted: list[bool], drafts: list[int]) -> tuple[list[int], list[tuple[int, int]]]:
    """Return how many drafted tokens each request accepts, and (request, row) of each first one that is refused."""
    counts, refused, first = [], [], 0
    for request, count in enumerate(drafts):
        own = [*accepted[first : first + count], False].index(False)
        if own < count:
            refused.append((request, first + own))
        counts.append(own)
        first += count
    return counts, refused


def _instead(
    refused: list[tuple[int, int]], drafted: Any, draft_probs: Any, logits: Any, own: Any, draw: Any, greedy: set[int]
) -> list[int]:
    """A token of the target's for each."""
    import torch

    if not refused:
        return []
    rows = [row for _, row in refused]
    left, seeds = logits[rows].float(), torch.randint(0, 2**31, (len(rows),), dtype=torch.long)
    best = left.argmax(-1).tolist()
    if draft_probs is None:
        left.scatter_(1, drafted[rows], float("-inf"))
    else:
        rest = (left.softmax(-1) - draft_probs[rows]).clamp_(min=0)
        left = torch.where(rest.sum(-1, keepdim=True) > 0, rest.log(), left)
    for place, (request, _) in enumerate(refused):
        if request in own:
            seeds[place] = torch.randint(0, 2**31, (1,), generator=own[request], dtype=torch.long)
    drawn = draw(left, seeds).tolist()
    return [best[place] if row in greedy else int(drawn[place]) for place, row in enumerate(rows)]


def finalizable(load: Callable[..., Any]) -> Callable[..., Any]:
    """torch's `load_compiled_function`, its answer with a `finalize_loading` that does nothing where it has none."""

    def loading(*arguments: Any, **options: Any) -> Any:
        loaded = load(*arguments, **options)
        compiled = loaded._artifacts.compiled_fn
        if not hasattr(compiled, "finalize_loading"):
            compiled.finalize_loading = lambda config: None
        return loaded

    loading.finalizable = True  # type: ignore[attr-defined]
    return loading


def mapped(load: Callable[..., set[str]]) -> Callable[..., set[str]]:
    """`load_weights` of vLLM's Medusa heads, its answer with `token_map` where they have one."""

    def load_weights(heads: Any, weights: Any) -> set[str]:
        return load(heads, weights) | (set() if heads.token_map is None else {"token_map"})

    load_weights.mapped = True  # type: ignore[attr-defined]
    return load_weights


def undrawn(sample: Callable[..., Any], settle: Callable[..., Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The model runner's `_sample`, and `_bookkeeping_sync` that follows it: between them requests whose token is not
    kept are without their generators, which so stay where they were."""

    def _sample(runner: Any, *arguments: Any, **options: Any) -> Any:
        own = runner.input_batch.generators
        discarded = runner.discard_request_mask.np[: runner.input_batch.num_reqs].nonzero()[0].tolist()
        runner.whetstone_undrawn = {row: own.pop(row) for row in discarded if row in own}
        return sample(runner, *arguments, **options)

    def _bookkeeping_sync(runner: Any, *arguments: Any, **options: Any) -> Any:
        result = settle(runner, *arguments, **options)
        runner.input_batch.generators.update(runner.whetstone_undrawn)
        return result

    _sample.undrawn = True  # type: ignore[attr-defined]
    return _sample, _bookkeeping_sync


def flat(product: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`CPUInt8ScaledMMLinearKernel._apply_weights_sgl` for an input [..., in] of any number of dimensions: [...,
    out]."""

    def _apply_weights_sgl(kernel: Any, layer: Any, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        result = product(kernel, layer, x.reshape(-1, x.shape[-1]), bias)
        return result.reshape(*x.shape[:-1], result.shape[-1])

    _apply_weights_sgl.flat = True  # type: ignore[attr-defined]
    return _apply_weights_sgl


def same_graph(hashed: Callable[..., str]) -> Callable[..., str]:
    """`SpeculativeConfig.compute_hash`; what guesses without weights is hashed as no speculation is."""

    def compute_hash(config: Any) -> str:
        return "None" if config.method in WEIGHTLESS else hashed(config)

    compute_hash.same_graph = True  # type: ignore[attr-defined]
    return compute_hash


def register() -> None:
    """Entry point of the group `vllm.general_plugins`; may be called more than once. Does nothing but on CPU."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    import torch
    from vllm.v1.sample import rejection_sampler

    if not hasattr(rejection_sampler.rejection_sample, "sparing"):
        rejection_sampler.rejection_sample = sparing(
            rejection_sampler.rejection_sample,
            rejection_sampler.generate_uniform_probs,
            torch.ops._C.fused_gumbel_argmax,
        )
    if not hasattr(torch.compiler.load_compiled_function, "finalizable"):
        torch.compiler.load_compiled_function = finalizable(torch.compiler.load_compiled_function)
    if os.environ.get(FORK):
        from vllm.v1.engine import utils as starting

        starting.get_mp_context = partial(multiprocessing.get_context, "fork")
    if os.environ.get(LAYERS):
        # A module beside this file, whose folder is on the path.
        from whetstone_layers import install  # type: ignore[import-not-found]

        install()
    _mend_models()
    from vllm.triton_utils.dispatcher import register_kernels
    from vllm.utils import cpu_triton_utils

    broken: Any = cpu_triton_utils
    broken._expand_kernel_impl = expand
    if not hasattr(broken, "whetstone_kernels"):
        kinds = greedy(broken._rejection_greedy_sample_kernel_impl), random(broken._rejection_random_sample_kernel_impl)
        broken.whetstone_kernels = kinds
        broken._rejection_greedy_sample_kernel_impl, broken._rejection_random_sample_kernel_impl = kinds
    register_kernels({EXPAND: expand, **dict(zip((GREEDY, RANDOM), broken.whetstone_kernels, strict=True))})


def _mend_models() -> None:
    """Mend the parts of models and of their runner, each once."""
    from vllm.config.speculative import SpeculativeConfig

    if not hasattr(SpeculativeConfig.compute_hash, "same_graph"):
        SpeculativeConfig.compute_hash = same_graph(SpeculativeConfig.compute_hash)
    from vllm.model_executor.models.medusa import Medusa

    if not hasattr(Medusa.load_weights, "mapped"):
        Medusa.load_weights = mapped(Medusa.load_weights)
    from vllm.model_executor.kernels.linear.scaled_mm.cpu import CPUInt8ScaledMMLinearKernel as Int8

    if not hasattr(Int8._apply_weights_sgl, "flat"):
        Int8._apply_weights_sgl = flat(Int8._apply_weights_sgl)
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner as Runner  # the processor's runner inherits both

    if not hasattr(Runner._sample, "undrawn"):
        Runner._sample, Runner._bookkeeping_sync = undrawn(Runner._sample, Runner._bookkeeping_sync)
