"""Finds a precision for each group of linears: within an average of bits, or raised until the quality floor holds.

Groups are measured once; every allocation is tried by quantizing the whole model and scoring it. Measurements and
missed tries are stored in a folder, so that a stopped job goes on with the try it was at. Knows no channel and no
manifest.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.domain.errors import QualityFloorMissed
from backend.domain.jobs.progress import Progress
from backend.domain.recipe import precision, precision_allocation
from backend.domain.recipe.precision import MeasuredGroup
from backend.domain.recipe.precision_allocation import MOST_TRIES, Allocation, AllocationTry
from backend.domain.recipe.recipe import Limits

if TYPE_CHECKING:
    from backend.engines.base import QuantizeRequest, QuantizeResult

Score = Callable[[], Mapping[str, Any]]
"""Scores the weights in the request's `out_dir`: `kl_mean`, `perplexity_before`, `perplexity_after`."""


class PrecisionSearch:
    """Quantizes one request with several precisions.

    `options` are the planned step's, with `eight_bits` and perhaps `target_bits`; `folder` outlives an attempt of the
    job.
    """

    def __init__(
        self, request: QuantizeRequest, options: Mapping[str, Any], limits: Limits, folder: Path, progress: Progress
    ) -> None:
        self.request, self.limits, self.folder, self.progress = request, limits, folder, progress
        self.target: float | None = options.get("target_bits")
        self.candidates = precision.candidates(options, options["eight_bits"])
        self.missed: list[AllocationTry] = []
        self._path = folder / "attempts.json"

    def run(self, score: Score) -> tuple[QuantizeResult, dict[str, Any] | None]:
        """Return the result, and the artifact's record of precisions (None if no group differs).

        Raises QualityFloorMissed if no attempt reaches the quality floor, and what the engine raises.
        """
        # 1. Begin within the average of bits, and go through the tries of a job that was stopped.
        chosen = self._choose_first()
        for missed in self._stored_tries():
            chosen = self._choose_next(chosen, missed)

        # 2. Quantize and score until the quality floor holds.
        while True:
            result = self._quantize(chosen)
            if not self.limits.fall_back:
                return result, self._record(chosen, [])
            quality = score()
            if precision_allocation.missed_limit(self.limits, quality) is None:
                return result, self._record(chosen, [] if chosen is None else [self._describe_try(chosen, quality)])
            self._store_try(quality)
            chosen = self._choose_next(chosen, quality)

    @cached_property
    def groups(self) -> list[MeasuredGroup]:
        """The groups of linears with what each loses at every candidate; measured when it is first read."""
        from backend.engines import native

        request = self.request.model_copy(update={"work_dir": self.folder / "probe"})
        return native.measure(request, self.candidates, self.progress)

    def _choose_first(self) -> Allocation | None:
        """Return the allocation within the average number of bits; None, the step's own precision, if there is none."""
        if self.target is None:
            return None
        chosen = precision_allocation.allocate(self.groups, self.candidates, self.target)
        bits, kinds = precision.average_bits(self.groups, chosen), len(set(chosen))
        self.progress.note(
            f"{bits:.2f} bits per weight on average in {kinds} precisions, at most {self.target:g} were requested."
        )
        return chosen

    def _choose_next(self, last: Allocation | None, quality: Mapping[str, Any]) -> Allocation:
        """Return the allocation to try after `last` missed the floor. Raises QualityFloorMissed if none is left."""
        # 1. Record the try that missed.
        before = [self.candidates[0]] * len(self.groups) if last is None else last
        last_try, excess = self._describe_try(before, quality), precision_allocation.limit_excess(self.limits, quality)
        self.missed.append(last_try)
        tries = len(self.missed)

        # 2. Raise the precisions that gain most by it.
        chosen = None
        if tries < MOST_TRIES:
            chosen = precision_allocation.raise_precisions(self.groups, self.candidates, before, excess)
        if chosen is None:
            reason = str(last_try.missed)
            raise QualityFloorMissed(
                f"{reason[:1].upper()}{reason[1:]}, after {tries} tries of at most {MOST_TRIES}, the last with "
                f"{last_try.average_bits:.2f} bits a weight: nothing was registered. Loosen the limit or keep the "
                "original."
            )

        # 3. Say what is tried and why.
        bits = precision.average_bits(self.groups, chosen)
        self.progress.phase(
            "raise",
            f"Try {tries + 1} of at most {MOST_TRIES}: {bits:.2f} bits a weight, since {last_try.missed}",
            weight=0.0,
        )
        return chosen

    def _quantize(self, chosen: Allocation | None) -> QuantizeResult:
        from backend.engines import native

        shutil.rmtree(self.request.out_dir, ignore_errors=True)
        precisions = self._changed_precisions(chosen)
        return native.quantize(self.request.model_copy(update={"precisions": precisions}), self.progress)

    def _changed_precisions(self, chosen: Allocation | None) -> dict[str, precision.Precision]:
        """Return the precisions by group that differ from the step's own."""
        if chosen is None:
            return {}
        pairs = zip(self.groups, chosen, strict=True)
        return {group.name: candidate for group, candidate in pairs if candidate != self.candidates[0]}

    def _describe_try(self, chosen: Allocation, quality: Mapping[str, Any]) -> AllocationTry:
        return AllocationTry(
            average_bits=precision.average_bits(self.groups, chosen),
            kl_mean=quality["kl_mean"],
            perplexity_increase=precision_allocation.perplexity_increase(quality),
            missed=precision_allocation.missed_limit(self.limits, quality),
            raised={group: candidate.name for group, candidate in self._changed_precisions(chosen).items()},
        )

    def _record(self, chosen: Allocation | None, attempts: list[AllocationTry]) -> dict[str, Any] | None:
        """Return the record of precisions for the manifest; None if every group has the step's own."""
        if chosen is None:
            return None
        return precision_allocation.precision_record(
            self.groups, chosen, self.candidates[0], self.target, self.missed + attempts
        )

    @property
    def _key(self) -> str:
        request = self.request.model_dump(mode="json", exclude={"out_dir", "work_dir", "devices"})
        candidates = [candidate.model_dump() for candidate in self.candidates]
        described = [request, self.limits.model_dump(), candidates, self.target]
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()

    def _store_try(self, quality: Mapping[str, Any]) -> None:
        """Store a missed try at once, so that a stopped job does not make it again."""
        from backend.engines.native.files.checkpoint import write_json

        self.folder.mkdir(parents=True, exist_ok=True)
        figures = {name: quality[name] for name in ("kl_mean", "perplexity_before", "perplexity_after")}
        write_json(self._path, {"key": self._key, "missed": [*self._stored_tries(), figures]})

    def _stored_tries(self) -> list[dict[str, float]]:
        """Return the quality of each missed try, those from before the job was stopped included."""
        try:
            document = json.loads(self._path.read_bytes())
            return list(document["missed"]) if document["key"] == self._key else []
        except (OSError, ValueError, KeyError):
            return []
