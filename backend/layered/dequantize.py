"""Reads a quantized checkpoint as if it were a plain one: each weight is dequantized as it is read.

`domain.model.stored_weights` says how a checkpoint is stored; what it does not know is refused, never guessed.
compressed-tensors is read by that library, one module at a time: transformers' own loading does not reach every family
(GPT-2's Conv1D, Falcon's own linear, experts with zero points, renamed heads). The other formats have one formula each,
(number - zero) x scale:

- FP8 and INT8 with `weight_scale` or `weight_scale_inv`, one scale a matrix, an output row, a block or a group. Both
  names multiply (DeepSeek-V3's inference/kernel.py, `weight_dequant`; vLLM 0.32, layers/quantization/fp8.py and
  modelopt.py).
- AutoAWQ's GEMM (AutoAWQ 0.2.9, utils/packing_utils.py): `qweight` int32 [in, out / 8] and `qzeros` int32
  [groups, out / 8] hold eight unsigned 4-bit numbers each, the outputs in the order 0 2 4 6 1 3 5 7 from the lowest
  bits up; `scales` [groups, out].
- GPTQ (AutoGPTQ 0.7, nn_modules/qlinear/qlinear_cuda.py): `qweight` int32 [in x bits / 32, out] packs inputs from the
  lowest bits up, `qzeros` int32 [groups, out x bits / 32] outputs; `g_idx` [in] names each input's group. Zero points
  are stored minus one, in `gptq_v2` as they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.domain.errors import ImpossibleStack, ModelDamaged
from backend.domain.model import announced_quantization, stored_weights
from backend.domain.model.stored_weights import StoredWeights
from backend.layered.families import FAMILIES
from backend.layered.layer_passes import out_of_memory
from backend.layered.sources.fused_experts import FusedExpertsSource, is_fused
from backend.layered.weight_source import PackedSource, WeightSource

if TYPE_CHECKING:
    import torch

Parts = Mapping[str, "torch.Tensor"]
"""The stored tensors of one module by their local names."""


def recognise_layout(source: WeightSource) -> StoredWeights | None:
    """Return how the checkpoint stores its weights; None where they are plain.

    Raises InvalidModel where what is announced and what is stored disagree.
    """
    return announced_quantization.recognise(
        source.tensors, announcements(source.folder), transposed=_is_transposed(source.folder)
    )


def announcements(folder: Path) -> list[announced_quantization.Announcement]:
    """Return what config.json and the files beside it say of quantization. Raises ModelDamaged, InvalidModel."""
    side_files = {
        name: _document(folder / name) for name in announced_quantization.SIDE_FILES if (folder / name).is_file()
    }
    return announced_quantization.announcements(_document(folder / "config.json"), side_files)


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        document = None
    if not isinstance(document, dict):
        raise ModelDamaged(f"{path.name} cannot be read as a JSON object: download or export the model again.")
    return document


def _is_transposed(folder: Path) -> bool:
    """Return whether the family stores its weights [in, out]."""
    return any(row.transposed for row in FAMILIES.get(str(_document(folder / "config.json").get("model_type")), ()))


def open_plain(folder: Path) -> WeightSource:
    """Open the checkpoint as a plain one, whatever its form, with a linear for each expert.

    Raises ImpossibleStack for a layout without an exact reader, ModelDamaged, InvalidModel.
    """
    source = WeightSource(folder)
    layout = recognise_layout(source)
    if layout is None:
        return with_split_experts(source)
    if not layout.readable:
        raise ImpossibleStack(f"The model is already quantized. {layout.sentence}")
    return open_packed(folder)


def with_split_experts(source: WeightSource) -> WeightSource:
    """Return a plain checkpoint with a linear for each expert, where it has the experts of a layer in one tensor."""
    rows = FAMILIES.get(str(_document(source.folder / "config.json").get("model_type")), ())
    family = next((row for row in rows if row.experts is not None), None)
    if family is None or family.experts is None:
        return source
    fused = any(is_fused(name, family.experts) for name in source.files)
    return FusedExpertsSource(source, family) if fused else source


def open_packed(folder: Path) -> PackedSource:
    """Return what dequantizes a checkpoint whose layout is readable."""
    compressed = announced_quantization.settings(announcements(folder), stored_weights.COMPRESSED_TENSORS)
    return FormulaSource(folder) if compressed is None else CompressedTensorsSource(folder)


class CompressedTensorsSource(PackedSource):
    """Reads a checkpoint that announces compressed-tensors by the names of a plain one.

    Raises ModelDamaged, also for a configuration or tensors that the library does not read.
    """

    def __init__(self, folder: Path) -> None:
        from compressed_tensors.quantization import QuantizationConfig

        super().__init__(folder)
        document = announced_quantization.settings(announcements(folder), stored_weights.COMPRESSED_TENSORS) or {}
        try:
            self.quantization = QuantizationConfig.model_validate(_for_the_library(document))
        except ValueError as error:  # pydantic's, with a line a field
            first = str(error).partition("\n")[0]
            raise ModelDamaged(
                f"compressed-tensors does not read the quantization_config ({first}): export the model again."
            ) from None
        self.transposed = _is_transposed(folder)
        modules: dict[str, list[str]] = {}
        for name in self.files:
            module, _, local = name.rpartition(".")
            if local.startswith("weight"):
                modules.setdefault(module, []).append(name)
        quantized = {module: names for module, names in modules.items() if f"{module}.weight_scale" in names}
        self.named({f"{module}.weight": names for module, names in quantized.items()})

    def scheme(self, module: str) -> Any:
        """Return how the module is quantized: the group that names it, else the one for all linears. None where it is
        not."""
        from compressed_tensors.utils.match import match_name

        if f"{module}.weight" not in self.parts:
            return None
        groups = list(self.quantization.config_groups.values())
        if not groups:
            raise ModelDamaged(
                f"{module} has scales, but no `config_groups` say what they are for: export the model again."
            )
        own = (group for group in groups if any(match_name(module, target) for target in group.targets))
        every = (group for group in groups if "Linear" in group.targets)
        return next(own, next(every, groups[0]))

    def weight(self, name: str, parts: dict[str, torch.Tensor]) -> torch.Tensor:
        """Make a weight, [in, out] for families that store it so. Raises ModelDamaged if the library refuses it."""
        weight = self._decompress(name.removesuffix(".weight"), parts)["weight"]
        return weight.T.contiguous() if self.transposed else weight

    def grid(self, module: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scale (fp32) and zero point (int8), [out, groups], of a module with integer weights.

        Raises ModelDamaged.
        """
        import torch

        state = self._decompress(module, self.stored(f"{module}.weight"))
        scale, zero_point = state["weight_scale"].float(), state.get("weight_zero_point")
        return scale, torch.zeros_like(scale, dtype=torch.int8) if zero_point is None else zero_point.to(torch.int8)

    def _decompress(self, module: str, parts: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the `weight` [out, in] with its scale and zero point, by local name."""
        # 1. Give the library the parts by its own names, [out, in].
        scheme = self.scheme(module)
        state = {part.removeprefix(f"{module}."): tensor for part, tensor in parts.items()}
        state["weight_scale"] = state["weight_scale"].float()
        if self.transposed and "weight" in state:
            state["weight"] = state["weight"].T.contiguous()

        # 2. Let it dequantize them.
        try:
            return _decompressed(state, scheme, str(scheme.format or self.quantization.format))
        except (ValueError, KeyError, IndexError, AssertionError, RuntimeError) as error:
            if out_of_memory(error):
                raise
            raise ModelDamaged(
                f"compressed-tensors does not read {module} ({error}): export the model again."
            ) from None

    def scale(self, name: str) -> torch.Tensor | None:
        """Return the scale in fp32, if it is stored."""
        return self.one(name).float() if name in self.files else None


def _decompressed(state: dict[str, torch.Tensor], scheme: Any, form: str) -> dict[str, torch.Tensor]:
    """Return the weight [out, in] as the library makes it of its parts, with what else it unpacks.

    Its decompressor guesses blocks from the shape of the scales and takes one column of blocks for scales of outputs,
    so blocks go to the function below it, with the scheme.
    """
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization.lifecycle.forward import dequantize

    if scheme.weights.strategy == "block":
        return state | {"weight": dequantize(state["weight"], state["weight_scale"], args=scheme.weights)}
    compressor: Any = BaseCompressor.get_value_from_registry(form)
    unpacked: dict[str, torch.Tensor] = compressor.decompress(state, scheme)
    return unpacked


def _for_the_library(document: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: document[key] for key in document if key not in {"dequantize", "use_optimized_inference", "run_compressed"}
    }


class FormulaSource(PackedSource):
    """Reads FP8, INT8, GPTQ and AWQ by each format's formula: fp32, [in, out] if the family stores it so.

    Raises ModelDamaged if the numbers of a module contradict what is announced.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        announced = announcements(folder)
        self.transposed = _is_transposed(folder)
        self.gptq = announced_quantization.settings(announced, "gptq") or {}
        self.block = announced_quantization.block_shape(announced)
        self.modules = stored_weights.modules(self.tensors, self.block, transposed=self.transposed)
        parts = {
            f"{name}.weight": [f"{name}.{local}" for local in module.tensors if local in (module.kind.parts or ())]
            for name, module in self.modules.items()
            if module.kind is not stored_weights.CACHE
        }
        self.named(parts)

    def weight(self, name: str, parts: dict[str, torch.Tensor]) -> torch.Tensor:
        """Make a weight, [in, out] for families that store it so; packed integers are [out, in] everywhere."""
        module = name.removesuffix(".weight")
        kind = self.modules[module].kind
        formulas: dict[str, Callable[[str, Parts], torch.Tensor]] = {
            stored_weights.FP8.name: self._scaled,
            stored_weights.INT8.name: self._scaled,
            stored_weights.GPTQ.name: self._gptq,
            stored_weights.AWQ.name: _awq,
        }
        local = {part.removeprefix(f"{module}."): tensor for part, tensor in parts.items()}
        weight = formulas[kind.name](module, local)
        packed = kind in {stored_weights.GPTQ, stored_weights.AWQ}
        return weight.T.contiguous() if packed and self.transposed else weight

    def _scaled(self, module: str, parts: Parts) -> torch.Tensor:
        inverse = "weight_scale_inv" in parts
        scale = parts["weight_scale_inv" if inverse else "weight_scale"].float()
        if inverse and float(scale.mean()) > 1:
            raise ModelDamaged(
                f"The scales of {module} (`weight_scale_inv`) are above 1 on average, so that it is not clear whether "
                "they multiply or divide: start from the 16-bit original."
            )
        weight = parts["weight"].float()
        block = self.block if self.modules[module].kind is stored_weights.FP8 else None
        return weight * spread_scale(scale, (len(weight), weight.shape[1]), block, transposed=self.transposed)

    def _gptq(self, module: str, parts: Parts) -> torch.Tensor:
        """Dequantize a GPTQ weight: [out, in] fp32. Raises ModelDamaged if its groups contradict each other."""
        import torch

        # 1. Unpack the numbers [in, out] and the zero points [groups, out].
        bits = self.modules[module].bits or 4
        numbers, zeros = unpack_rows(parts["qweight"], bits), unpack_columns(parts["qzeros"], bits)
        zeros = self._zero_points(module, zeros, bits)

        # 2. Find the group of each input, and compare it with what is announced.
        inputs, groups = len(numbers), len(zeros)
        even = torch.arange(inputs) // -(-inputs // groups)
        index = parts["g_idx"].long() if "g_idx" in parts else even
        if index.shape != (inputs,) or int(index.min()) < 0 or int(index.max()) >= groups:
            raise ModelDamaged(f"`g_idx` of {module} names groups that it does not have: download the model again.")
        ordered = self.gptq.get("desc_act")
        if (ordered is True and "g_idx" not in parts) or (ordered is False and not torch.equal(index, even)):
            raise ModelDamaged(f"`g_idx` of {module} and `desc_act` contradict each other: export the model again.")

        # 3. Apply the formula.
        return ((numbers - zeros[index]).float() * parts["scales"].float()[index]).T.contiguous()

    def _zero_points(self, module: str, zeros: torch.Tensor, bits: int) -> torch.Tensor:
        """Return the zero points as they are subtracted.

        Those of symmetric weights are known; writers store them as they are or minus one, whatever they announce
        (https://github.com/vllm-project/vllm/pull/38966).
        """
        import torch

        # 1. Symmetric weights have their zero point in the middle.
        middle, most = 1 << (bits - 1), (1 << bits) - 1
        if self.gptq["sym"]:
            if not any(bool((zeros == known).all()) for known in (middle, middle - 1)):
                raise ModelDamaged(
                    f"{module} is announced as symmetric, but its zero points are not those of symmetric weights: "
                    "export the model again."
                )
            return torch.full_like(zeros, middle)

        # 2. Others are stored as they are in `gptq_v2`, else minus one.
        if self.gptq.get("checkpoint_format") == announced_quantization.GPTQ_V2:
            return zeros
        if bool((zeros == most).any()):
            raise ModelDamaged(
                f"{module} has zero points of 0 stored as {most}, which readers of GPTQ take differently: export the "
                "model as `gptq_v2`."
            )
        return zeros + 1


def spread_scale(
    scale: torch.Tensor, shape: tuple[int, int], block: tuple[int, int] | None, *, transposed: bool = False
) -> torch.Tensor:
    """Return a scale for each number of a matrix of that shape, or what broadcasts to it; `block` as
    `stored_weights.shared` has it."""
    rows, columns = shape
    if scale.numel() == 1:
        return scale.reshape(())
    outputs = columns if transposed else rows
    if scale.shape in {(outputs,), (outputs, 1)}:
        flat = scale.reshape(-1)
        return flat[None, :] if transposed else flat[:, None]
    if block is None:
        return scale.repeat_interleave(columns // scale.shape[1], 1)
    return scale.repeat_interleave(block[0], 0)[:rows].repeat_interleave(block[1], 1)[:, :columns]


def unpack_rows(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """Unpack int32 [rows x bits / 32, columns] to numbers [rows, columns], the lowest bits first."""
    return unpack_columns(packed.T.contiguous(), bits).T.contiguous()


def unpack_columns(packed: torch.Tensor, bits: int) -> torch.Tensor:
    """Unpack int32 [rows, columns x bits / 32] to numbers [rows, columns], the lowest bits first."""
    import torch

    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return (torch.bitwise_right_shift(packed[..., None], shifts) & ((1 << bits) - 1)).flatten(1)


AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Position of each of eight outputs in units of four bits, from the lowest."""


def _awq(module: str, parts: Parts) -> torch.Tensor:
    return dequantize_awq(parts["qweight"], parts["qzeros"], parts["scales"])


def dequantize_awq(qweight: torch.Tensor, qzeros: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Make the weight [out, in] fp32 from AutoAWQ's three tensors."""
    numbers, zeros = unpack_awq(qweight), unpack_awq(qzeros)
    size = len(numbers) // len(zeros)
    return (
        (numbers - zeros.repeat_interleave(size, 0)).float() * scales.float().repeat_interleave(size, 0)
    ).T.contiguous()


def unpack_awq(packed: torch.Tensor) -> torch.Tensor:
    """Unpack AutoAWQ's int32 [rows, out / 8] to numbers [rows, out]."""
    import torch

    shifts = torch.tensor(AWQ_ORDER, dtype=torch.int32) * 4
    return (torch.bitwise_right_shift(packed[..., None], shifts) & 15).flatten(1)
