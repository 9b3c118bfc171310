"""Distil the starter draft: a one-layer Llama of 1.2 M parameters, taught by the target's own distributions.

    python assets/starter/training/distil_draft.py OUT --minutes 16
    python assets/starter/training/distil_draft.py OUT --minutes 10 --resume --seed 2

Forward KL divergence KL(target || draft) over the full vocabulary, two thirds on the target's own samples (temperature
1, since that is the text on which drafts are accepted or not: on-policy distillation as in DistillSpec, Zhou et al.
2023, section 4) and one third on the training sources. Reads OUT/target, writes OUT/draft.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from common import Clock, batch, config, encode, optimizer, save
from corpus import texts
from transformers import AutoTokenizer, LlamaForCausalLM

SAMPLED = 480
"""New tokens a sample, after 32 of the sources."""
LENGTH = 384
"""Tokens a window: beyond prompt and answer of the bundled workload."""


@torch.inference_mode()
def samples(target: LlamaForCausalLM, stream: torch.Tensor, seconds: float, seed: int) -> torch.Tensor:
    """Continuations of random training windows, as one stream [tokens]."""
    generator, ended = torch.Generator().manual_seed(seed), time.monotonic() + seconds
    found = []
    while time.monotonic() < ended:
        prompts = batch(stream, 96, 32, generator)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found.append(
                target.generate(
                    prompts,
                    attention_mask=torch.ones_like(prompts),
                    do_sample=True,
                    temperature=1.0,
                    top_k=0,
                    min_new_tokens=SAMPLED,
                    max_new_tokens=SAMPLED,
                )
            )
    return torch.cat(found).flatten()


def divergence(target: torch.Tensor, draft: torch.Tensor) -> torch.Tensor:
    """Mean KL(target || draft) in nats; both [tokens, vocabulary] logits."""
    p, q = target.float().log_softmax(-1), draft.float().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1).mean()


def acceptance(target: torch.Tensor, draft: torch.Tensor) -> float:
    """Expected acceptance of one draft token at temperature 1: sum of min(p, q) (Leviathan et al. 2023, theorem
    3.5)."""
    return torch.minimum(target.float().softmax(-1), draft.float().softmax(-1)).sum(-1).mean().item()


def distil(
    target: LlamaForCausalLM, draft: LlamaForCausalLM, streams: list[torch.Tensor], seconds: float, log: Path
) -> None:
    steps, clock = optimizer(draft), Clock(seconds, peak=3e-3)
    generator = torch.Generator().manual_seed(2)
    step = 0
    while clock.share < 1.0:
        ids = torch.cat([batch(stream, 4, LENGTH, generator) for stream in streams])
        for group in steps.param_groups:
            group["lr"] = clock.rate(step)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            with torch.no_grad():
                taught = target(ids, use_cache=False).logits.flatten(0, 1)
            said = draft(ids, use_cache=False).logits.flatten(0, 1)
        loss = divergence(taught, said)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
        steps.step()
        steps.zero_grad(set_to_none=True)
        step += 1
        if step % 100 == 0 or clock.share >= 1.0:
            record = {
                "step": step,
                "seconds": round(time.monotonic() - clock.started),
                "kl": round(loss.item(), 4),
                "acceptance_t1": round(acceptance(taught, said), 4),
            }
            with log.open("a") as sink:
                sink.write(json.dumps(record) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--resume", action="store_true", help="carry on from OUT/draft with fresh samples")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    folder = arguments.out / "target"
    tokenizer = AutoTokenizer.from_pretrained(folder)
    target = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    stream = encode(tokenizer, texts(held_out=False))
    sampled = samples(target, stream, arguments.minutes * 60 * 0.25, arguments.seed)
    print(f"{len(sampled)} sampled tokens", flush=True)
    draft = LlamaForCausalLM(config(hidden=192, layers=1, heads=4, intermediate=384))
    if arguments.resume:
        draft = LlamaForCausalLM.from_pretrained(arguments.out / "draft", dtype=torch.float32)
    distil(target, draft, [sampled, sampled, stream], arguments.minutes * 60 * 0.75, arguments.out / "draft-log.jsonl")
    save(draft, tokenizer, arguments.out / "draft")


if __name__ == "__main__":
    main()
