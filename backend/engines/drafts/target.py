"""The frozen target of a training: its answers, the hidden states that drafts read, and the logits to reach."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.engines.drafts.generation import Answer, Sampling, generate
from backend.engines.native.recovery.adapters import load
from backend.layered import attention, tokenizers
from backend.layered.matrix_products import has_bfloat16

if TYPE_CHECKING:
    import torch


class Target:
    """A model as it is stored, in evaluation mode. Raises ModelDamaged where it cannot be loaded.

    Where the processor only emulates 16-bit arithmetic the same weights are in fp32: on an AMD EPYC without AVX-512 a
    step of EAGLE-3 on the starter takes 0.36 s rather than 16.6 s, one of Medusa 0.10 s rather than 4.1 s (2026-11-28).
    States are stored in the dtype of the weights all the same.
    """

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        self.folder, self.device = folder, device
        self.model, _ = load(folder, device, stored=True)
        self.stored: torch.dtype = self.model.dtype
        if not has_bfloat16(device.partition(":")[0]):
            self.model.float()
        attention.install(self.model)
        self.tokenizer = tokenizers.load(folder)
        self.config: Any = self.model.config.get_text_config()

    @property
    def head(self) -> torch.Tensor:
        """[V, H], of the output; the embedding itself where they are tied."""
        weight: torch.Tensor = self.model.get_output_embeddings().weight
        return weight

    @property
    def embedding(self) -> torch.Tensor:
        """[V, H], of the input."""
        weight: torch.Tensor = self.model.get_input_embeddings().weight
        return weight

    @property
    def token_bytes(self) -> int:
        """Bytes of the keys and values of one token."""
        layers, heads, size = self.config.num_hidden_layers, self.config.num_attention_heads, self.config.hidden_size
        kv_heads = getattr(self.config, "num_key_value_heads", None) or heads
        head_size = getattr(self.config, "head_dim", None) or size // heads
        return int(2 * layers * kv_heads * head_size * self.model.dtype.itemsize)

    @property
    def ends(self) -> tuple[int, ...]:
        """Tokens that end an answer."""
        ends = self.model.generation_config.eos_token_id
        if ends is None:
            return ()
        return tuple(ends) if isinstance(ends, list) else (ends,)

    def logits(self, final: torch.Tensor) -> torch.Tensor:
        """Compute logits [..., V] from last hidden states [..., H]."""
        import torch

        with torch.no_grad():
            logits: torch.Tensor = self.model.get_output_embeddings()(final.to(self.head.dtype))
        return logits

    def states(
        self, tokens: torch.Tensor, real: torch.Tensor, layers: Sequence[int] = ()
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the last states [B, T, H] of sequences [B, T], and those of `layers` [B, T, layers, H].

        `real` [B, T] is false where a sequence is padded, at the right.
        """
        import torch

        # The base model alone: nothing is made of the logits, which are the largest part.
        with torch.inference_mode():
            inputs, mask = tokens.to(self.device), real.to(self.device).long()
            output = self.model.base_model(
                inputs, attention_mask=mask, use_cache=False, output_hidden_states=bool(layers)
            )
            final = output.last_hidden_state
            hidden = [output.hidden_states[layer] for layer in layers]
            read = torch.stack(hidden, 2) if hidden else final.new_empty(*final.shape[:2], 0, final.shape[2])
            return final.to(self.stored), read.to(self.stored)

    def prompt(self, text: str) -> list[int]:
        """Encode a user's words up to where the answer begins, in the chat template if it can write them."""
        written = self._user_turn(text)
        if written is None:
            return list(self.tokenizer(text)["input_ids"])
        return list(self.tokenizer(written, add_special_tokens=False)["input_ids"])

    def user_head(self) -> list[int] | None:
        """Return the tokens before a user's words in the chat template; None without a template."""
        mark = "MARK"
        written = self._user_turn(mark)
        if written is None:
            return None
        return list(self.tokenizer(written.partition(mark)[0], add_special_tokens=False)["input_ids"])

    def _user_turn(self, text: str) -> str | None:
        """Write a user's words in the chat template, up to where the answer begins; None if it cannot write them."""
        try:
            return tokenizers.format_chat(self.tokenizer, [("user", text)], answer_follows=True)
        except tokenizers.NoChat:
            return None

    def text(self, tokens: list[int]) -> str:
        text: str = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return text

    def answer(
        self, prompts: list[list[int]], temperature: float, most: int, seed: int, layers: Sequence[int] = ()
    ) -> list[Answer]:
        """Generate up to `most` tokens after each prompt, with the token that ended it; greedy at temperature 0."""
        answers = generate(self.model, prompts, self.ends, Sampling(temperature, most, seed), layers)
        return [Answer(own.tokens, own.final.to(self.stored), own.hidden.to(self.stored)) for own in answers]
