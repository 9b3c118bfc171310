"""The engines that a page offers for a model or an artifact: which can serve it here, and why the others cannot."""

from __future__ import annotations

from backend.domain.frozen import Frozen
from backend.domain.recipe.serving_engines import AUTO, ENGINES, EngineChoice, EngineName
from backend.hardware import engine_status
from backend.service.models import variants
from backend.service.workspace import Workspace


class EngineOffer(Frozen):
    """The engines for one source. `default` serves it where nobody chooses; `refusals` has a sentence for each engine
    that cannot."""

    name: str
    """The name of the source's variant on its own engine."""
    default: EngineName
    able: tuple[EngineName, ...]
    installed: frozenset[str]
    refusals: dict[EngineName, str]
    automatic: str | None = None
    """Which engine `auto` takes and why; None where there is no choice."""

    @property
    def choices(self) -> tuple[EngineChoice, ...]:
        """The default engine, the others that can serve it, and `auto` where there are several."""
        others = [engine for engine in self.able if engine != self.default]
        first = [self.default] if self.default in self.able else []
        return (*first, *others, *([AUTO] if len(self.able) > 1 else []))

    def label(self, engine: EngineChoice) -> str:
        """Return the engine's name on a screen."""
        if engine == AUTO:
            return "Automatic"
        missing = "" if engine in self.installed else " (not installed)"
        return f"{ENGINES[engine].title}{missing}"


def offer(workspace: Workspace, source: str, *, streams: int = 1) -> EngineOffer:
    """Return the engines for a source; one that it names is passed over. Raises as `variants.resolve`."""
    # 1. The engine that it has by itself.
    plain, _ = variants.split_engine(source)
    own = variants.resolve(workspace, plain)
    default = own.serving.engine_name
    # 2. Each engine of the table.
    able, refusals = list[EngineName](), dict[EngineName, str]()
    for engine in ENGINES:
        why = variants.why_engine_refuses(variants.resolve(workspace, variants.with_engine(plain, engine)))
        if why is None:
            able.append(engine)
        else:
            refusals[engine] = why
    # 3. The automatic choice.
    chosen = variants.resolve(workspace, variants.with_engine(plain, AUTO), streams=streams) if len(able) > 1 else None
    return EngineOffer(
        name=own.name,
        default=default,
        able=tuple(able),
        installed=frozenset(engine for engine in able if engine_status.serves(workspace.settings, engine)),
        refusals=refusals,
        automatic=chosen.engine_reason if chosen else None,
    )
