"""Small random models in the forms that people meet: a plain Llama with a trained tokenizer, and changes to it."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from backend.settings import ASSETS

VOCABULARY = 1024
TURN = "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
CHAT = (
    "{{ bos_token }}{% for m in messages %}" + TURN + "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A plain chat template, ChatML with a token for the beginning."""
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


@cache
def tokenizer_folder() -> Path:
    """A byte-level BPE tokenizer of 1,022 tokens, trained once a process on the bundled calibration text.

    Tokens 0 to 2 are `<s>`, `</s>` and `<unk>`; the last two are `<|im_start|>` (1020) and `<|im_end|>` (1021). It puts
    `<s>` before every text.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1020,
        special_tokens=["<s>", "</s>", "<unk>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    text = (ASSETS / "text" / "calibration.txt").read_text(encoding="utf-8")[:200_000]
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 0)]
    )
    folder = Path(tempfile.mkdtemp(prefix="whetstone-case-tokenizer-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
    wrapped.save_pretrained(folder)
    return folder


def put_tokenizer(folder: Path, template: Any = CHAT, **settings: Any) -> Path:
    """Copy the tokenizer into a model's folder; `template` and `settings` go into its tokenizer_config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in tokenizer_folder().iterdir():
        shutil.copyfile(path, folder / path.name)
    changes = settings if template is None else {"chat_template": template, **settings}
    edit(folder / "tokenizer_config.json", **changes)
    return folder


def edit(path: Path, **changes: Any) -> None:
    """Set fields of a JSON file."""
    document = json.loads(path.read_text(encoding="utf-8")) | changes
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")


def llama(
    folder: Path,
    *,
    template: Any = CHAT,
    dtype: str = "bfloat16",
    change: Callable[[Any], None] | None = None,
    **sizes: Any,
) -> Path:
    """Write a random Llama of two layers with the tokenizer, and return `folder`.

    `sizes` replaces fields of SIZES, `change` edits the model before it is saved. The weights are the same at every
    call.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(LlamaConfig(**{**SIZES, **sizes})).to(getattr(torch, dtype))
    if change is not None:
        change(model)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    return put_tokenizer(folder, template)


def rewrite(folder: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Replace the tensors of model.safetensors by what `change` makes of them, name -> tensor."""
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    tensors = {name: tensor.contiguous() for name, tensor in change(load_file(path)).items()}
    save_file(tensors, path, metadata={"format": "pt"})


def split(folder: Path, shards: int = 2) -> None:
    """Cut model.safetensors into `shards` files with an index, as large checkpoints come."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    file_of = {name: f"model-{1 + number % shards:05}-of-{shards:05}.safetensors" for number, name in enumerate(names)}
    for file in sorted(set(file_of.values())):
        by_name = {name: tensors[name] for name in names if file_of[name] == file}
        save_file(by_name, folder / file, metadata={"format": "pt"})
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": file_of}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
    (folder / "model.safetensors").unlink()
