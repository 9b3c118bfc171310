"""The interface of a draft in training: parameters, a loss, an acceptance, and a form that vLLM can load.

`small`, `eagle3` and `medusa` are proposers; the loop (`train.py`), the data and the losses know none of them.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.domain.recipe.draft_training import Training
from backend.engines.drafts.losses import Loss

if TYPE_CHECKING:
    import torch

    from backend.engines.drafts.target import Target


@dataclass(frozen=True)
class Batch:
    """Sequences of a prompt and its answer, padded at the right, with what the target computed of them."""

    target: Target
    tokens: torch.Tensor
    """[B, T]."""
    answers: torch.Tensor
    """[B, T] bool: the token is of the answer."""
    real: torch.Tensor
    """[B, T] bool: the token is no padding."""
    temperature: torch.Tensor
    """[B] at which the answer was drawn; 0 greedy."""
    final: torch.Tensor
    """[B, T, H]: the target's last hidden states after its last norm, which its head makes logits of."""
    hidden: torch.Tensor | None = None
    """[B, T, layers, H]: of the layers that the proposer asks for."""

    @property
    def predicting(self) -> torch.Tensor:
        """[B, T] bool: the positions whose next token is of the answer."""
        import torch

        return torch.nn.functional.pad(self.answers[:, 1:], (0, 1))

    @property
    def next(self) -> torch.Tensor:
        """[B, T]: the token after each position; of the last its own."""
        import torch

        return torch.cat([self.tokens[:, 1:], self.tokens[:, -1:]], 1)


class Proposer(ABC):
    """A draft for one target. Deterministic on a processor: the same calls give the same bytes.

    `layers`: of the target whose hidden states it reads, as transformers numbers them (0: the embeddings, n: after
    layer n). `certain`: vLLM has it propose its most probable tokens, without a distribution, at every temperature.
    """

    layers: tuple[int, ...] = ()
    certain: bool = False

    def __init__(self, target: Target, options: Training) -> None:
        self.target, self.options = target, options

    def prepare(self, answers: Sequence[Sequence[int]]) -> None:  # noqa: B027 (most have nothing to do)
        """Prepare, once before `load` and the first step, what depends on the answers to learn from."""

    def set_share(self, share: float) -> None:  # noqa: B027 (most learn the same all the time)
        """Set the share of all steps that is done, before each loss; 1 if nothing is learned from it."""

    @property
    @abstractmethod
    def modules(self) -> torch.nn.Module:
        """The modules that are trained."""

    @abstractmethod
    def loss(self, batch: Batch, loss: Loss) -> torch.Tensor:
        """Compute the mean loss over the answers' positions, a scalar with a gradient."""

    @abstractmethod
    def accepted(self, batch: Batch, tokens: int) -> torch.Tensor:
        """Compute [B, T, tokens] for `acceptance.walk`.

        At [t, i] is the probability that, in a round whose last known token is t, this draft's proposal for the
        answer's token at t + 1 + i is accepted if those before it were. Beyond the sequence it may be anything.
        """

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write weights and configuration as vLLM loads them, into a folder that exists and is empty."""

    def answer(self, prompts: list[list[int]], seed: int) -> list[list[int]] | None:
        """Generate the draft's own answers to prompts, for training on them; None if it cannot generate."""
        return None

    def described(self) -> dict[str, Any]:
        """Facts for the model card."""
        return {"parameters": sum(parameter.numel() for parameter in self.parameters())}

    def parameters(self) -> list[torch.nn.Parameter]:
        return list(self._trained().values())

    def _trained(self) -> dict[str, torch.nn.Parameter]:
        """Return the parameters that are trained, by name."""
        return {name: parameter for name, parameter in self.modules.named_parameters() if parameter.requires_grad}

    def state(self) -> dict[str, torch.Tensor]:
        """Return copies of what is trained, by name."""
        return {name: parameter.detach().clone() for name, parameter in self._trained().items()}

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        """Copy what `state` returned into the parameters."""
        import torch

        with torch.no_grad():
            for name, parameter in self._trained().items():
                parameter.copy_(state[name])


def write(folder: Path, tensors: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> None:
    """Write a checkpoint: weights in bfloat16, token maps as they are, and what is not None of the configuration."""
    import torch
    from safetensors.torch import save_file

    stored = {}
    for name, tensor in tensors.items():
        rounded = tensor.detach().to(torch.bfloat16) if tensor.is_floating_point() else tensor
        stored[name] = rounded.contiguous().cpu()
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    stated = {name: value for name, value in config.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(stated, indent=2, sort_keys=True, default=str))
