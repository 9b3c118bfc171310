"""Workloads: built-in by name, uploaded into the home, or a file. A file is read once for as long as it stays the
same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from backend import sandbox
from backend.catalog.bundled import models as bundled_models
from backend.catalog.cards import config as configuration
from backend.catalog.text import held_out_text
from backend.catalog.text import token_lengths as tokenizers
from backend.domain.errors import InvalidModel, InvalidWorkload, RequestError, WhetstoneError
from backend.domain.evaluation.document import EvaluateOptions, Variant
from backend.domain.figures import counted
from backend.domain.frozen import Frozen
from backend.domain.load import prompt_lines
from backend.domain.maths.intervals import percentile
from backend.domain.roles import Action
from backend.domain.workload import generators, workload
from backend.domain.workload.row_report import ReadReport
from backend.domain.workload.trace_times import TimeUnit
from backend.domain.workload.workload import Prompt, Workload
from backend.service import paths
from backend.service.evaluations import workload_files
from backend.service.evaluations.workload_files import SUFFIXES, FileRequest, WorkloadRequest, make_workload
from backend.service.models import preflight, variants
from backend.service.workspace import Workspace
from backend.settings import ASSETS

MAX_SHOWN = 200
PREVIEWED = 20
COUNTED_PROMPTS, COUNTED_CHARACTERS = 500, 1_000_000
"""Most prompts whose tokens are counted for a preview, and most text of them."""
CHAT, CODE = "assistant", "starter-code"
"""Bundled loads: of chat models, and of those that only go on with a text."""
_FOLDER = ASSETS / "workloads"


class WorkloadFacts(Frozen):
    """Facts of a workload without all its prompts. `first` is shown; tokens are counted over `sample`."""

    name: str
    sha256: str
    prompts: int
    characters_p50: int
    characters_max: int
    conversations: int
    """Prompts of several turns."""
    timed: bool
    """Every line has a time: it can be replayed."""
    answer_tokens_mean: float | None
    """Mean of the longest answers, in tokens, over the lines that name one; None where none does."""
    first: tuple[Prompt, ...]
    sample: tuple[str, ...]
    reading: ReadReport | None = None
    """The report of how the file was read; None for a built-in workload."""


class TokenLengths(Frozen):
    """Tokens of the first prompts by the tokenizer of `model`; `counted` of them were counted."""

    model: str
    counted: int
    p50: int
    largest: int
    lengths: tuple[int, ...]
    """In the workload's order."""


def names() -> list[str]:
    """Return the names of bundled workloads, then of generated ones."""
    return sorted(path.stem for path in _FOLDER.glob("*.jsonl")) + list(generators.WORKLOAD_KINDS)


class PreparedLoad(NamedTuple):
    """A checked workload, stored in the home, and the options of its load."""

    file: Path
    chosen: EvaluateOptions
    """The options, with the default workload filled in."""
    prompts: int
    reading: ReadReport | None


def fit_to_variants(chosen: EvaluateOptions, variants: Sequence[Variant]) -> EvaluateOptions:
    """A chat model is asked chat prompts in its own template where no workload was chosen, and the chat load nowhere
    else.

    The chat prompts are few: where the load asks for more, each run of a server that is started here keeps its own
    prefixes, so that they may come round and none is answered from what an earlier run left. Where no workload was
    chosen, and the bundled one is too short all the same, a generated one is taken that is long enough.
    """
    fits = _fit_template(chosen, variants)
    return fits if "workload" in chosen.model_fields_set else _fit_length(fits, variants)


def _fit_length(chosen: EvaluateOptions, variants: Sequence[Variant]) -> EvaluateOptions:
    """With a generated workload where its own has too few lines."""
    if _missing(make_workload(make_request(chosen, variants)).workload, chosen) is None:
        return chosen
    return chosen.model_copy(update={"workload": generators.LONGER_WORKLOAD})


def _fit_template(chosen: EvaluateOptions, variants: Sequence[Variant]) -> EvaluateOptions:
    if not all_have_chat_template(variants):
        return chosen
    if "workload" not in chosen.model_fields_set:
        chosen = chosen.model_copy(update={"workload": CHAT})
    if chosen.workload != CHAT:
        return chosen
    chosen = chosen.model_copy(update={"endpoint": "chat"})
    if chosen.prefix_cache != "recipe" or any(variant.kind == "url" for variant in variants):
        return chosen
    prompts, apart = (
        make_workload(make_request(chosen, variants)).workload,
        chosen.model_copy(update={"prefix_cache": "per-run"}),
    )
    return apart if _missing(prompts, chosen) is not None and _missing(prompts, apart) is None else chosen


