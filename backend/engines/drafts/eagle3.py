"""An EAGLE-3 head: one decoder layer that goes on from the target's own hidden states (Li et al. 2025, arXiv
2503.01840).

At position t it reads states of three depths of the target, which a matrix makes one of (`fc`), and the embedding of
the token after it, and predicts the token after that. Its own state then stands for the target's at the next position:
training makes the same steps, each on the state that the one before it made, the paper's "training-time test" (section
3.2). It predicts a reduced vocabulary, since a step's cost on a processor is the reading of its matrices. Names and
sizes are those that vLLM loads (`model_executor/models/llama_eagle3.py`); weights are learned in fp32, products in
bfloat16, and saved in bfloat16.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from backend.domain.errors import RequestError
from backend.domain.recipe.draft_training import Training
from backend.engines.drafts import reduced_vocabulary
from backend.engines.drafts.draft_heads import Heads
from backend.engines.drafts.proposer import Batch
from backend.engines.drafts.target import Target

if TYPE_CHECKING:
    import torch

SPREAD = 0.02
"""Standard deviation of initial weights, as of Llama's."""
ALIKE = 2.0
"""Times as large as that a position's likeness with itself begins."""
ALONE = 0.5
"""Share of the steps, the first ones, that learn one proposal: its own costs a quarter of four, and the others rest on
it."""
SAME = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "max_position_embeddings",
    "rope_parameters",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
)
"""Fields of the target's configuration that the head's copies."""


FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
"""Targets by `model_type`: a norm before each layer that is copied, a rotary embedding of all of a head, logits as they
are."""


class Eagle3(Heads):
    """The head as a proposer."""

    def __init__(self, target: Target, options: Training) -> None:
        """Make the head. Raises RequestError for a family without one."""
        if target.config.model_type not in FAMILIES:
            raise RequestError(
                f"EAGLE-3 heads are trained for {', '.join(FAMILIES)}, not for {target.config.model_type}: train a "
                "small model."
            )
        self.layers = depths(target.config.num_hidden_layers)
        self.config = llama(target.config)
        super().__init__(target, options)

    def _make(self) -> torch.nn.Module:
        """Make the head so that it begins as the target's last layer: the highest state passes through.

        Each state is read through the norm by which the target's own next layer reads it, since a few of its dimensions
        are hundreds of times as large as the others.
        """
        import torch

        head = module(self.config, len(self.layers), len(self.vocabulary))
        theirs, size = self.target.model.base_model, self.config.hidden_size
        with torch.no_grad():
            # 1. The norms of the states that are read.
            for number, norm in zip(self.layers, head.fc_norm, strict=True):
                weight = theirs.layers[number].input_layernorm.weight.float()
                norm.weight.copy_(weight / weight.square().mean().sqrt())
            head.fc_norm[-1].weight.copy_(theirs.norm.weight)

            # 2. The highest state passes `fc`, and each position sees above all itself.
            head.fc.weight[:, -size:] += torch.eye(size)
            look_at_oneself(head.midlayer.self_attn, self.config)
        head.lm_head.requires_grad_(requires_grad=False)
        trained: torch.nn.Module = head
        return trained

    def set_share(self, share: float) -> None:
        self.count = 1 if share < ALONE else self.options.tokens

    def ahead(self, batch: Batch, count: int) -> list[torch.Tensor]:
        """Make `count` steps; step i at t has read the target's state of position t - 1 - i, and the tokens up to t."""
        import torch

        # 1. What all steps read: embeddings of the next tokens, and the target's states made one.
        head, length = self.head, batch.tokens.shape[1] - 1
        assert batch.hidden is not None
        turn = rotation(self.config, torch.arange(length, device=batch.tokens.device))
        words = head.midlayer.input_layernorm(self.target.embedding[batch.tokens[:, 1:]].float())
        hidden = batch.hidden[:, :-1].to(self.target.head.dtype)
        read = [norm(hidden[:, :, place]) for place, norm in enumerate(head.fc_norm)]
        state, keys, states = head.fc(torch.cat(read, -1)), KeptKeys(self.config), []

        # 2. Each step goes on from the state of the one before, moved to the position where it is known.
        for _ in range(count):
            state = layer(head.midlayer, words, state, turn, keys)
            states.append(torch.nn.functional.pad(head.norm(state), (0, 0, 1, 0)))
            state = state.roll(1, 1)
        return states

    def maps(self) -> dict[str, torch.Tensor]:
        return reduced_vocabulary.maps(self.vocabulary, self.target.config.vocab_size)

    def configuration(self) -> dict[str, Any]:
        size = {"draft_vocab_size": len(self.vocabulary), "target_hidden_size": self.config.hidden_size}
        read = {
            "eagle_aux_hidden_state_layer_ids": list(self.layers),
            "num_aux_hidden_states": len(self.layers),
            "fc_norm": True,
        }
        return {
            **self.config.to_dict(),
            "architectures": ["LlamaForCausalLMEagle3"],
            "dtype": "bfloat16",
            **size,
            **read,
        }

    def described(self) -> dict[str, Any]:
        return {**super().described(), "layers read": list(self.layers)}


