"""The AWS Neuron devices (Inferentia, Trainium) attached here, as neuron-ls lists them. Knows nothing of what runs on
them.

`neuron-ls --json-output` prints a JSON array, one object a device: `neuron_device` its number, `nc_count` its
NeuronCores, `logical_neuroncore_config` how many physical ones each of them is, `memory_size` in bytes, `bdf`,
`connected_to` and `neuron_processes` (AWS Neuron documentation, Neuron LS user guide).
"""

from __future__ import annotations

import json
import shutil
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from backend.hardware import probe

TOOL, FOLDER = "neuron-ls", "/opt/aws/neuron/bin"
"""The tool and the folder where AWS's package puts it, which is not always on PATH."""
PRODUCT = Path("/sys/devices/virtual/dmi/id/product_name")
"""On EC2 the instance type, such as inf2.xlarge."""


class NeuronDevice(NamedTuple):
    """`memory_bytes` of the whole device, which its cores share."""

    number: int
    cores: int
    """The number of cores that a program sees."""
    memory_bytes: int
    busy: bool
    """A process holds it."""
    joined: int = 1
    """Physical cores that work as one (`logical_neuroncore_config`)."""


@lru_cache(maxsize=1)
def list_devices() -> tuple[NeuronDevice, ...]:
    """Return the devices in the order of their numbers; none if neuron-ls is missing, fails, or prints another form."""
    tool = shutil.which(TOOL) or shutil.which(TOOL, path=FOLDER)
    return parse(probe.run_tool(tool, "--json-output")) if tool else ()


def count_cores() -> int:
    """Return the number of NeuronCores here, as a program sees them."""
    return sum(device.cores for device in list_devices())


def parse(text: str) -> tuple[NeuronDevice, ...]:
    """Parse neuron-ls's output. Rows that do not have the published form are skipped."""
    try:
        rows = json.loads(text)
    except ValueError:
        return ()
    neuron_devices = [_device(row) for row in rows] if isinstance(rows, list) else []
    return tuple(sorted(device for device in neuron_devices if device is not None))


def _device(row: Any) -> NeuronDevice | None:
    if not isinstance(row, dict):
        return None
    number, cores, memory = (row.get(key) for key in ("neuron_device", "nc_count", "memory_size"))
    if type(number) is not int or type(cores) is not int or type(memory) is not int or cores < 1 or memory < 1:
        return None
    joined = row.get("logical_neuroncore_config", 1)
    return NeuronDevice(number, cores, memory, bool(row.get("neuron_processes")), joined if joined in {1, 2} else 1)


def instance_type(path: Path = PRODUCT) -> str | None:
    """Return EC2's name of this machine, such as inf2.xlarge; None elsewhere."""
    try:
        name = path.read_text().strip()
    except OSError:
        return None
    return name if "." in name and name.split(".")[0][:3] in {"inf", "trn"} else None
