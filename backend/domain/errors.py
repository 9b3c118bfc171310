"""The one exception tree. A class's docstring is its default message to the user.

`RequestError` means that the request was wrong and nothing was started (exit 2); `WorkError` that the work itself failed
(exit 1). A message says what happened and what to do next.
"""

from __future__ import annotations

import inspect


class WhetstoneError(Exception):
    """Something went wrong; run `whetstone doctor` to see what this machine lacks."""

    exit_code = 1

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or inspect.cleandoc(type(self).__doc__ or ""))


class RequestError(WhetstoneError):
    """The request cannot be carried out as given; nothing was started."""

    exit_code = 2


class UnknownModel(RequestError):
    """No such model: give a folder, or an id that `whetstone catalog list` shows."""


class InvalidModel(RequestError):
    """The folder is not a model that can be optimized: it needs config.json, a tokenizer and safetensors weights."""


class InvalidCatalog(RequestError):
    """A bundled data file was edited wrongly; restore it, or correct the row that the message names."""


class UnknownFilter(RequestError):
    """The catalog cannot be narrowed by that; `whetstone catalog list --help` shows by what."""


class SourceUnreachable(RequestError):
    """The place the model is to come from does not answer; check the network and try again."""


class AccessRefused(RequestError):
    """You may not read this model; ask its owner for access and give the credentials in the environment."""


class LicenceNotAccepted(RequestError):
    """The model's licence must be accepted first: read it, then give --accept-licence."""


class InvalidRecipe(RequestError):
    """The recipe is not valid: compare it with the example in `whetstone recipe --help`."""


class InvalidPreset(RequestError):
    """The preset is not valid: compare it with what `whetstone presets export` writes."""


class ImpossibleStack(RequestError):
    """These steps cannot be combined on this model and target; `whetstone recipe check` names the nearest valid recipe."""


class InvalidWorkload(RequestError):
    """The workload cannot be used: every line must be a JSON object with a "prompt"."""


class InvalidImport(RequestError):
    """The file is no result that can be imported: give what GuideLLM or `vllm bench serve --save-result` writes as JSON."""


class UnreadableEvaluation(RequestError):
    """The stored evaluation cannot be read by this version: measure it again."""


class NotFound(RequestError):
    """No such job, artifact, evaluation or engine; the matching `list` command shows what exists."""


class NotNow(RequestError):
    """The job is not in a state that allows this."""


class NotEnoughDisk(RequestError):
    """There is not enough free disk for this job; free some, or set WHETSTONE_HOME to a larger disk."""


class NotEnoughMemory(RequestError):
    """There is not enough free memory for this; stop other programs, or choose something smaller."""


class EngineMissing(RequestError):
    """The engine this needs is not installed; install it with `whetstone engines install serve`."""


class PortTaken(RequestError):
    """The port is in use: stop what uses it, or give another with --port."""


class ReadOnly(RequestError):
    """This is a demonstration: nothing can be started or changed here; `whetstone up` opens a studio of your own."""


class WorkError(WhetstoneError):
    """The work failed; the job's log says where."""


class ServerFailed(WorkError):
    """The model server did not start; its log says why."""


class EndpointUnreachable(WorkError):
    """Nothing answers at that address; check that the server is running and the port is right."""


class ArtifactCorrupt(WorkError):
    """The artifact does not match its manifest; run the optimize job again."""


class DiskFull(WorkError):
    """The disk filled up while writing; nothing was registered. Free some space and resume the job."""


class DownloadFailed(WorkError):
    """The download did not finish; resume the job to carry on where it stopped."""


class ModelDamaged(WorkError):
    """The model's weights cannot be read."""


class QualityFloorMissed(WorkError):
    """The optimized model lost more quality than the recipe's limits allow; nothing was registered."""


class GateFailed(WorkError):
    """A condition of --fail-if holds: look at the figures, or loosen the condition."""


class JobCancelled(WhetstoneError):
    """The job was cancelled; nothing half-written remains."""

    exit_code = 130
