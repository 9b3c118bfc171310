"""From a target's name to its hardware: this machine's by the probes, everything else by the bundled rows."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Literal

from backend.catalog.bundled import instances
from backend.domain.errors import InvalidRecipe
from backend.domain.machine import instruction_sets, price_list, targets
from backend.domain.machine.device import Device, card_device
from backend.domain.machine.price_list import InstancePrice
from backend.domain.machine.targets import HardwareTables, Target
from backend.domain.model.facts import ModelFacts, PublishedModel
from backend.domain.needs.hardware_rates import HardwareRates, accelerator_rates, processor_rates
from backend.domain.rules.target_facts import Place, TargetFacts
from backend.hardware import neuron, probe, processor_speed
from backend.hardware.probe import Accelerator
from backend.service.workspace import Workspace
from backend.store import prices

PLACES: dict[str, Place] = {"local": "local", "sagemaker": "managed", "neuron": "neuron"}
NEURON = Path("/dev/neuron0")


def hardwares(workspace: Workspace, *, on_demand: bool = False) -> HardwareTables:
    """The bundled accelerators and instances, with the prices that were refreshed last over the snapshot's, or those of
    the settings' region alone, less the discount of the settings unless `on_demand`.

    Raises InvalidCatalog, StoreUnavailable.
    """
    region = workspace.settings.price_region
    with workspace.store.read() as session:
        latest = prices.list_latest(session, region)
    return _overlaid(latest, region, 0.0 if on_demand else workspace.settings.discount)


@lru_cache(maxsize=16)
def _overlaid(instance_prices: tuple[InstancePrice, ...], region: str | None, discount: float) -> HardwareTables:
    rows = price_list.apply_prices(instances.load(), instance_prices)
    if region is not None:
        rows = price_list.keep_region(rows, region)
    return price_list.apply_discount(rows, discount)


def find(workspace: Workspace, name: str, *, measured: Literal["now", "before"] | None = None) -> Target:
    """The target of that name. With `measured` this machine's processor comes with its measured rates: `now` measures
    where they are not known well yet, which takes seconds; `before` takes what was measured before, if anything was.

    Raises InvalidRecipe for an unknown target, or one that this machine does not have.
    """
    # 1. An instance or accelerator has a row.
    planned = hardwares(workspace).find(name)
    if planned is not None:
        return planned
    # 2. Else it is a device of this machine, with the rates that were measured.
    device = _local("local" if name == "auto" else name)
    if measured and device.hardware == "cpu" and (processor_speed := _speed(workspace, now=measured == "now")):
        device = device._replace(
            bandwidth=processor_speed.weights,
            flops=processor_speed.flops,
            measured=True,
            source="measured on this machine",
        )
    return Target(name, "local", device)


def _speed(workspace: Workspace, *, now: bool) -> processor_speed.Speed | None:
    if now:
        return processor_speed.processor_speed(workspace.settings.cache)
    before = processor_speed.find_measured(workspace.settings.cache)
    return before.speed if before else None


def _local(name: str) -> Device:
    cards = probe.accelerators()
    numbers = targets.gpu_numbers(name)
    if numbers is None and name == "local" and cards:
        numbers = tuple(card.number for card in cards)
    if numbers is not None:
        return _gpus(cards, numbers)
    if name == targets.LOCAL_NEURON:
        return _neuron()
    kind = instruction_sets.instruction_set(probe.probe()["flags"])
    return Device("this machine's processor", "cpu", 1, probe.total_memory(), instructions=kind)


def _gpus(cards: tuple[Accelerator, ...], numbers: tuple[int, ...]) -> Device:
    # 1. Check that the named GPUs exist.
    chosen = [card for card in cards if card.number in numbers]
    if not cards:
        raise InvalidRecipe("This machine has no GPU: use the target `local`.")
    if len(chosen) < len(numbers):
        known = ", ".join(str(card.number) for card in cards)
        raise InvalidRecipe(
            f"This machine has no GPU {max(set(numbers) - {card.number for card in cards})}: it has {known}."
        )
    # 2. Look up the data sheet of the smallest one.
    least = min(chosen, key=lambda card: card.memory_bytes)
    known_card = next(
        (row for row in instances.load().accelerators.values() if targets.slug(row.name) in targets.slug(least.name)),
        None,
    )
    base = card_device(known_card) if known_card else Device(least.name, "cuda", 1, least.memory_bytes)
    return base._replace(
        name=least.name,
        units=len(chosen),
        memory_bytes=least.memory_bytes,
        capability=_capability(least.compute_capability),
    )


def _capability(text: str) -> tuple[int, int] | None:
    major, _, minor = text.partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def _neuron() -> Device:
    """Return all NeuronCores as one device, with nominal rates if EC2's instance type, or cores and memory, tell the
    kind."""
    neuron_devices = neuron.list_devices()
    if not neuron_devices:
        if NEURON.exists():
            return Device("this machine's Neuron cores", "neuron", 1, 0)
        raise InvalidRecipe("This machine has no Inferentia or Trainium accelerator: use the target `local`.")
    # Nominal rates: by the instance type, else by the only card of these cores and this memory.
    rows = instances.load()
    row = rows.instances.get(f"ml.{neuron.instance_type()}")
    first = neuron_devices[0]
    alike = [card for card in rows.accelerators.values() if card.neuron_cores == first.cores * first.joined]
    alike = [card for card in alike if abs(card.memory_gib - first.memory_bytes / 2**30) < 1]
    if row:
        base = rows.device(row)
    elif len(alike) == 1:
        base = card_device(alike[0])
    else:
        base = Device("this machine's Neuron cores", "neuron", 1, 0)
    # Count and memory are those of the devices here.
    memory = min(device.memory_bytes // (device.cores * device.joined) for device in neuron_devices)
    return base._replace(units=sum(device.cores * device.joined for device in neuron_devices), memory_bytes=memory)


def rule_facts(target: Target, model: ModelFacts, draft: ModelFacts | None) -> TargetFacts:
    """Return the facts of a target that the rules read."""
    instance, attached = target.instance, target.kind == "local" and target.device.hardware == "neuron"
    cells = model.published if isinstance(model, PublishedModel) else None
    return TargetFacts(
        hardware=target.device.hardware,
        draft=draft,
        device=target.device,
        instance=instance.name if instance else None,
        compiler=probe.has_compiler() if target.kind == "local" else True,
        place="neuron" if attached else PLACES.get(target.kind, "planned"),
        attached=attached,
        family=instance.family if instance else None,
        optimization_job=bool(instance and instance.optimization_job),
        provided_draft=bool(cells and cells.speculative_decoding_with_provided_draft == "Yes"),
        ram_bytes=int(instance.ram_gib * 2**30) if instance else None,
        features=tuple(probe.probe()["flags"]) if target.kind == "local" and target.device.hardware == "cpu" else None,
        cores=probe.cores() if target.kind == "local" else None,
    )


def job_rates(target: Target) -> HardwareRates | None:
    """Return the rates of the hardware that runs an optimize job: accelerators, or this machine's measured processor;
    None if unknown."""
    if target.device.hardware != "cpu":
        return accelerator_rates(target.device)
    return processor_rates(target.device.flops, probe.cores(), probe.probe()["flags"]) if target.device.flops else None
