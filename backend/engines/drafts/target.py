"""The frozen target of a training: its answers, the hidden states that drafts read, and the logits that they are held to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.engines.native.recovery.model import load
from backend.layered import source

if TYPE_CHECKING:
    import torch


class Target:
    """A model as it is stored, in evaluation mode. Raises ModelDamaged where it cannot be loaded."""

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        self.folder, self.device = folder, device
        self.model, _ = load(folder, device, stored=True)
        self.tokenizer = source.tokenizer(folder)
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
    def ends(self) -> tuple[int, ...]:
        """Tokens that end an answer."""
        ends = self.model.generation_config.eos_token_id
        return tuple(ends) if isinstance(ends, list) else () if ends is None else (ends,)

    def logits(self, final: torch.Tensor) -> torch.Tensor:
        """[..., V] of last hidden states [..., H]."""
        import torch

        with torch.no_grad():
            found: torch.Tensor = self.model.get_output_embeddings()(final.to(self.head.dtype))
        return found

    def states(self, tokens: torch.Tensor, real: torch.Tensor, layers: Sequence[int] = ()) -> tuple[torch.Tensor, torch.Tensor]:
        """Of sequences [B, T] padded at the right: the last states [B, T, H], and those of `layers` [B, T, layers, H]."""
        import torch

        with torch.inference_mode():
            given, mask = tokens.to(self.device), real.to(self.device).long()
            found = self.model.base_model(given, attention_mask=mask, use_cache=False, output_hidden_states=bool(layers))
            final = found.last_hidden_state
            hidden = [found.hidden_states[layer] for layer in layers]
            return final, torch.stack(hidden, 2) if hidden else final.new_empty(*final.shape[:2], 0, final.shape[2])

    def prompt(self, text: str) -> list[int]:
        """Token ids of a user's words up to where the answer begins, in the chat template where there is one."""
        if not self.tokenizer.chat_template:
            return list(self.tokenizer(text)["input_ids"])
        turns = [{"role": "user", "content": text}]
        written = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        return list(self.tokenizer(written, add_special_tokens=False)["input_ids"])

    def user_head(self) -> list[int] | None:
        """What stands before a user's words in the chat template; None where there is none."""
        if not self.tokenizer.chat_template:
            return None
        mark = "MARK"
        written = self.tokenizer.apply_chat_template([{"role": "user", "content": mark}], tokenize=False)
        return list(self.tokenizer(written.partition(mark)[0], add_special_tokens=False)["input_ids"])

    def text(self, tokens: list[int]) -> str:
        found: str = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return found

    def answer(self, prompts: list[list[int]], temperature: float, most: int, seed: int) -> list[list[int]]:
        """Up to `most` tokens after each prompt, with the token that ended it; greedy at temperature 0."""
        return answers(self.model, prompts, self.ends, temperature=temperature, most=most, seed=seed)


def answers(
    model: Any, prompts: list[list[int]], ends: Sequence[int], *, temperature: float, most: int, seed: int
) -> list[list[int]]:  # fmt: skip
    """What a causal model says after prompts, drawn from its whole distribution; the caller's random state stays as it is."""
    import torch

    longest, device = max(map(len, prompts)), model.device
    filled = torch.zeros(len(prompts), longest, dtype=torch.long, device=device)
    real = torch.zeros_like(filled)
    for row, prompt in enumerate(prompts):
        filled[row, longest - len(prompt) :] = torch.tensor(prompt)
        real[row, longest - len(prompt) :] = 1
    drawn = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0} if temperature > 0 else {"do_sample": False}
    with torch.inference_mode(), torch.random.fork_rng():
        torch.manual_seed(seed)
        found = model.generate(
            filled, attention_mask=real, max_new_tokens=most, pad_token_id=0, eos_token_id=list(ends) or None,
            repetition_penalty=1.0, **drawn,
        )  # fmt: skip
    return [cut(row, ends) for row in found[:, longest:].tolist()]


def cut(tokens: list[int], ends: Sequence[int]) -> list[int]:
    """Up to the first token that ends, with it."""
    found = next((number for number, token in enumerate(tokens, 1) if token in ends), len(tokens))
    return tokens[:found]