def all_have_chat_template(variants: Sequence[Variant]) -> bool:
    """Tell whether every variant with a local folder has a chat template, and there is at least one."""
    folders = [Path(variant.model_path) for variant in variants if variant.model_path is not None]
    return bool(folders) and all(held_out_text.has_template(folder) for folder in folders)


def default_workload(workspace: Workspace, source: str | None) -> str:
    """Return the workload that a screen suggests for a variant: chat for a chat model, code for the models that come
    with Whetstone and learned only that, short questions for all others."""
    variant = _find_variant(workspace, source)
    if all_have_chat_template(variant) and preflight.why_no_chat(workspace.settings.cache, variant) is None:
        return CHAT
    bundled = {card.path for card in bundled_models.cards()}
    return CODE if any(one.original_path in bundled for one in variant) else generators.LONGER_WORKLOAD


def _find_variant(workspace: Workspace, source: str | None) -> list[Variant]:
    """Return the variant in a list; an empty list if it cannot be resolved."""
    try:
        return [variants.resolve(workspace, source)] if source else []
    except WhetstoneError:
        return []


def find_file(source: str) -> Path:
    """Return the file of a name or path. Raises InvalidWorkload."""
    bundled = _FOLDER / f"{source}.jsonl"
    file = bundled if source in names() and bundled.is_file() else paths.find_file(source)
    if file is None:
        known = ", ".join(names())
        raise InvalidWorkload(
            f"There is no workload `{source[:MAX_SHOWN]}`: give a file ({', '.join(SUFFIXES)}), or one of {known}."
        )
    return file


def facts_for(workspace: Workspace, source: str, variant: str | None, seed: int = 0) -> WorkloadFacts:
    """Return facts of a workload, every line checked. A generated one is made with the tokenizer and context of that
    variant, if its files are here. Raises InvalidWorkload with the first thing that is wrong.

    Cached while the file's size and time stay the same, since a page asks at every click.
    """
    shown_for = _find_variant(workspace, variant)
    return _facts(make_request(EvaluateOptions(workload=source, seed=seed), shown_for, for_load=False))


def check(chosen: EvaluateOptions, variants: Sequence[Variant]) -> None:
    """Check the workload before the start: broken lines, a trace without times, prompts that are longer than a
    variant's context. Raises InvalidWorkload.

    A generated one that is longer than usual is only planned here, and made when it is submitted (`kept`): whoever
    opens a page chooses how long it is.
    """
    request = make_request(chosen, variants)
    if not workload_files.is_long(request):
        _check_request(request, chosen, variants)
        return
    plan = generators.plan_workload(request.source, context=request.context, prompts=request.prompts)
    _check_length(request.source, plan.prompts, generators.LEAST_TURNS if request.source == "chat" else 1, chosen)


def _check_request(request: WorkloadRequest, chosen: EvaluateOptions, variants: Sequence[Variant]) -> None:
    if chosen.trace:
        workload.require_times(make_workload(request).workload)
    for variant in variants:
        context = context_tokens(variant)
        if variant.model_path is not None and context is not None:
            problem = _find_too_long(
                request, _stamp(Path(variant.model_path)), variant.name, context, chosen.max_tokens
            )
            if problem:
                raise InvalidWorkload(problem)
    built = make_workload(request).workload
    _check_length(built.name, len(built.prompts), built.least_turns, chosen)


def _check_length(name: str, has: int, turns: int, chosen: EvaluateOptions) -> None:
    """Raises InvalidWorkload where a server would be asked a line twice, and so answer it half from its cache."""
    needed = prompt_lines.find_shortage(chosen, has, greedy=chosen.quality, turns=turns)
    if needed is None:
        return
    once = "the trace in every repeat" if chosen.trace else counted(needed, "line")
    raise InvalidWorkload(
        f"This load asks {once}, and the workload {name} has {has:,}. A line that is sent twice is answered from the "
        "server's prefix cache, so no line is sent twice: give a longer workload or a generated one, ask for less "
        "({}, {}), or set {} to per-run (each run keeps its own prefixes) or off.",
        "max_blocks" if chosen.until_decided else "repeats",
        "requests",
        "prefix_cache",
    )


def _missing(workload: Workload, chosen: EvaluateOptions) -> int | None:
    return prompt_lines.find_shortage(chosen, len(workload.prompts), greedy=chosen.quality, turns=workload.least_turns)


