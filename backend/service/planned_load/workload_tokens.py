"""Tokens of a request, read from a stored workload: what a planned load takes from a file of one's own."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean

from backend.catalog.text import token_lengths as tokenizers
from backend.domain.errors import NotFound, WhetstoneError
from backend.domain.frozen import Frozen
from backend.domain.planner.planned_load import MOST_NAME, MOST_TOKENS
from backend.service.evaluations import workloads
from backend.service.models import model_names, variants
from backend.service.workspace import Workspace

CHARACTERS_A_TOKEN = 4
"""About what English text has; used if no model here has a tokenizer."""


class WorkloadTokens(Frozen):
    """Mean tokens of a workload's requests. `output_tokens`: of the longest answers that its lines name, None where no
    line names one. `model`: whose tokenizer counted the prompts, None where characters were counted."""

    input_tokens: int
    output_tokens: int | None
    counted: int
    """Prompts that were counted."""
    model: str | None


def read_tokens(workspace: Workspace, name: str) -> WorkloadTokens:
    """Return the tokens of the stored workload of that name.

    Raises NotFound for an unknown name, InvalidWorkload and TooDemanding where the file cannot be read.
    """
    # 1. The file, and the model that counts.
    file = workloads.list_saved(workspace).get(name)
    if file is None:
        raise NotFound(f"There is no workload `{name[:MOST_NAME]}` here: upload it under Your load.")
    model = _find_model(workspace)
    # 2. The prompts by its tokenizer, else by their characters.
    facts = workloads.facts_for(workspace, str(file), model)
    lengths = workloads.token_lengths(workspace, facts, model) if model else None
    counts = lengths.lengths if lengths else [math.ceil(len(text) / CHARACTERS_A_TOKEN) for text in facts.sample]
    # 3. The answers where lines say how long they may be.
    answers = facts.answer_tokens_mean
    return WorkloadTokens(
        input_tokens=_whole(fmean(counts)),
        output_tokens=None if answers is None else _whole(answers),
        counted=len(counts),
        model=lengths.model if lengths else None,
    )


def _find_model(workspace: Workspace) -> str | None:
    """Return the first model here that has a tokenizer; None without one."""
    return next((source for source in model_names.list_present(workspace) if _has_tokenizer(workspace, source)), None)


def _has_tokenizer(workspace: Workspace, source: str) -> bool:
    try:
        folder = variants.resolve(workspace, source).model_path
    except WhetstoneError:
        return False
    return folder is not None and (Path(folder) / tokenizers.TOKENIZER).is_file()


def _whole(tokens: float) -> int:
    return min(max(1, round(tokens)), MOST_TOKENS)
