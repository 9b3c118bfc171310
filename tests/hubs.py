"""What import tests share: a fake hub over real tiny models, and what it saw."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy
import pytest
from safetensors.numpy import save_file


class FakeHub:
    """`url` is its address, `root` the folder whose models it serves."""

    def __init__(self, url: str, root: Path) -> None:
        self.url, self.root = url, root

    def log(self) -> list[dict[str, Any]]:
        return list(self._ask("/-/log"))

    def served(self, start: str) -> list[dict[str, Any]]:
        """The requests whose path starts so, those under way included."""
        return [entry for entry in self.log() if entry["path"].startswith(start)]

    def ended(self, start: str) -> list[dict[str, Any]]:
        """Those that have ended: answered whole, or left by the client."""
        return [entry for entry in self.served(start) if entry["ended"]]

    def sent(self) -> int:
        return sum(entry["sent"] for entry in self.log())

    def reset(self, id: str, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
        """The hub that this test's process asks: no token, no fault, nothing logged, the model under Apache 2.0."""
        monkeypatch.setenv("HF_ENDPOINT", self.url)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        self.settings(id, licence="apache-2.0")
        self.fault()
        self.forget()
        return self

    def forget(self) -> None:
        self._ask("/-/forget")

    def fault(self, **fault: Any) -> None:
        self._ask(f"/-/fault?{urlencode(fault)}")

    def settings(self, id: str, **settings: Any) -> None:
        (self.root / id / ".repo.json").write_text(json.dumps(settings))

    def _ask(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            return json.load(answer)


def shard(folder: Path, count: int) -> None:
    """Add layers of small tensors to the model until it has `count` shards, three tensors a shard, and write their
    index."""
    names = [
        f"model.layers.{layer}.mlp.{part}.weight"
        for layer in range(count)
        for part in ("gate_proj", "up_proj", "down_proj")
    ]
    weight_map = {}
    (folder / "model.safetensors").unlink(missing_ok=True)
    for number in range(count):
        file = f"model-{number + 1:05d}-of-{count:05d}.safetensors"
        reserved = names[3 * number : 3 * number + 3]
        save_file({name: numpy.zeros((4, 8), numpy.float16) for name in reserved}, folder / file)
        weight_map |= dict.fromkeys(reserved, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
