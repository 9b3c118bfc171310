"""Objects that can be evaluated: a model, and an artifact that a job made from one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from backend.domain.deploy.deployment import Deployment
from backend.domain.errors import InvalidOptions
from backend.domain.figures import figure
from backend.domain.jobs.artifact import Manifest
from backend.domain.model.facts import ModelCard, ModelFacts
from backend.domain.validation import first_flaw
from backend.present.words import quality_loss
from backend.service import Workspace
from backend.service.jobs import artifacts
from backend.service.jobs.artifacts import ArtifactView
from backend.service.models.models import KnownModel
from backend.service.serving import endpoints
from backend.service.serving.endpoints import EndpointView
from whetstone.html_display import facts_table


class Model:
    """A model. One that is known by published facts alone can be checked and estimated, and has no weights to run."""

    def __init__(self, known: ModelFacts) -> None:
        self.facts, self.id = known, known.id

    @property
    def source(self) -> str:
        """The text that the command line accepts for it: the id of a bundled model, else its folder."""
        return KnownModel(card=self.facts, present=True).source if isinstance(self.facts, ModelCard) else self.id

    def __repr__(self) -> str:
        return f"<Model {self.id}: {self.facts.architecture}, {self.facts.parameters / 1e6:,.0f} M parameters>"

    def _repr_html_(self) -> str:
        weights = f"{self.facts.weights_bytes / 1e6:,.1f} MB" if isinstance(self.facts, ModelCard) else "not here"
        known = {
            "Architecture": self.facts.architecture,
            "Parameters": f"{self.facts.parameters:,}",
            "Layers": self.facts.layers,
            "Context": f"{self.facts.max_positions:,} tokens",
            "Weights": weights,
        }
        return facts_table(self.id, known)


class Artifact:
    """The immutable result of an optimize job."""

    def __init__(self, workspace: Workspace, view: ArtifactView) -> None:
        self._workspace, self.view = workspace, view
        self.id = self.source = view.id

    @property
    def manifest(self) -> Manifest:
        """The manifest: its files, and everything that made it."""
        return self.view.manifest

    @property
    def quality(self) -> Mapping[str, Any]:
        """The quality figures from when it was made, by their names in the manifest: `kl_mean`,
        `perplexity_after`..."""
        return self.manifest.quality or {}

    def fetch(self) -> Path:
        """The folder of its verified files on this machine. Raises NotFound, ArtifactCorrupt."""
        return artifacts.fetch(self._workspace, self.id)

    def deployment(
        self, *, instance: str, role: str | None = None, bucket: str | None = None, anyway: bool = False, **more: object
    ) -> Deployment:
        """Return its deployment on a SageMaker endpoint without asking AWS. `more` takes the options of `whetstone
        deploy`.

        Raises RequestError, and its kinds NotFound, ImpossibleStack, NotEnoughMemory, BelowFloor, InvalidOptions.
        """
        fields = {"instance": instance, "role": role, "bucket": bucket, **more}
        try:
            request = endpoints.DeploymentRequest.model_validate(fields)
        except ValidationError as error:
            flaw = first_flaw(error)
            raise InvalidOptions(f"{flaw.problem}.", field=flaw.field) from None
        return endpoints.plan(self._workspace, self.id, request, anyway=anyway)

    def preview_deploy(self, **options: Any) -> dict[str, Any]:
        """The exact requests of that deployment and its price an hour; asks nothing of AWS. Raises as `deployment`."""
        return endpoints.preview(self._workspace, self.deployment(**options))

    def deploy(self, **options: Any) -> EndpointView:
        """Serve it on a SageMaker endpoint, and wait until it is in service. It costs money until it is deleted."""
        return endpoints.deploy(self._workspace, self.deployment(**options), lambda _: None)

    def __repr__(self) -> str:
        return f"<Artifact {self.id}: {self.view.model} with {self.view.recipe}, {self.view.bytes / 1e6:,.1f} MB>"

    def _repr_html_(self) -> str:
        kl = self.quality.get("kl_mean")
        before, after = self.manifest.bytes_before / 1e6, self.manifest.bytes_after / 1e6
        known = {
            "Artifact": self.id,
            "Weights": f"{before:,.1f} to {after:,.1f} MB",
            "Mean KL divergence": None if kl is None else figure(kl),
            "Quality": quality_loss.manifest_words(self.quality),
            "Below the floor": self.quality.get("below_floor"),
            "Job": self.view.job_id,
        }
        return facts_table(f"{self.view.model} with {self.view.recipe}", known)