def keep_copy(workspace: Workspace, chosen: EvaluateOptions, variants: Sequence[Variant]) -> PreparedLoad:
    """Copy the workload into the home under its hash, so that every variant gets the same prompts.

    Raises InvalidWorkload as `check` does for one that was only planned there.
    """
    request = make_request(chosen, variants)
    ready = make_workload(request)
    if workload_files.is_long(request):
        _check_request(request, chosen, variants)
    file = workload_files.keep_by_hash(workspace, ready.workload.name, ready.content)
    return PreparedLoad(file, chosen, len(ready.workload.prompts), ready.reading)


def describe_reading(chosen: EvaluateOptions, variants: Sequence[Variant]) -> tuple[int, ReadReport | None]:
    """Return the number of prompts, and the report of how their file was read."""
    ready = make_workload(make_request(chosen, variants))
    return len(ready.workload.prompts), ready.reading


def prepare(workspace: Workspace, chosen: EvaluateOptions, tokenizer: str | None = None) -> PreparedLoad:
    """For an endpoint that is measured alone: checked, and kept. `tokenizer` is a model that measures what is made: a
    generated workload, or the prompts of a trace of lengths.

    Raises InvalidWorkload, UnknownModel, RequestError where that model has no tokenizer.json.
    """
    # 1. Find the model whose tokenizer measures lengths.
    measuring: list[Variant] = []
    if tokenizer is not None:
        variant = variants.resolve(workspace, tokenizer)
        if variant.model_path is None or not (Path(variant.model_path) / tokenizers.TOKENIZER).is_file():
            raise RequestError(
                f"is wrong: {tokenizer[:MAX_SHOWN]} has no {tokenizers.TOKENIZER}: name a model here.",
                field="tokenizer",
            )
        measuring = [variant]
    # 2. Fit the default workload to that model, check the load and keep the lines.
    if "workload" not in chosen.model_fields_set:
        chosen = _fit_length(chosen, measuring)
    check(chosen, measuring)
    return keep_copy(workspace, chosen, measuring)


def make_request(chosen: EvaluateOptions, variants: Sequence[Variant], *, for_load: bool = True) -> WorkloadRequest:
    """The first variant with a tokenizer measures for all; the shortest context bounds what is generated.

    `for_load`: as many lines as the load asks.
    """
    folders = [Path(variant.model_path) for variant in variants if variant.model_path is not None]
    folder = next((folder for folder in folders if (folder / tokenizers.TOKENIZER).is_file()), None)
    changed, tokenizer = _stamp(folder).changed if folder else 0, str(folder) if folder else None
    # A file: its size and time of change tell whether it was read before.
    if chosen.workload not in generators.WORKLOAD_KINDS:
        file = find_file(chosen.workload)
        status = file.stat()
        read = FileRequest(str(file), status.st_size, status.st_mtime_ns)
        if not workload_files.is_kept(file):
            columns = tuple(sorted(chosen.columns.items()))
            read = read._replace(columns=columns, time_unit=chosen.time_unit, timed=chosen.trace)
        return WorkloadRequest(str(file), read, changed, tokenizer, chosen.seed)
    # A generated workload: as long as the shortest context and the load allow.
    contexts = [context for variant in variants if (context := context_tokens(variant)) is not None]
    turns = generators.LEAST_TURNS if chosen.workload == "chat" else 1
    prompts = prompt_lines.lines_to_generate(chosen, greedy=chosen.quality, turns=turns) if for_load else 0
    return WorkloadRequest(chosen.workload, None, changed, tokenizer, chosen.seed, min(contexts, default=None), prompts)


def context_tokens(variant: Variant) -> int | None:
    """Return the context length in tokens, prompt and answer together; None if unknown."""
    if variant.serving.max_model_len is not None or variant.model_path is None:
        return variant.serving.max_model_len
    try:
        config = sandbox.read_json_file(Path(variant.model_path) / "config.json")
    except (OSError, ValueError):
        return None
    positions = config.get("max_position_embeddings") or config.get("text_config", {}).get("max_position_embeddings")
    if isinstance(positions, int):
        return positions
    try:
        # under the family's own name, as GPT-2's n_positions
        return int(configuration.read(config).facts["max_positions"])
    except InvalidModel:
        return None


