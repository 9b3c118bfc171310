"""Train the starter target: a Llama of 11 M parameters on the standard library's sources.

Weights, gradients and optimizer state are fp32; matrix products run in bfloat16 where the processor has it (autocast),
which was measured 2.6x faster here and so sees 2.6x the tokens.

    python assets/starter/training/train_target.py OUT --minutes 50

Writes OUT/target (bfloat16 safetensors, tokenizer) and OUT/log.jsonl. Deterministic up to the number of steps that
fit the time budget.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from common import END, VOCABULARY, Clock, batch, config, encode, optimizer, perplexity, save
from corpus import texts
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast


def train_tokenizer(documents: list[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE of 4096 entries; digits apart, so that numbers are not memorised whole."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=END, eos_token=END, pad_token=END, model_max_length=2048
    )


def train(model: LlamaForCausalLM, stream: torch.Tensor, held_out: torch.Tensor, seconds: float, log: Path) -> None:
    """AdamW, 4096 tokens a step: windows of 1024, and of 2048 in the last fifth so that long contexts are seen."""
    steps, clock = optimizer(model), Clock(seconds, peak=1.5e-3)
    generator = torch.Generator().manual_seed(0)
    step = 0
    while clock.share < 1.0:
        length = 1024 if clock.share < 0.8 else 2048
        ids = batch(stream, 4096 // length, length, generator)
        for group in steps.param_groups:
            group["lr"] = clock.rate(step)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(ids, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        steps.step()
        steps.zero_grad(set_to_none=True)
        step += 1
        if step % 50 == 0 or clock.share >= 1.0:
            record = {
                "step": step,
                "tokens": step * 4096,
                "seconds": round(time.monotonic() - clock.started),
                "loss": round(loss.item(), 4),
            }
            if step % 500 == 0 or clock.share >= 1.0:
                record["held_out_perplexity"] = round(perplexity(model, held_out), 3)
            with log.open("a") as sink:
                sink.write(json.dumps(record) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--minutes", type=float, default=60)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    arguments.out.mkdir(parents=True, exist_ok=True)
    documents = texts(held_out=False)
    tokenizer = train_tokenizer(documents)
    stream, held_out = encode(tokenizer, documents), encode(tokenizer, texts(held_out=True))
    model = LlamaForCausalLM(config(hidden=512, layers=3, heads=8, intermediate=1536))
    print(f"{model.num_parameters()} parameters, {len(stream)} training tokens, {len(held_out)} held out", flush=True)
    train(model, stream, held_out, arguments.minutes * 60, arguments.out / "log.jsonl")
    save(model, tokenizer, arguments.out / "target")


if __name__ == "__main__":
    main()
