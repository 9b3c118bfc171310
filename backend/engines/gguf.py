"""A GGUF file -> a model folder with bfloat16 safetensors, by transformers' own reader, in a process of its own with limits.

    python -m backend.engines.gguf FILE FOLDER ARCHITECTURE BEGINS BYTES SECONDS

`FOLDER` is made whole or left unfinished, never published here. Whoever starts it has read the file's head
(`catalog.cards.gguf`) and refused what is out of bounds. What GGUF does not hold, such as a vision tower, is not made.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend import files
from backend.domain.errors import InvalidModel, NotEnoughMemory

if TYPE_CHECKING:
    import torch

BASE_BYTES = 4 * 10**9
"""Of the libraries, a vocabulary as Python objects, and one tensor while it is unpacked."""
CPU_SECONDS, CPU_SECONDS_A_BILLION = 600, 300
REFUSED = "refused.txt"
"""Why, left in the folder by a child that could not go on."""
SAMPLING = ("bos_token_id", "eos_token_id", "pad_token_id")
TOKENS = {"bos": "bos_token", "eos": "eos_token", "unk": "unk_token", "pad": "pad_token"}


def convert(source: Path, folder: Path, architecture: str, parameters: int, free_bytes: int, *, begins: bool = False) -> None:
    """Make the model folder in a child. `begins`: texts begin with the first token (add_bos_token).

    Raises InvalidModel with the reason, NotEnoughMemory before any work.
    """
    needed = BASE_BYTES + 4 * parameters  # the weights once in 16 bits, and once more while they are written
    if needed > free_bytes:
        raise NotEnoughMemory(
            f"Converting needs {needed / 1e9:.1f} GB of memory and {free_bytes / 1e9:.1f} GB are free: free some."
        )
    seconds = CPU_SECONDS + CPU_SECONDS_A_BILLION * parameters // 10**9
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1"}
    asked = map(str, (source, folder, architecture, int(begins), needed, seconds))
    code = subprocess.call([sys.executable, "-m", "backend.engines.gguf", *asked], env=environment)
    if code != 0:
        why = folder / REFUSED
        reason = why.read_text() if why.is_file() else f"its reader ended with code {code}, the log has its last words"
        raise InvalidModel(f"{source.name} could not be converted: {reason}.")


def _make(source: Path, folder: Path, architecture: str, *, begins: bool) -> None:
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    said = load_gguf_checkpoint(str(source))
    config = AutoConfig.for_model(**{name: value for name, value in said["config"].items() if not name.startswith("_")})
    with torch.device("meta"):
        outline = AutoModelForCausalLM.from_config(config)
    found = load_gguf_checkpoint(str(source), return_tensors=True, model_to_load=outline, torch_dtype=torch.bfloat16)["tensors"]
    save_file(_checked(found, outline), folder / "model.safetensors", metadata={"format": "pt"})
    config.architectures, config.dtype = [architecture], torch.bfloat16
    config.save_pretrained(folder)
    _write_tokenizer(folder, config, said["tokenizer"], said["tokenizer_config"] | {"add_bos_token": begins})
    ids = {name: value for name in SAMPLING if (value := getattr(config, name, None)) is not None}
    files.write(folder / "generation_config.json", json.dumps(ids, indent=1) + "\n")


def _checked(found: dict[str, torch.Tensor], outline: Any) -> dict[str, torch.Tensor]:
    """All tensors that the model has, in its shapes, and no others. A tied head is the embedding. Raises InvalidModel."""
    import torch

    wanted = {name: tuple(tensor.shape) for name, tensor in outline.state_dict().items()}
    if outline.config.tie_word_embeddings:
        wanted.pop("lm_head.weight", None)
    for name, shape in wanted.items():
        if name not in found or tuple(found[name].shape) != shape:
            state = "is missing" if name not in found else f"is of {tuple(found[name].shape)}, not {shape}"
            raise InvalidModel(f"its tensor for {name} {state}")
    return {name: found[name].to(torch.bfloat16).contiguous() for name in wanted}


def _write_tokenizer(folder: Path, config: Any, said: dict[str, Any], settings: dict[str, Any]) -> None:
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast
    from transformers.integrations.ggml import convert_gguf_tokenizer

    made, _ = convert_gguf_tokenizer(config.model_type, said)
    ids = {name: settings.get(f"{name}_token_id") for name in TOKENS}
    words = {TOKENS[name]: said["tokens"][number] for name, number in ids.items() if isinstance(number, int)}
    first = words.get("bos_token")
    if settings.get("add_bos_token") and first and made.encode("a").ids[:1] != [ids["bos"]]:
        made.post_processor = TemplateProcessing(
            single=f"{first} $A", pair=f"{first} $A {first} $B", special_tokens=[(first, ids["bos"])]
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, model_max_length=config.max_position_embeddings, clean_up_tokenization_spaces=False,
        chat_template=settings.get("chat_template"), **words,
    )  # fmt: skip
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    document = json.loads(path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    kept = {name: value for name, value in document.items() if name not in {"backend", "is_local", "local_files_only"}}
    files.write(path, json.dumps(kept, indent=1) + "\n")


def main() -> int:
    source, folder, architecture = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    begins, needed, seconds = map(int, sys.argv[4:])
    resource.setrlimit(resource.RLIMIT_DATA, (needed, needed))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    try:
        _make(source, folder, architecture, begins=bool(begins))
    except ImportError:
        files.write(folder / REFUSED, "the library gguf is missing from this environment: run `make setup` again")
        return 1
    except (InvalidModel, ValueError, KeyError, IndexError, MemoryError, NotImplementedError) as error:
        first = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
        files.write(folder / REFUSED, first[:300])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
