"""Builds tiny random models with a byte-level tokenizer in a folder, for tests: real files, real weights, a second to
make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

END = "<|endoftext|>"

TEXT = """def add(first, second):
    \"\"\"Return the sum of two numbers, whatever they are.\"\"\"
    return first + second


class Counter:
    def __init__(self, start=0):
        self.value = start

    def step(self, by=1):
        self.value += by
        return self.value


for number in range(10):
    print(number, add(number, number * 2), Counter(number).step())
"""


def tiny_llama(
    folder: Path,
    *,
    seed: int = 0,
    hidden: int = 128,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    intermediate: int = 256,
    vocabulary: int = 320,
    tied: bool = True,
    family: str = "llama",
    **overrides: Any,
) -> Path:
    """Write a random model of `family` (llama, mistral, qwen2) with tokenizer into `folder`, in bfloat16; return
    `folder`."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        family,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden // heads,
        intermediate_size=intermediate,
        vocab_size=vocabulary,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        **overrides,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
        roughen(model)
    folder.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(folder)
    byte_tokenizer(folder, vocabulary)
    return folder


def roughen(model: Any) -> None:
    """Uneven channels and biases that are not zero: activations as skewed as a trained model's, or scales have nothing
    to do."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(torch.exp(torch.randn(parameter.shape) * 0.7))
            elif name.endswith("bias"):
                parameter.copy_(torch.randn(parameter.shape) * 0.1)
            else:
                parameter.mul_(2.0)


def byte_tokenizer(folder: Path, vocabulary: int = 320) -> None:
    """A byte-level BPE tokenizer trained on TEXT, padded with unused tokens to exactly `vocabulary` (at least 257)
    entries."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.add_tokens([f"<unused{number}>" for number in range(vocabulary - tokenizer.get_vocab_size())])
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=END, eos_token=END, pad_token=END)
    wrapped.save_pretrained(folder)


def edit_json(path: Path, **changes: Any) -> None:
    """Set fields of a JSON file; a value of None removes the field."""
    document = json.loads(path.read_text())
    document.update(changes)
    path.write_text(json.dumps({key: value for key, value in document.items() if value is not None}))


def begins_texts(model: Path) -> None:
    """Its tokenizer puts token 0 before every text, as Gemma's and Llama 3's do."""
    path, settings = model / "tokenizer.json", model / "tokenizer_config.json"
    document, token = json.loads(path.read_bytes()), "<|endoftext|>"
    document["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {token: {"id": token, "ids": [0], "tokens": [token]}},
    }
    path.write_text(json.dumps(document))
    settings.write_text(json.dumps({**json.loads(settings.read_bytes()), "bos_token": token}))


FURTHER_HEADS = {
    "multi-token layers under a name of their own": ("mtp.layers.0.", "re:.*mtp.*", None),
    "multi-token layers inside the base model": ("model.mtp_layers.0.", "re:.*mtp_layers.*", None),
    "a layer behind the last one": ("model.layers.2.", "re:.*model[.]layers[.]2[.].*", 1),
    "an EAGLE head in the checkpoint": ("eagle_module.layers.0.", "re:.*eagle_module.*", None),
}
"""What the names begin with, the pattern that excepts them, and `num_nextn_predict_layers`."""


def read_tensors(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return dict(load_file(folder / "model.safetensors"))


def with_further_head(folder: Path, begin: str, further: int | None) -> Path:
    """A tiny model with a head of which one tensor is fp32, as its maker left it."""
    import torch
    from safetensors.torch import save_file

    model = tiny_llama(folder)
    generator = torch.Generator().manual_seed(1)
    head = {
        f"{begin}self_attn.q_proj.weight": torch.randn(128, 128, generator=generator).bfloat16(),
        f"{begin}eh_proj.weight": torch.randn(128, 256, generator=generator),
        f"{begin}enorm.weight": torch.ones(128).bfloat16(),
    }
    save_file(read_tensors(model) | head, model / "model.safetensors", metadata={"format": "pt"})
    if further:
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": further}))
    return model
