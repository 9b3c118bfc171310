"""Models for benchmarks/quantize.py: Llamas of a given width, trained briefly so that activations have structure; kept
in build/.

Trained on the bundled calibration text with the starter model's tokenizer, always by the same steps from the same seed.
They predict badly, but their channels are as uneven as a trained model's, which is what scale searches live from.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.catalog.text import calibration_text
from backend.layered.matrix_products import fast_products
from backend.settings import ASSETS, CHECKOUT

if TYPE_CHECKING:
    import torch

FOLDER = CHECKOUT / "build" / "quantize-models"
TOKENIZER = ASSETS / "starter" / "target"
LAYERS = {256: 4, 512: 6, 1024: 8}
"""Hidden size -> decoder layers."""
STEPS = {256: 400, 512: 150, 1024: 40}
"""Minutes each on two cores."""
BATCH, LENGTH, RATE = 4, 256, 1e-3


def trained(hidden: int, steps: int | None = None) -> Path:
    """The model folder, trained now if it is not there; `steps` where it should not be those of `STEPS`."""
    folder = FOLDER / (f"hidden-{hidden}" if steps is None else f"hidden-{hidden}-{steps}-steps")
    if not (folder / "config.json").exists():
        with fast_products():
            _train(hidden, steps or STEPS[hidden], folder)
    return folder


def tiled(folder: Path, layers: int) -> Path:
    """A copy of the model with its decoder layers repeated, or cut, to `layers`: for measuring time and memory only."""
    import torch
    from transformers import AutoModelForCausalLM

    name = folder.with_name(f"{folder.name}-{layers}-layers")
    if (name / "config.json").exists():
        return name
    source = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    config = source.config
    have = config.num_hidden_layers
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[0]] * layers
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.load_state_dict(dict(_repeated(source.state_dict(), have, layers)))
    _save(model, name)
    return name


def _repeated(state: dict[str, Any], have: int, layers: int) -> list[tuple[str, Any]]:
    prefix = "model.layers."
    rows = [(name, tensor) for name, tensor in state.items() if not name.startswith(prefix)]
    for number in range(layers):
        own = f"{prefix}{number % have}."
        rows += [
            (f"{prefix}{number}.{n.removeprefix(own)}", tensor) for n, tensor in state.items() if n.startswith(own)
        ]
    return rows


def _train(hidden: int, steps: int, folder: Path) -> None:
    import torch

    torch.manual_seed(0)
    model = _fresh(hidden).train()
    stream = _stream()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=RATE, total_steps=steps)
    for step in range(steps):
        starts = torch.randint(len(stream) - LENGTH, (BATCH,))
        batch = torch.stack([stream[start : start + LENGTH] for start in starts.tolist()])
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            print(
                f"training hidden {hidden}: step {step} of {steps}, loss {loss.item():.2f}", file=sys.stderr, flush=True
            )
    _save(model.to(torch.bfloat16), folder)


def _fresh(hidden: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    vocabulary = json.loads((TOKENIZER / "config.json").read_bytes())["vocab_size"]
    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=LAYERS[hidden],
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 128,
        head_dim=64,
        vocab_size=vocabulary,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


def _stream() -> torch.Tensor:
    import torch
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER, local_files_only=True)
    return torch.tensor(tokenizer("".join(calibration_text.texts(None)), verbose=False)["input_ids"])


def _save(model: Any, folder: Path) -> None:
    """Whole or not at all: an interrupted run leaves no half model."""
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    model.save_pretrained(aside)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(TOKENIZER / name, aside / name)
    aside.replace(folder)
