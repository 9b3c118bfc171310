"""A vLLM plugin, loaded by every process of a CPU server: mends the compile cache, and speculation above temperature 0.

vLLM 0.32 saves what it compiled on CPU, and asks what it loads again for `finalize_loading`, which only its own GPU backend's
functions have: Inductor's plain function has not, so every start compiled again.

vLLM 0.32's CPU stand-in for `expand_kernel` hands its C++ code an int64 copy of the output and never copies it back, so that a
float tensor, the temperatures of the batch, stays uninitialised: the target's probabilities become noise, nearly every draft
token is refused and the answers are gibberish. Runs under the serve environment's interpreter; imports nothing of Whetstone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

KERNEL = "vllm.v1.sample.rejection_sampler.expand_kernel"


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


def register() -> None:
    """Entry point of the group `vllm.general_plugins`; may be called more than once. Does nothing but on CPU."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    import torch

    if not hasattr(torch.compiler.load_compiled_function, "finalizable"):
        torch.compiler.load_compiled_function = finalizable(torch.compiler.load_compiled_function)
    from vllm.triton_utils.dispatcher import register_kernels
    from vllm.utils import cpu_triton_utils

    broken: Any = cpu_triton_utils
    broken._expand_kernel_impl = expand
    register_kernels({KERNEL: expand})
