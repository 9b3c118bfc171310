"""The work of one output token: operations, bytes from memory, and which of the two bounds it. Pure.

A forward pass through the linear layers of a decoder with P parameters makes about 2 P floating point operations a
token and reads about P x b bytes, b bytes a parameter (Pope et al. 2022, section 2). All streams of a step share one
read of the weights, so their ratio, the arithmetic intensity, grows with the streams. A device whose rate of
operations over its bandwidth is larger than that ratio waits for its memory (Williams et al. 2009, the roofline).
"""

from __future__ import annotations

from typing import Literal

from backend.domain.frozen import Frozen
from backend.domain.machine.device import Device
from backend.domain.model.facts import ModelFacts
from backend.domain.planner import roofline
from backend.domain.planner.roofline import ExpectedLoad
from backend.domain.recipe.recipe import Recipe

FORMULA = (
    "2 x parameters that a token meets, attention left out / ((weights + cache read) / streams); bound by memory below "
    "the device's operations per second / bytes per second"
)


class TokenWork(Frozen):
    """The work of one output token at a load, without speculation."""

    flops: float
    """Operations of the linear layers and the output head."""
    bytes: float
    """Bytes read from memory: a stream's share of the weights, and its own cache in the middle of its answer."""
    intensity: float
    """Arithmetic intensity: operations per byte."""
    device_balance: float | None = None
    """Operations that the device can make while it reads a byte; None where its rates are not known."""
    bound: Literal["memory", "arithmetic"] | None = None
    """The side of the roofline on which a token is; None where the rates of the device are not known."""


def flops_per_token(model: ModelFacts) -> float | None:
    """Return the operations of one output token of the model as it is; None for one that generates none."""
    return roofline.served_model(model, Recipe()).token_flops if model.generates else None


def find_token_work(
    model: ModelFacts, recipe: Recipe, load: ExpectedLoad, device: Device | None, degree: int = 1
) -> TokenWork | None:
    """Return the work of a token; None for a model that generates none. `degree` of tensor parallelism divides
    operations and bytes alike, so the figures are of all devices together."""
    if not model.generates:
        return None
    served = roofline.served_model(model, recipe, degree)
    read = served.traffic + served.expert_traffic * roofline.expert_share(served.experts, load.concurrency)
    context = load.input_tokens + load.output_tokens / 2
    flops, moved = served.token_flops, read / load.concurrency + context * served.kv_bytes * degree
    work = TokenWork(flops=flops, bytes=moved, intensity=flops / moved)
    if device is None or not device.bandwidth or not device.flops:
        return work
    balance = roofline.arithmetic_rate(served, device) / device.bandwidth
    bound = "memory" if work.intensity < balance else "arithmetic"
    return work.model_copy(update={"device_balance": balance, "bound": bound})
