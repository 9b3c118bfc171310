"""A vLLM plugin, loaded by every process of a CPU server: mends the compile cache, speculation above temperature 0, synthetic
acceptance, Medusa heads of a reduced vocabulary, and seeds of prompts that are read in parts.

vLLM 0.32 saves what it compiled on CPU, and asks what it loads again for `finalize_loading`, which only its own GPU backend's
functions have: Inductor's plain function has not, so every start compiled again.

vLLM 0.32's CPU stand-in for `expand_kernel` hands its C++ code an int64 copy of the output and never copies it back, so that a
float tensor, the temperatures of the batch, stays uninitialised: the target's probabilities become noise, nearly every draft
token is refused and the answers are gibberish.

vLLM 0.32's CPU stand-ins for the kernels of rejection sampling assert that nobody asks for `rejection_sample_method: synthetic`,
by which the payoff map makes a draft be accepted as often as it wants; `synthetic` does what their Triton originals do.

vLLM 0.32's Medusa heads take the reduced vocabulary of a checkpoint, `token_map`, but do not say that they did, so that its check
of what was loaded ends the server ("not initialized from checkpoint: {'token_map'}"); `mapped` says it.

vLLM 0.32 draws a token for every request of a step, also for one whose prompt is not read whole yet, and takes such a draw back:
the request's own generator, which it has where it came with a seed, is turned back by an offset. Those of a processor have none,
and the server ends ("CPU Generator does not use offset"). `undrawn` lets such requests draw from the common one instead.

Runs under the serve environment's interpreter; imports nothing of Whetstone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

SAMPLER = "vllm.v1.sample.rejection_sampler"
EXPAND, GREEDY, RANDOM = (f"{SAMPLER}.{name}_kernel" for name in ("expand", "rejection_greedy_sample", "rejection_random_sample"))


def expand(
    output: torch.Tensor,
    values: torch.Tensor,
    cumulative: torch.Tensor,
    replace_from: float,
    replace_to: float,
    MAX_NUM_TOKENS: int | None = None,
) -> None:
    """output[tokens] = values[batch], each repeated over its request's tokens; `cumulative` [batch] counts tokens up to each.

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
    """Fill `output` [batch, most drafted + 1]: each request's drafted tokens while `uniform` lies below the conditional rate of
    their position (and none is padding, -1), then the target's own token from `instead`, or `bonus` where none was refused.

    `cumulative` [batch] counts drafted tokens up to each request; `drafted`, `instead` and `uniform` are of all of them; `rates`
    of positions. `chosen` [batch]: only those requests.
    """
    import torch

    first, tokens, own, odds = 0, drafted.tolist(), instead.tolist(), uniform.tolist()
    limits, further, ends = rates.tolist(), bonus.flatten().tolist(), cumulative.tolist()
    for request, last in enumerate(ends):
        if chosen is None or bool(chosen[request]):
            kept = 0
            while first + kept < last and odds[first + kept] < limits[kept] and tokens[first + kept] >= 0:
                kept += 1
            after = own[first + kept] if first + kept < last else further[request]
            output[request, : kept + 1] = torch.tensor([*tokens[first : first + kept], after], dtype=output.dtype)
        first = last


def greedy(plain: Callable[..., None]) -> Callable[..., None]:
    """vLLM's greedy kernel with synthetic acceptance; `plain` is its own, for all else."""

    def rejection_greedy_sample(
        output_token_ids: Any, cu_num_draft_tokens: Any, draft_token_ids: Any, target_argmax: Any, bonus_token_ids: Any,
        is_greedy: Any, max_spec_len: Any, uniform_probs: Any = None, synthetic_conditional_rates: Any = None,
        SYNTHETIC_MODE: bool = False,
    ) -> None:  # fmt: skip
        asked = (output_token_ids, cu_num_draft_tokens, draft_token_ids, target_argmax, bonus_token_ids)
        if SYNTHETIC_MODE:
            synthetic(*asked, uniform_probs, synthetic_conditional_rates, is_greedy)
        else:
            plain(*asked, is_greedy, max_spec_len)

    return rejection_greedy_sample


def random(plain: Callable[..., None]) -> Callable[..., None]:
    """The same of the kernel for requests above temperature 0."""

    def rejection_random_sample(
        output_token_ids: Any, cu_num_draft_tokens: Any, draft_token_ids: Any, draft_probs: Any, target_probs: Any,
        bonus_token_ids: Any, recovered_token_ids: Any, uniform_probs: Any, is_greedy: Any, max_spec_len: Any, vocab_size: Any,
        synthetic_conditional_rates: Any = None, NO_DRAFT_PROBS: bool = False, SYNTHETIC_MODE: bool = False,
    ) -> None:  # fmt: skip
        asked = (output_token_ids, cu_num_draft_tokens, draft_token_ids)
        if SYNTHETIC_MODE:
            rest = (recovered_token_ids, bonus_token_ids, uniform_probs, synthetic_conditional_rates)
            synthetic(*asked, *rest, None if is_greedy is None else ~is_greedy)
        else:
            others = (draft_probs, target_probs, bonus_token_ids, recovered_token_ids, uniform_probs, is_greedy)
            plain(*asked, *others, max_spec_len, vocab_size, NO_DRAFT_PROBS=NO_DRAFT_PROBS)

    return rejection_random_sample


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
    """The model runner's `_sample`, and `_bookkeeping_sync` that follows it: between them requests whose token is not kept are
    without their generators, which so stay where they were."""

    def _sample(runner: Any, *arguments: Any, **options: Any) -> Any:
        own = runner.input_batch.generators
        kept = runner.discard_request_mask.np[: runner.input_batch.num_reqs].nonzero()[0].tolist()
        runner.whetstone_undrawn = {row: own.pop(row) for row in kept if row in own}
        return sample(runner, *arguments, **options)

    def _bookkeeping_sync(runner: Any, *arguments: Any, **options: Any) -> Any:
        found = settle(runner, *arguments, **options)
        runner.input_batch.generators.update(runner.whetstone_undrawn)
        return found

    _sample.undrawn = True  # type: ignore[attr-defined]
    return _sample, _bookkeeping_sync


def register() -> None:
    """Entry point of the group `vllm.general_plugins`; may be called more than once. Does nothing but on CPU."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    import torch

    if not hasattr(torch.compiler.load_compiled_function, "finalizable"):
        torch.compiler.load_compiled_function = finalizable(torch.compiler.load_compiled_function)
    from vllm.model_executor.models.medusa import Medusa

    if not hasattr(Medusa.load_weights, "mapped"):
        Medusa.load_weights = mapped(Medusa.load_weights)
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner as Runner  # the processor's runner inherits both

    if not hasattr(Runner._sample, "undrawn"):
        Runner._sample, Runner._bookkeeping_sync = undrawn(Runner._sample, Runner._bookkeeping_sync)
    from vllm.triton_utils.dispatcher import register_kernels
    from vllm.utils import cpu_triton_utils

    broken: Any = cpu_triton_utils
    broken._expand_kernel_impl = expand
    if not hasattr(broken, "whetstone_kernels"):
        kinds = greedy(broken._rejection_greedy_sample_kernel_impl), random(broken._rejection_random_sample_kernel_impl)
        broken.whetstone_kernels = kinds
        broken._rejection_greedy_sample_kernel_impl, broken._rejection_random_sample_kernel_impl = kinds
    register_kernels({EXPAND: expand, **dict(zip((GREEDY, RANDOM), broken.whetstone_kernels, strict=True))})
