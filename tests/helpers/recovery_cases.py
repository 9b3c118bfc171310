"""Cases of recovery training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.domain.jobs.progress import NoProgress
from backend.domain.recipe.recovery import Recover, RecoverQuantized
from backend.engines.base import Pruning, QuantizeRequest
from backend.engines.native import quantize
from backend.engines.native.recovery.recovery import RecoverRequest, RecoverResult, recover
from tests.tiny import TEXT

CALIBRATION: dict[str, Any] = {"samples": 4, "length": 16}
TEXTS = [TEXT * 3]
FAST = Recover(steps=6, learning_rate=0.005, rank=4)


@dataclass(frozen=True)
class Case:
    """A model and its pruned checkpoint."""

    model: Path
    pruned: Path
    linears: tuple[str, ...]

    @classmethod
    def prune(cls, model: Path) -> Case:
        pruned, query = model.with_name(model.name + "-pruned"), Pruning(method="magnitude", pattern="2:4")
        request = QuantizeRequest(
            model_dir=model, out_dir=pruned, pruning=query, calibration_texts=TEXTS, **CALIBRATION
        )
        return cls(model, pruned, tuple(str(layer["name"]) for layer in quantize(request, NoProgress()).layers))

    def recover(
        self, out: Path, options: Recover = FAST, progress: NoProgress | None = None, **changes: Any
    ) -> RecoverResult:
        values = {"texts": TEXTS, "work_dir": out.with_name(out.name + "-work"), **CALIBRATION, **changes}
        request = RecoverRequest(
            original_dir=self.model,
            start_dir=self.pruned,
            out_dir=out,
            linears=self.linears,
            options=options,
            **values,
        )
        return recover(request, progress or NoProgress())


def tensors(folder: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return dict(load_file(folder / "model.safetensors"))


def same_but_for_the_kept_weights(case: Case, out: Path) -> None:
    import torch

    before, after = tensors(case.pruned), tensors(out)
    assert before.keys() == after.keys()
    for name, old in before.items():
        new = after[name]
        assert new.dtype == old.dtype
        if name.removesuffix(".weight") in case.linears:
            assert bool((new[old == 0] == 0).all())
            assert not torch.equal(new, old)
        else:
            assert torch.equal(new, old)


def quantized(model: Path, **changes: Any) -> Path:
    """Return the folder of the model in 4 bits."""
    folder = model.with_name("-".join([model.name, "quantized", *map(str, changes.values())]))
    values = {"method": "rtn", "bits": 4, "group_size": 32, "symmetric": False, **CALIBRATION, **changes}
    quantize(QuantizeRequest(model_dir=model, out_dir=folder, calibration_texts=TEXTS, **values), NoProgress())
    return folder


def trained(
    model: Path, start: Path, out: Path, options: RecoverQuantized, progress: NoProgress | None = None
) -> RecoverResult:
    request = RecoverRequest(
        original_dir=model,
        start_dir=start,
        plain_dir=model,
        out_dir=out,
        options=options,
        texts=TEXTS,
        work_dir=out.with_name(out.name + "-work"),
        **CALIBRATION,
    )
    return recover(request, progress or NoProgress())


def changed(before: Path, after: Path) -> set[str]:
    """Return the last parts of the names of tensors that differ; all have the same names and types."""
    import torch

    old, new = tensors(before), tensors(after)
    assert {name: tensor.dtype for name, tensor in old.items()} == {name: tensor.dtype for name, tensor in new.items()}
    return {name.rpartition(".")[2] for name in old if not torch.equal(old[name], new[name])}
