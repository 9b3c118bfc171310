"""The one exception tree. A class's docstring is its default message to the user.

`RequestError` means that the request was wrong and nothing was started (exit 2); `WorkError` that the work itself
failed (exit 1). A message says what happened and what to do next.

A field of a model has another name for each reader: `--warmup` in a terminal, a widget's label on a page. So an error
keeps the `field` that is wrong, by its dotted name in the model, apart from its `problem`, which goes on after the
field's name; `named` are other fields, in the order of the `{}` of the problem.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable


def plain_name(field: str) -> str:
    """Return a field's name in plain words, for readers without a name of their own for it: `price per hour`."""
    return field.partition(".")[0].replace("_", " ")


class WhetstoneError(Exception):
    """Something went wrong; run `whetstone doctor` to see what this machine lacks."""

    exit_code = 1

    def __init__(self, problem: str | None = None, *named: str, field: str | None = None) -> None:
        self.problem = problem or inspect.cleandoc(type(self).__doc__ or "")
        self.field = field
        self.named = named
        super().__init__(self.worded(plain_name))

    def worded(self, name: Callable[[str], str]) -> str:
        """Return the sentence, with each field by the name that its reader knows: a flag, or the label of a widget."""
        words = self.problem
        for field in self.named:
            words = words.replace("{}", name(field), 1)
        if not self.field:
            return words
        subject = name(self.field)
        return f"{subject[:1].upper()}{subject[1:]} {words}"


class RequestError(WhetstoneError):
    """The request cannot be carried out as given; nothing was started."""

    exit_code = 2


class BelowFloor(RequestError):
    """The artifact's quality is below the floor; it is used only where that was said to be meant."""


class UnknownModel(RequestError):
    """No such model: give a folder, or an id that `whetstone catalog list` shows."""


class InvalidModel(RequestError):
    """The folder is not a model that can be optimized: it needs config.json, a tokenizer and safetensors weights."""


class InvalidCatalog(RequestError):
    """A bundled data file was edited wrongly; restore it, or correct the row that the message names."""


class UnknownFilter(RequestError):
    """The catalog cannot be narrowed by that: correct the filter, or leave it out."""


class SourceUnreachable(RequestError):
    """The place the model is to come from does not answer; check the network and try again."""


class AccessRefused(RequestError):
    """You may not read this model; ask its owner for access and give the credentials in the environment."""


class LicenceNotAccepted(RequestError):
    """The model's licence must be accepted first: read it, then say that you do."""


class InvalidRecipe(RequestError):
    """The recipe is not valid: compare it with what `whetstone recipe show awq` prints."""


class InvalidPreset(RequestError):
    """The preset is not valid: compare it with what `whetstone presets export` writes."""


class ImpossibleStack(RequestError):
    """These steps cannot be combined on this model and target; `whetstone recipe check` names the nearest valid
    recipe."""


class InvalidWorkload(RequestError):
    """The workload cannot be used: every line must be a JSON object with a "prompt"."""


class InvalidOptions(RequestError):
    """An option of the evaluation is wrong."""


class InvalidImport(RequestError):
    """The file is no result that can be imported: give what GuideLLM or `vllm bench serve --save-result` writes as
    JSON."""


class Unreadable(RequestError):
    """A stored record or file cannot be read by this version; `whetstone doctor` names it."""


class WrittenByNewer(Unreadable):
    """A stored record or file was written by a newer version of Whetstone: update this checkout to read it."""


class NotFound(RequestError):
    """No such job, artifact, evaluation or engine; the matching `list` command shows what exists."""


class NotNow(RequestError):
    """The job is not in a state that allows this."""


class KeyReused(RequestError):
    """The key was used for something else: give another."""


class NotContinued(RequestError):
    """The evaluation cannot be continued: measure again."""


class NotEnoughDisk(RequestError):
    """There is not enough free disk for this job; free some, or set WHETSTONE_HOME to a larger disk."""


class QuotaExceeded(RequestError):
    """Artifacts would take more than they may; delete some, or raise WHETSTONE_ARTIFACTS_QUOTA."""


class NotEnoughMemory(RequestError):
    """There is not enough free memory for this; stop other programs, or choose something smaller."""


class EngineMissing(RequestError):
    """The engine this needs is not installed; install it with `whetstone engines install serve`."""


class TooDemanding(RequestError):
    """The file takes more memory or time to read than a file may."""


class HomeUnusable(RequestError):
    """The home cannot be used: set WHETSTONE_HOME to a folder that you may write."""


class PortTaken(RequestError):
    """The port is in use: stop what uses it, or choose another."""


class ReadOnly(RequestError):
    """This is a demonstration: nothing can be started or changed here; `whetstone up` opens a studio of your own."""


class NotAllowed(RequestError):
    """Your role does not allow this: ask an admin of this studio."""


class TooMuch(RequestError):
    """It would go beyond what one person may have here: remove something of yours first."""


class WorkError(WhetstoneError):
    """The work failed; the job's log says where."""


class ServerFailed(WorkError):
    """The model server did not start; its log says why."""


class EndpointUnreachable(WorkError):
    """Cannot reach that address; check that the server is running and the port is right."""


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
    """A condition of the evaluation holds: look at the figures, or loosen the condition."""


class JobCancelled(WhetstoneError):
    """The job was cancelled; nothing half-written remains."""

    exit_code = 130