def token_lengths(workspace: Workspace, workload_facts: WorkloadFacts, source: str) -> TokenLengths | None:
    """Count the sample's tokens with the tokenizer of a variant; None if it is not here, as with a URL."""
    variant = next(iter(_find_variant(workspace, source)), None)
    if variant is None or variant.model_path is None:
        return None
    counted = _lengths(_stamp(Path(variant.model_path)), workload_facts.sha256, workload_facts.sample)
    if counted is None:
        return None
    return TokenLengths(
        model=variant.name,
        counted=len(counted),
        p50=round(percentile(sorted(counted), 50)),
        largest=max(counted),
        lengths=counted,
    )


def list_saved(workspace: Workspace) -> dict[str, Path]:
    """Return the uploaded workloads of this home: name -> file."""
    return {file.stem: file for file in sorted((workspace.settings.home / "workloads").glob("*.jsonl"))}


def save(
    workspace: Workspace,
    name: str,
    content: bytes,
    columns: Mapping[str, str] | None = None,
    time_unit: TimeUnit = "auto",
) -> str:
    """Keep an uploaded workload in the home under its name and the start of its hash; the name it can be asked for by.

    `columns` names those of a table: field -> column. The same content twice is one file. Raises InvalidWorkload with
    what is wrong; then nothing is kept. Raises ReadOnly in a demonstration.
    """
    workspace.check(Action.UPLOAD)
    lines = workload_files.own_lines(name, content, columns or {}, time_unit=time_unit)
    return workload_files.store_upload(workspace, Path(name).stem, lines.content, lines.reading)


class _TokenizerStamp(NamedTuple):
    """A model folder and when its tokenizer changed."""

    folder: str
    changed: int


def _stamp(folder: Path) -> _TokenizerStamp:
    file = folder / tokenizers.TOKENIZER
    return _TokenizerStamp(str(folder), file.stat().st_mtime_ns if file.is_file() else 0)


@lru_cache(maxsize=32)
def _facts(request: WorkloadRequest) -> WorkloadFacts:
    workload, reading = make_workload(request).workload, make_workload(request).reading
    about = workload.about()
    longest = [prompt.max_tokens for prompt in workload.prompts if prompt.max_tokens is not None]
    return WorkloadFacts(
        name=workload.name,
        sha256=workload.sha256,
        prompts=len(workload.prompts),
        characters_p50=about.prompt_characters_p50,
        characters_max=about.prompt_characters_max,
        conversations=sum(bool(p.turns) for p in workload.prompts),
        timed=all(p.timestamp is not None for p in workload.prompts),
        answer_tokens_mean=fmean(longest) if longest else None,
        first=workload.prompts[:PREVIEWED],
        sample=_sample(workload),
        reading=reading,
    )


def _sample(workload: Workload) -> tuple[str, ...]:
    texts: list[str] = []
    characters = 0
    for prompt in workload.prompts[:COUNTED_PROMPTS]:
        characters += len(prompt.prompt)
        if texts and characters > COUNTED_CHARACTERS:
            break
        texts.append(prompt.prompt)
    return tuple(texts)


@lru_cache(maxsize=32)
def _lengths(stamp: _TokenizerStamp, _sha256: str, texts: tuple[str, ...]) -> tuple[int, ...] | None:
    lengths = tokenizers.lengths(Path(stamp.folder), texts)
    return None if lengths is None else tuple(lengths)


@lru_cache(maxsize=64)
def _find_too_long(
    request: WorkloadRequest, stamp: _TokenizerStamp, name: str, context: int, max_tokens: int
) -> str | None:
    """The first line that does not fit, in one sentence. A token is at least a byte, so short lines need no
    counting."""
    # 1. Collect lines that may be too long: a token has at least one byte.
    long = []
    for number, prompt in enumerate(make_workload(request).workload.prompts, 1):
        answers = (prompt.max_tokens or max_tokens) * len(prompt.turns or ("",))
        if sum(len(text.encode()) for text in prompt.texts()) + answers >= context:
            long.append((number, prompt.texts(), answers))
    # 2. Count the tokens of those.
    counted = tokenizers.lengths(Path(stamp.folder), [text for _, texts, _ in long for text in texts]) if long else None
    lengths = iter(counted or ())
    for number, texts, answers in long if counted is not None else ():
        tokens = sum(islice(lengths, len(texts)))
        if tokens + answers > context:
            return (
                f"Line {number} of the workload has {tokens:,} tokens and asks for {answers:,} more, which is longer "
                f"than the context of {name} ({context:,}): shorten it, or serve with a longer max_model_len."
            )
    return None
