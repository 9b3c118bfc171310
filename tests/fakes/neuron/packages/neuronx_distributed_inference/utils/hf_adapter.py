"""neuronx_distributed_inference.utils.hf_adapter as far as it is used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def load_pretrained_config(model_path_or_name: Any = None, hf_config: Any = None) -> Any:
    def load_config(self: Any) -> None:
        self.hf = json.loads((Path(model_path_or_name) / "config.json").read_text())

    return load_config
