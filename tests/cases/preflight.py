"""Models that are sound, noted or refused before any job: one function a case, which writes a folder and returns it."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

from tests.cases.models import CHAT, SIZES, edit, llama, put_tokenizer, rewrite, split

GEMMA_LIKE = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% "
    "endif %}"
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}<|im_start|>{{ m['role'] }}\n{{ m['content'] | trim "
    "}}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>model\n{% endif %}"
)
NEEDS_TOOLS = (
    "{% for m in messages %}{{ raise_exception('A tools list is required') if not tools }}{{ m['content'] }}{% endfor "
    "%}"
)
TYPED = (
    "{% for m in messages %}{{ m['role'] }}: {% for part in m['content'] %}{{ part['text'] }}{% endfor %}\n{% endfor %}"
)


def consolidated(folder: Path) -> Path:
    """Shards with an index beside Mistral's own consolidated.safetensors and params.json."""
    llama(folder)
    whole = (folder / "model.safetensors").read_bytes()
    split(folder)
    (folder / "consolidated.safetensors").write_bytes(whole)
    (folder / "params.json").write_text('{"dim": 256}')
    return folder


def tokenizer_beyond_embedding(folder: Path) -> Path:
    """`<|im_start|>` and `<|im_end|>` are tokens 1020 and 1021, and the embedding has 1020 rows."""
    return llama(folder, vocab_size=1020)


def template(folder: Path, written: Any) -> Path:
    """Any chat template, or a list of named ones."""
    return llama(folder, template=written)


def named_templates(folder: Path, *, default: bool) -> Path:
    """Two templates by name, as tool-using models have them."""
    names = ("default" if default else "rag", "tool_use")
    return template(folder, [{"name": name, "template": CHAT} for name in names])


def few_positions(folder: Path, positions: int = 64) -> Path:
    """A GPT-2 whose table of positions is shorter than a sequence of calibration."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=1024,
        n_embd=256,
        n_layer=2,
        n_head=4,
        n_positions=positions,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = GPT2LMHeadModel(config).bfloat16()
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    return put_tokenizer(folder, None)


def hub_snapshot(cache: Path) -> Path:
    """acme/Tiny-Chat-1B as huggingface_hub keeps it: a snapshot of links to files that are called by their hash."""
    model = cache / "models--acme--Tiny-Chat-1B"
    snapshot = llama(model / "snapshots" / ("0123456789abcdef" * 3)[:40])
    blobs = model / "blobs"
    blobs.mkdir()
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(snapshot.name)
    for path in list(snapshot.iterdir()):
        blob = blobs / hashlib.sha256(path.read_bytes()).hexdigest()
        path.rename(blob)
        path.symlink_to(Path("../../blobs") / blob.name)
    return snapshot


def adapter(folder: Path) -> Path:
    """A LoRA adapter alone, without its base."""
    import torch
    from safetensors.torch import save_file

    put_tokenizer(folder)
    values = {"base_model_name_or_path": "acme/base", "peft_type": "LORA", "r": 8}
    (folder / "adapter_config.json").write_text(json.dumps(values))
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    save_file({name: torch.zeros(8, 256)}, folder / "adapter_model.safetensors")
    return folder


def extra_files(folder: Path) -> Path:
    """A template in a file of its own, another beside it, and a generation config that contradicts itself."""
    llama(folder, template=None)
    (folder / "chat_template.jinja").write_text(CHAT)
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text(CHAT)
    odd = {
        "do_sample": False,
        "temperature": 0.6,
        "top_p": 0.95,
        "eos_token_id": [1, 1021],
        "transformers_version": "4.40.0",
    }
    (folder / "generation_config.json").write_text(json.dumps(odd))
    (folder / "preprocessor_config.json").write_text("{}")
    return folder


def without_head(folder: Path) -> Path:
    """No lm_head.weight, although config.json does not tie it."""
    llama(folder)
    rewrite(folder, lambda tensors: {name: tensor for name, tensor in tensors.items() if name != "lm_head.weight"})
    return folder


def misshapen(folder: Path) -> Path:
    """One matrix of another model's."""
    llama(folder)
    rewrite(
        folder,
        lambda tensors: {**tensors, "model.layers.1.mlp.up_proj.weight": tensors["lm_head.weight"][:500].clone()},
    )
    return folder


def missing_tensor(folder: Path) -> Path:
    """One matrix of a layer is not there."""
    llama(folder)
    left_out = "model.layers.1.self_attn.k_proj.weight"
    rewrite(folder, lambda tensors: {name: tensor for name, tensor in tensors.items() if name != left_out})
    return folder


def padding_beyond(folder: Path) -> Path:
    """A `pad_token_id` that no row of the embedding has."""
    llama(folder)
    edit(folder / "config.json", pad_token_id=1024)
    return folder


def scaling_without_factor(folder: Path) -> Path:
    """Rope scaling that does not say by how much."""
    llama(folder)
    edit(folder / "config.json", rope_scaling={"type": "linear"}, rope_parameters=None)
    return folder


def sentencepiece_alone(folder: Path) -> Path:
    """A tokenizer.model that no library here can read, and no tokenizer.json."""
    llama(folder)
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").write_bytes(b"\x0a\x10no sentencepiece")
    edit(folder / "tokenizer_config.json", tokenizer_class="LlamaTokenizer")
    return folder


def large(folder: Path, layers: int = 6) -> Path:
    """A Llama of 10 GB in one file, which is all holes and takes no disk: headers and shapes are those of a real
    one."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    wide = {"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_key_value_heads": 8}
    config = LlamaConfig(**{**SIZES, **wide, "num_hidden_layers": layers})
    with torch.device("meta"):
        shapes = {name: list(tensor.shape) for name, tensor in LlamaForCausalLM(config).state_dict().items()}
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    encoded = json.dumps(header).encode()
    put_tokenizer(folder)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        file.truncate(8 + len(encoded) + end)
    config.architectures, config.dtype = ["LlamaForCausalLM"], "bfloat16"
    config.save_pretrained(folder)
    return folder


def rebuilt_by_class(folder: Path) -> Path:
    """A byte-level tokenizer.json under a class that builds a tokenizer with Metaspace."""
    llama(folder)
    edit(folder / "tokenizer_config.json", tokenizer_class="LlamaTokenizerFast")
    return folder