def depths(layers: int) -> tuple[int, ...]:
    """Return the layers after which the target's states are read: low, middle and high, as vLLM takes them where a head
    does not say."""
    return tuple(sorted({min(2, layers - 1), layers // 2, max(layers - 3, 1)}))


def llama(target: Any) -> Any:
    """Make the head's configuration: a Llama of one layer as wide as its target."""
    from transformers import LlamaConfig

    fields = {name: getattr(target, name) for name in SAME if getattr(target, name, None) is not None}
    return LlamaConfig(**fields, num_hidden_layers=1, tie_word_embeddings=False, attention_bias=False, mlp_bias=False)


def module(config: Any, states: int, tokens: int) -> Any:
    """Make the head's matrices under the names of the checkpoint; `layer` computes with them."""
    from torch import nn
    from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

    # 1. The decoder layer, whose attention reads embeddings beside states.
    size, eps = config.hidden_size, config.rms_norm_eps
    heads, kv_rows = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    attention = {
        "q_proj": (2 * size, heads),
        "k_proj": (2 * size, kv_rows),
        "v_proj": (2 * size, kv_rows),
        "o_proj": (heads, size),
    }
    whole, middle = nn.Module(), nn.Module()
    middle.self_attn = nn.ModuleDict({name: nn.Linear(*shape, bias=False) for name, shape in attention.items()})
    middle.mlp = LlamaMLP(config)
    for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm"):
        middle.add_module(name, LlamaRMSNorm(size, eps))

    # 2. Norms and the matrix before it, norm and output matrix behind it.
    whole.fc_norm = nn.ModuleList(LlamaRMSNorm(size, eps) for _ in range(states))
    whole.fc, whole.midlayer = nn.Linear(states * size, size, bias=False), middle
    whole.norm, whole.lm_head = LlamaRMSNorm(size, eps), nn.Linear(size, tokens, bias=False)

    # 3. Initial weights.
    for part in whole.modules():
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=SPREAD)
    return whole


def look_at_oneself(attention: Any, config: Any) -> None:
    """Begin queries as keys, so that a position sees above all itself and what is like it.

    A token comes into the head by its attention alone, and would be one of hundreds there.
    """
    kv_rows, size = config.num_key_value_heads, config.head_dim
    keys = attention["k_proj"].weight.mul_(math.sqrt(ALIKE)).unflatten(0, (kv_rows, size))
    attention["q_proj"].weight.copy_(keys.repeat_interleave(config.num_attention_heads // kv_rows, 0).flatten(0, 1))


def rotation(config: Any, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute cosine and sine [1, T, head size] of rotary embeddings at `places` [T]."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    cos_sin: tuple[torch.Tensor, torch.Tensor] = LlamaRotaryEmbedding(config).to(places.device)(
        places.float(), places[None]
    )
    return cos_sin


def layer(
    own: Any, words: torch.Tensor, state: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor], keys: KeptKeys
) -> Any:
    """Run the decoder layer over normed embeddings and states [B, T, H] each.

    Attention reads both; the residual is the state.
    """
    import torch

    both = torch.cat([words.to(state.dtype), own.hidden_norm(state).to(state.dtype)], -1)
    state = state + own.self_attn["o_proj"](keys.attend(own.self_attn, both, turn))
    return state + own.mlp(own.post_attention_layernorm(state))


class KeptKeys:
    """Keys and values of the steps made so far.

    Step j of position t sees the first step's up to t - j, made of the target's states, and of each later step i the
    one on its own path, at t - j + i: what a server's cache holds when it proposes.
    """

    def __init__(self, config: Any) -> None:
        self.heads, self.kv_heads, self.size = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []

    def attend(self, own: Any, read: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Attend from what is read [B, T, 2 H]; return [B, T, heads x size] and store the step's keys and values."""
        import torch
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        # 1. Queries, keys and values of this step [B, heads, T, size].
        query, key, value = (
            own[name](read).unflatten(-1, (count, self.size)).transpose(1, 2)
            for name, count in (("q_proj", self.heads), ("k_proj", self.kv_heads), ("v_proj", self.kv_heads))
        )
        cosine, sine = turn
        query, key = apply_rotary_pos_emb(query, key, cosine.to(query.dtype), sine.to(query.dtype))
        group = self.heads // self.kv_heads
        self.keys.append(key.repeat_interleave(group, 1))
        self.values.append(value.repeat_interleave(group, 1))
        # 2. Scores against the first step's keys, up to t - step, and against one key of each later step.
        step, length = len(self.keys) - 1, read.shape[1]
        ahead = torch.ones(length, length, dtype=torch.bool, device=read.device).triu(1 - step)
        first = (query @ self.keys[0].transpose(-1, -2)).float().masked_fill(ahead, -math.inf)
        distance = [
            (query * self.keys[step_back].roll(step - step_back, 2)).sum(-1, keepdim=True).float()
            for step_back in range(1, step + 1)
        ]
        # 3. One softmax over all of them, and the values by their share.
        share = (torch.cat([first, *distance], -1) / math.sqrt(self.size)).softmax(-1).to(query.dtype)
        mixed = share[..., :length] @ self.values[0]
        for step_back in range(1, step + 1):
            mixed = mixed + share[..., length + step_back - 1, None] * self.values[step_back].roll(step - step_back, 2)
        return mixed.transpose(1, 2).flatten(2)
