"""What the fake SDK's calls leave behind: a line of JSON each in the file NEURON_FAKE_CALLS, and graphs as neuronx-cc
would."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

COMPILER = "neuronxcc-2.21.1.0+fake"


def record(name: str, *args: Any, **kwargs: Any) -> None:
    """One call, by the dotted name that the contract has."""
    if path := os.environ.get("NEURON_FAKE_CALLS"):
        with Path(path).open("a", encoding="utf-8") as sink:
            sink.write(
                json.dumps({"call": name, "args": args, "kwargs": kwargs}, default=lambda value: type(value).__name__)
                + "\n"
            )


def compiled(graph: Any) -> bytes:
    """The NEFF of a graph, through the compiler's own cache: an entry that failed there is not compiled again."""
    text = json.dumps(graph, sort_keys=True, default=str)
    name = hashlib.sha256(text.encode()).hexdigest()[:20]
    flags = hashlib.sha256(os.environ.get("NEURON_CC_FLAGS", "").encode()).hexdigest()[:8]
    entry = Path(os.environ["NEURON_COMPILE_CACHE_URL"]) / COMPILER / f"MODULE_{name}+{flags}"
    if (entry / "model.log").exists() and not (entry / "model.neff").exists():
        raise RuntimeError(
            f"Got a cached failed neff at {entry}/model.neff. Will skip compilation, please set "
            f"--retry_failed_compilation"
        )
    entry.mkdir(parents=True, exist_ok=True)
    if os.environ.get("NEURON_FAKE_FAILS"):
        (entry / "model.log").write_text("[XCG815] Estimated peak HBM usage exceeds")
        raise RuntimeError("neuronx-cc failed with exit code 70: Estimated peak HBM usage exceeds 16GB")
    (entry / "model.neff").write_bytes(b"NEFF" + text.encode())
    (entry / "model.done").touch()
    return b"NEFF" + text.encode()


def attached() -> bool:
    """Whether this fake has a device."""
    return bool(os.environ.get("NEURON_FAKE_CORES"))


def runtime(degree: int) -> None:
    """The runtime's own check, when a model is loaded onto cores."""
    if not attached():
        raise RuntimeError("nrt_init: no neuron device found: NRT_INVALID")
    if degree not in {1, 2, 4, 8, 24}:
        raise RuntimeError(f"Unsupported tensor parallel degree {degree}: NRT_UNSUPPORTED_NEFF_TOPOLOGY")
