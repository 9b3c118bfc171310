"""What both training scripts share: the token stream, batches, the time-driven schedule and perplexity."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCABULARY = 4096
END = "<|endoftext|>"


def config(hidden: int, layers: int, heads: int, intermediate: int) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        rms_norm_eps=1e-5,
    )


def encode(tokenizer: PreTrainedTokenizerFast, documents: list[str]) -> torch.Tensor:
    """All documents as one stream [tokens], each closed by the end token."""
    ids: list[int] = []
    for encoded in tokenizer(documents, add_special_tokens=False)["input_ids"]:
        ids += encoded
        ids.append(0)
    return torch.from_numpy(numpy.array(ids, dtype=numpy.int64))


def batch(stream: torch.Tensor, rows: int, length: int, generator: torch.Generator) -> torch.Tensor:
    """`rows` random windows [rows, length] of the stream."""
    starts = torch.randint(0, len(stream) - length, (rows,), generator=generator)
    return torch.stack([stream[s : s + length] for s in starts.tolist()])


@dataclass
class Clock:
    """Learning rate by elapsed share of a wall-clock budget: short warm-up, plateau, linear decay over the last 40
    %."""

    seconds: float
    peak: float
    started: float = field(default_factory=time.monotonic)

    @property
    def share(self) -> float:
        return (time.monotonic() - self.started) / self.seconds

    def rate(self, step: int) -> float:
        decay = min(1.0, max(0.02, (1.0 - self.share) / 0.4))
        return self.peak * min(1.0, (step + 1) / 40) * decay


def optimizer(model: torch.nn.Module) -> torch.optim.AdamW:
    matrices = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), fused=True)


@torch.no_grad()
def perplexity(model: LlamaForCausalLM, stream: torch.Tensor, length: int = 1024, windows: int = 32) -> float:
    model.eval()
    step = max(length, (len(stream) - length) // windows)
    losses = []
    for start in range(0, len(stream) - length, step):
        ids = stream[None, start : start + length]
        logits = model(ids).logits
        losses.append(torch.nn.functional.cross_entropy(logits[0, :-1].float(), ids[0, 1:]).item())
    model.train()
    return math.exp(sum(losses) / len(losses))


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write bfloat16 safetensors beside a tokenizer that older transformers read as well."""
    folder.mkdir(parents=True, exist_ok=True)
    copy = LlamaForCausalLM(model.config)
    copy.load_state_dict(model.state_dict())
    copy.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
