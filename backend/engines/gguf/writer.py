"""Writes the GGUF file of a model folder with the package gguf: keys, tokenizer, chat templates, tensors one at a time.

Tensors have the form that a `TensorForm` gives them: as they are stored, or as blocks of another type.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from backend.domain.errors import InvalidModel
from backend.domain.model.gguf.conversion import CarriedTensor
from backend.domain.model.gguf.export import ExportPlan, plan_export
from backend.domain.model.gguf.rope import FREQUENCIES
from backend.engines.gguf import vocabulary
from backend.engines.gguf.vocabulary import Vocabulary
from backend.layered import dequantize
from backend.layered.weight_source import WeightSource

if TYPE_CHECKING:
    import numpy as np
    import torch

    Blocks = np.ndarray[Any, Any]

FLOATS = {"BF16": "BF16", "F16": "F16", "F32": "F32"}
"""Types of safetensors -> those of ggml, for matrices that stay as they are."""
BYTES = {"F32": 4, "F16": 2, "BF16": 2}


class TensorForm(NamedTuple):
    """The form of one tensor in the file. `kind` is ggml's name of the type, `bytes` its size; `read` makes the data,
    bytes row by row [rows, bytes of a row]."""

    kind: str
    bytes: int
    read: Callable[[], Blocks]


class Source(NamedTuple):
    """A model folder that a GGUF file can be written of."""

    name: str
    folder: Path
    plan: ExportPlan
    vocabulary: Vocabulary
    weights: WeightSource


def open_source(folder: Path, name: str) -> Source:
    """Read the folder's config, names of tensors and tokenizer. Raises InvalidModel, one sentence, for what a GGUF file
    could not state."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False).to_dict()
    weights = dequantize.open_plain(folder)
    plan = plan_export(name, config, weights.plain())
    return Source(name, folder, plan, vocabulary.describe(folder, int(config["vocab_size"])), weights)


def write(
    path: Path,
    source: Source,
    forms: Callable[[CarriedTensor], TensorForm],
    *,
    file_type: str,
    about: dict[str, str] | None = None,
    advance: Callable[[int], None] = lambda count: None,
) -> None:
    """Write the file; `file_type` is a name of gguf's LlamaFileType, `about` keys that describe the model."""
    import numpy as np
    from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType

    # 1. Keys of the model.
    plan = source.plan
    writer = GGUFWriter(path, plan.architecture)
    writer.add_name(source.name)
    for key, text in (about or {}).items():
        writer.add_string(key, text)
    writer.add_file_type(int(LlamaFileType[file_type]))
    writer.add_quantization_version(2)
    for key, value in plan.keys.items():
        _add(writer, f"{plan.architecture}.{key}", value)

    # 2. Keys of the tokenizer, and chat templates.
    for key, value in source.vocabulary.values.items():
        _add(writer, key, value)
    for key, values in source.vocabulary.lists.items():
        writer.add_array(key, values)
    templates = source.vocabulary.templates
    if templates:
        writer.add_chat_template([{"name": name, "template": text} for name, text in templates.items()])

    # 3. The table of tensors.
    formed = [(tensor, forms(tensor)) for tensor in plan.tensors]
    for tensor, form in formed:
        writer.add_tensor_info(
            tensor.name, tensor.shape, np.dtype(np.int8), form.bytes, raw_dtype=GGMLQuantizationType[form.kind]
        )
    if plan.frequencies:
        factors = np.array(plan.frequencies, dtype=np.float32)
        writer.add_tensor_info(FREQUENCIES, factors.shape, factors.dtype, factors.nbytes)

    # 4. The data, one tensor at a time.
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for number, (_, form) in enumerate(formed, 1):
        writer.write_tensor_data(form.read())
        advance(number)
    if plan.frequencies:
        writer.write_tensor_data(factors)
    writer.close()


def _add(writer: Any, key: str, value: Any) -> None:
    """Add a key with the type that llama.cpp reads it in."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_string(key, value)


def plain_form(source: Source, tensor: CarriedTensor) -> TensorForm:
    """Return a tensor as it is stored, matrices in 16 bits and vectors in 32: llama.cpp adds and multiplies by vectors
    in 32 bits."""
    header = source.weights.tensors.get(tensor.becomes[0])
    kind = FLOATS.get(header.dtype if header else "", "BF16") if len(tensor.shape) > 1 else "F32"
    size = BYTES[kind]
    for side in tensor.shape:
        size *= side
    return TensorForm(kind, size, lambda: _float_bytes(read_tensor(source, tensor), kind))


def read_tensor(source: Source, tensor: CarriedTensor) -> torch.Tensor:
    """Read a tensor by its name in the folder, dequantized, its rows in llama.cpp's order. Raises InvalidModel for
    another shape."""
    stored = source.weights.one(tensor.becomes[0])
    if tuple(stored.shape) != tensor.shape:
        raise InvalidModel(
            f"{source.name} has the tensor {tensor.becomes[0]} in the shape {tuple(stored.shape)} where its "
            f"config asks for {tensor.shape}."
        )
    return turned(stored, tensor)


def turned(rows: torch.Tensor, tensor: CarriedTensor) -> torch.Tensor:
    """Put rows into llama.cpp's order: it keeps the two that are rotated together side by side, transformers half a
    head apart."""
    if not tensor.turned_heads:
        return rows
    rest = rows.shape[1:]
    halves = rows.reshape(tensor.turned_heads, 2, -1, *rest)
    return halves.transpose(1, 2).reshape(rows.shape).contiguous()


def _float_bytes(values: torch.Tensor, kind: str) -> Blocks:
    import torch

    dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[kind]
    contiguous = values.to(dtype).contiguous()
    return contiguous.view(torch.uint8).numpy()
