"""Generates answers to prompts, with the model's hidden states.

Not transformers' `generate`: on a processor that spends several times as long on a token (a copy of the output matrix
for every row, keys and values copied at each token and for all heads that share them), and gives no states, for which
the target would have to read its answers again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch


class Sampling(NamedTuple):
    """The rule by which tokens are drawn."""

    temperature: float
    """0: the most probable token; else one drawn from the whole distribution."""
    most: int
    """Most tokens of an answer."""
    seed: int


class Answer(NamedTuple):
    """One answer, with the states of its prompt and of all its tokens but the last, after which nothing was said."""

    tokens: list[int]
    """The tokens, with the one that ended it."""
    final: torch.Tensor
    """[T - 1, H] after the last norm."""
    hidden: torch.Tensor
    """[T - 1, layers, H] of the layers that were asked for."""


def generate(
    model: Any, prompts: list[list[int]], ends: Sequence[int], sampling: Sampling, layers: Sequence[int] = ()
) -> list[Answer]:
    """Generate an answer to each prompt, which one of the tokens `ends` ends, with the hidden states of `layers`."""
    import torch

    temperature, most, seed = sampling
    # 1. Pad the prompts at the left: tokens [prompts, longest + most], `real` false where padded.
    longest, device = max(map(len, prompts)), model.device
    tokens = torch.zeros(len(prompts), longest + most, dtype=torch.long, device=device)
    real = torch.ones_like(tokens)
    for row, prompt in enumerate(prompts):
        tokens[row, longest - len(prompt) : longest] = torch.tensor(prompt)
        real[row, : longest - len(prompt)] = 0
    places = (real.cumsum(1) - 1).clamp_min(0)
    # 2. State of the loop: who has ended, the cache with room for all tokens, states so far.
    generator = torch.Generator(device).manual_seed(seed % 2**63)
    ending = torch.tensor(list(ends), dtype=torch.long, device=device)
    over = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    cache, head, begin = _cache(model.config, longest + most), model.get_output_embeddings(), 0
    final, hidden = [], []
    # 3. One token for all prompts at a time, until all have ended.
    with torch.inference_mode():
        for end in range(longest, longest + most):
            output = model.base_model(
                tokens[:, begin:end],
                attention_mask=real[:, :end],
                position_ids=places[:, begin:end],
                past_key_values=cache,
                use_cache=True,
                output_hidden_states=bool(layers),
            )
            final.append(output.last_hidden_state)
            hidden += [torch.stack([output.hidden_states[layer] for layer in layers], 2)] if layers else []
            logits = head(output.last_hidden_state[:, -1].contiguous())
            tokens[:, end] = logits.argmax(-1) if temperature == 0 else draw(logits, temperature, generator)
            over |= torch.isin(tokens[:, end], ending)
            begin = end
            if over.all():
                break
        # 4. Cut each answer at its end, and its states [T - 1, H] to the same tokens.
        whole = torch.cat(final, 1)
        read = torch.cat(hidden, 1) if layers else whole.new_empty(*whole.shape[:2], 0, whole.shape[2])
        answers = [cut_at_end(row, ends) for row in tokens[:, longest : begin + 1].tolist()]
        spans = [
            slice(longest - len(prompt), longest + len(own) - 1) for prompt, own in zip(prompts, answers, strict=True)
        ]
        return [
            Answer(own, whole[row, spans[row]].clone(), read[row, spans[row]].clone())
            for row, own in enumerate(answers)
        ]


def _cache(config: Any, tokens: int) -> Any:
    """Make transformers' cache with room for `tokens`, so that a new token does not copy the others.

    Layers that see a window stay as they are.
    """
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    class Roomy(DynamicLayer):  # type: ignore[misc]
        def update(
            self, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
        ) -> tuple[torch.Tensor, torch.Tensor]:
            # Write behind what is there, and return a view of all so far.
            begin = self.get_seq_length()
            if not self.is_initialized:
                self.lazy_initialization(key, value)
                self.room = [part.new_empty(*part.shape[:2], tokens, part.shape[3]) for part in (key, value)]
            end = begin + key.shape[2]
            for room, new in zip(self.room, (key, value), strict=True):
                room[:, :, begin:end] = new
            self.keys, self.values = (room[:, :, :end] for room in self.room)
            return self.keys, self.values

    cache = DynamicCache(config=config)
    cache.layers = [Roomy() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def draw(logits: torch.Tensor, temperature: float, generator: torch.Generator) -> torch.Tensor:
    """Draw a token [B] from each row of logits [B, V]: where a uniform number falls in the running sum of the
    probabilities."""
    import torch

    sums = (logits.float() / temperature).softmax(-1).cumsum(-1)
    threshold = torch.rand(len(sums), 1, generator=generator, device=sums.device) * sums[:, -1:]
    return torch.searchsorted(sums, threshold, right=True).squeeze(-1).clamp_max(logits.shape[-1] - 1)


def cut_at_end(tokens: list[int], ends: Sequence[int]) -> list[int]:
    """Cut the tokens after the first one that ends an answer."""
    length = next((number for number, token in enumerate(tokens, 1) if token in ends), len(tokens))
    return tokens[:length]
