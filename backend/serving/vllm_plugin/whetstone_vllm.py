"""A vLLM plugin, loaded by every process of a CPU server: mends speculative decoding above temperature 0.

vLLM 0.32's CPU stand-in for `expand_kernel` hands its C++ code an int64 copy of the output and never copies it back, so that a
float tensor, the temperatures of the batch, stays uninitialised: the target's probabilities become noise, nearly every draft
token is refused and the answers are gibberish. Runs under the serve environment's interpreter; imports nothing of Whetstone.
"""

from __future__ import annotations

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


def register() -> None:
    """Entry point of the group `vllm.general_plugins`; may be called more than once. Does nothing but on CPU."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.triton_utils.dispatcher import register_kernels
    from vllm.utils import cpu_triton_utils

    broken: Any = cpu_triton_utils
    broken._expand_kernel_impl = expand
    register_kernels({KERNEL: expand})
