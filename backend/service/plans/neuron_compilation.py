"""From a case on a `neuron:` target to the plan of its compilation and the key under which its result is found
again."""

from __future__ import annotations

from typing import Any

from backend.artifacts import compiled_results
from backend.domain.errors import ImpossibleStack, InvalidRecipe
from backend.domain.frozen import Frozen
from backend.domain.jobs.jobs import OptimizeSpec
from backend.domain.machine import price_list
from backend.domain.model.facts import ModelCard
from backend.domain.neuron import compile_cache, compile_plan, cores
from backend.domain.neuron.compile_cache import CacheLookup
from backend.domain.neuron.compile_plan import CompilePlan
from backend.domain.neuron.software_stacks import STACKS
from backend.domain.planner import estimate
from backend.domain.roles import Action
from backend.hardware import engine_status
from backend.service.jobs import artifact_storage
from backend.service.plans import optimize
from backend.service.plans.cases import Case
from backend.service.plans.optimize import PreparedOptimize, refusal_text
from backend.service.workspace import Workspace

COMPILER, GB = "neuronx-cc", 1e9
NO_COMPILER = (
    f"{COMPILER} is not installed here, so its version is not in the key yet: where it compiles, the key is another."
)


class CompilationPreview(Frozen):
    """`key`: the digest of the plan's fields. Bytes are of one core, at the plan's degree."""

    target: str
    stack: str
    """In words; `plan.stack` is its name in recipes."""
    key: str
    plan: CompilePlan
    cores: int
    """Logical cores of the instance."""
    core_memory_bytes: int
    weights_bytes: int
    cache_bytes: int
    runtime_bytes: int
    """The most that program and scratchpad are taken to need."""
    price_per_hour: float | None
    """USD of the instance."""
    discount: float = 0.0
    """The share that is off it already."""
    notes: tuple[str, ...]
    lookup: CacheLookup
    """The current lookup in the cache of compiled results."""

    @property
    def rows(self) -> list[tuple[str, str]]:
        """One a field of the key, which comes first since it is what finds the result again; then what a core holds."""
        weights_and_cache = f"{self.weights_bytes / GB:.1f} GB of weights, {self.cache_bytes / GB:.1f} GB of cache"
        room = (
            f"up to {self.runtime_bytes / GB:.1f} GB of program and scratchpad, of {self.core_memory_bytes / GB:.1f} GB"
        )
        fields = {name: value for name, value in self.plan.fields.items() if name != "stack"}
        hour = self.price_per_hour
        price = "unknown" if hour is None else f"{hour:,.4g} USD{price_list.discount_text(self.discount)}"
        return [
            ("key", self.key),
            ("stack", f"{self.stack} ({self.plan.stack})"),
            *((name.replace("_", " "), _field_text(value)) for name, value in fields.items()),
            ("cores", f"{self.plan.tensor_parallel} of {self.cores}"),
            ("a core holds", f"{weights_and_cache}, {room}"),
            ("price per hour", price),
        ]


def _field_text(value: Any) -> str:
    if value is None:
        return "-"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def preview(workspace: Workspace, case: Case) -> CompilationPreview:
    """Preview what would be compiled. Raises ImpossibleStack with the nearest recipe that works, InvalidRecipe for
    another target."""
    # 1. Refuse other targets and invalid recipes.
    if case.facts.place != "neuron":
        raise InvalidRecipe(f"`{case.target_name}` is no Neuron target: write one such as `neuron:ml.inf2.48xlarge`.")
    if case.verdict.plan is None:
        raise ImpossibleStack(refusal_text(case.verdict))
    # 2. Plan the compilation; the installed compiler is part of its key.
    device = case.target.device
    draft = case.facts.serving_draft(case.recipe)
    first = compile_plan.make_compile_plan(case.model, case.recipe, device, draft)
    stack = STACKS[first.stack]
    installed = (engine_status.read_marker(workspace.settings.engines, stack.environment) or {}).get("packages", {})
    plan = first.model_copy(update={"compiler": installed.get(COMPILER)})
    # 3. Size the cores' memory and look into the cache.
    room = cores.core_memory(case.model, case.recipe, device, plan.tensor_parallel, draft)
    return CompilationPreview(
        target=case.target_name,
        stack=stack.title,
        key=plan.key,
        plan=plan,
        cores=cores.logical_device(device).units,
        core_memory_bytes=cores.logical_device(device).memory_bytes,
        weights_bytes=room.weights_per_device,
        cache_bytes=plan.batch * plan.positions * room.kv_bytes_per_token,
        runtime_bytes=room.runtime[1],
        price_per_hour=case.target.price_per_hour,
        discount=case.target.discount,
        notes=(*case.verdict.plan.notes, *([] if plan.compiler else [NO_COMPILER])),
        lookup=compile_cache.look_up(plan, compiled_results.open_cache(workspace.settings).entries()),
    )


def prepare(
    workspace: Workspace, case: Case, *, seed: int = 0, known: CompilationPreview | None = None
) -> PreparedOptimize:
    """A job that compiles here for that instance; what the cache has needs no engine. `known`: its preview, where it is
    known.

    Raises what `preview` does, UnknownModel without weights, EngineMissing, NotEnoughDisk, QuotaExceeded.
    """
    # 1. Require the compiler unless the cache has the result.
    workspace.check(Action.SUBMIT)
    model, known = optimize.require_weights(case.model), known or preview(workspace, case)
    assert case.verdict.plan is not None
    if known.lookup.state == "miss":
        engine_status.engine_python(workspace.settings, STACKS[known.plan.stack].environment)
    # 2. Check disk and quota.
    need = estimate.estimate_needs(model, case.recipe, case.draft)
    artifact_storage.check_disk(workspace, need.disk_bytes)
    artifact_storage.check_quota(workspace, need.disk_bytes)
    # 3. Freeze the specification.
    spec = OptimizeSpec(
        model=model,
        recipe=case.recipe,
        plan=case.verdict.plan,
        target=case.target_name,
        deployment=optimize.make_deployment(case),
        draft=case.draft if isinstance(case.draft, ModelCard) else None,
        neuron=known.plan,
        seed=seed,
    )
    return PreparedOptimize(spec=spec, need=need)
