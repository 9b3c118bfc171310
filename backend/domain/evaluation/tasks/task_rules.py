"""Rules for a task's file: the settings, metrics and output types of lm-eval that are known here. Pure.

lm-eval finds most mistakes only after a model was asked, some never. Names are those of lm-eval 0.4.13, as locked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

METRICS: dict[str, tuple[str, ...]] = {
    "multiple_choice": (
        "acc",
        "acc_norm",
        "acc_bytes",
        "acc_mutual_info",
        "brier_score",
        "exact_match",
        "f1",
        "mcc",
    ),
    "loglikelihood": ("acc", "perplexity"),
    "loglikelihood_rolling": ("word_perplexity", "byte_perplexity", "bits_per_byte"),
    "generate_until": ("exact_match", "bleu", "chrf", "chrf++", "ter"),
}
"""`output_type` -> metrics that can be counted."""
BY_DEFAULT = {
    "multiple_choice": ("acc", "acc_norm"),
    "loglikelihood": ("perplexity", "acc"),
    "loglikelihood_rolling": METRICS["loglikelihood_rolling"],
    "generate_until": ("exact_match",),
}
"""Metrics that lm-eval counts where the task names none."""
SHARES = frozenset({"acc", "acc_norm", "acc_bytes", "acc_mutual_info", "exact_match"})
"""Metrics that are shares of right answers, which guessing reaches a part of."""
NEEDS_CODE = {
    "process_docs",
    "process_results",
    "custom_dataset",
    "class",
    "unsafe_code",
    "doc_to_image",
    "doc_to_audio",
    "use_prompt",
}
OTHER_TASKS = {"include", "group", "task_list"}
KNOWN_SETTINGS = {
    "task",
    "task_alias",
    "tag",
    "dataset_path",
    "dataset_name",
    "dataset_kwargs",
    "training_split",
    "validation_split",
    "test_split",
    "fewshot_split",
    "doc_to_text",
    "doc_to_target",
    "doc_to_choice",
    "description",
    "target_delimiter",
    "fewshot_delimiter",
    "fewshot_config",
    "num_fewshot",
    "metric_list",
    "output_type",
    "generation_kwargs",
    "repeats",
    "filter_list",
    "gen_prefix",
    "metadata",
    "should_decontaminate",
    "doc_to_decontamination_query",
}
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}")
TEMPLATES = (
    "doc_to_text",
    "doc_to_target",
    "doc_to_choice",
    "description",
    "gen_prefix",
    "doc_to_decontamination_query",
)
DESCRIBED = ("licence", "source")
"""Texts of a task's `metadata` that a report repeats."""
MOST_CHARACTERS = 200


def find_problem(config: Mapping[str, Any]) -> str | None:
    """The first thing that is wrong with the settings, as the end of a sentence; None where they can be used."""
    checks = (_settings, _named, _data, _output_type, _metrics, _metadata)
    return next((problem for check in checks if (problem := check(config))), None)


def _settings(config: Mapping[str, Any]) -> str | None:
    for name in config:
        if name in NEEDS_CODE and config[name]:
            return f"`{name}` needs code or media of its own, which is not run here: prepare the rows instead"
        if name in OTHER_TASKS:
            return f"`{name}` points to other tasks: write one task with all its settings in one file"
        if name not in KNOWN_SETTINGS | NEEDS_CODE:
            return f"there is no setting `{str(name)[:60]}`"
    return None


def _named(config: Mapping[str, Any]) -> str | None:
    name = config.get("task")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        return "`task` must be a name of letters, digits, - and _"
    return None


def _data(config: Mapping[str, Any]) -> str | None:
    data_set = config.get("dataset_path")
    if data_set != "json":
        problem = (
            f"asks for the data set `{str(data_set)[:60]}`, which would be fetched" if data_set else "names no data"
        )
        return f"{problem}: write `dataset_path: json` and the files under dataset_kwargs, data_files"
    kwargs = config.get("dataset_kwargs")
    if not isinstance(kwargs, dict) or not data_files(config):
        return "needs `dataset_kwargs` with `data_files`: a JSONL file, or a mapping of splits to files"
    if others := set(kwargs) - {"data_files"}:
        return f"`dataset_kwargs` may only have data_files, not {sorted(map(str, others))[0]}"
    return _splits(config)


def _splits(config: Mapping[str, Any]) -> str | None:
    known = data_files(config)
    if wrong := next((name for name in known if not NAME.fullmatch(name)), None):
        return f"names a split {wrong[:40]!r}: a split has letters, digits, - and _"
    if scored_split(config) is None:
        return "says neither `test_split` nor `validation_split`"
    for name in ("test_split", "validation_split", "training_split", "fewshot_split"):
        if config.get(name) is not None and str(config[name]) not in known:
            return f"`{name}` is {str(config[name])[:40]}, but data_files has {', '.join(known)}"
    return None


def _output_type(config: Mapping[str, Any]) -> str | None:
    kind = config.get("output_type", "generate_until")
    if not isinstance(kind, str) or kind not in METRICS:
        return f"`output_type` is {str(kind)[:40]}; the ways to ask are {', '.join(METRICS)}"
    for name in ("doc_to_target",) if kind == "loglikelihood_rolling" else ("doc_to_text", "doc_to_target"):
        if config.get(name) is None:
            return f"says no `{name}`"
    if kind == "multiple_choice" and not config.get("doc_to_choice"):
        return "says no `doc_to_choice`, which a multiple choice needs"
    return None


def _metrics(config: Mapping[str, Any]) -> str | None:
    listed = config.get("metric_list")
    if listed is None:
        return None
    kind = config.get("output_type", "generate_until")
    if not isinstance(listed, list) or not listed or not all(isinstance(row, dict) for row in listed):
        return "`metric_list` must be a list such as `- metric: acc`"
    for row in listed:
        if row.get("hf_evaluate"):
            return "`hf_evaluate` would fetch the metric: leave it out"
        if str(row.get("metric")) not in METRICS[kind]:
            return (
                f"there is no metric `{str(row.get('metric'))[:40]}` for {kind}; there are {', '.join(METRICS[kind])}"
            )
    return None


def _metadata(config: Mapping[str, Any]) -> str | None:
    metadata = config.get("metadata") or {}
    if not isinstance(metadata, dict):
        return "`metadata` must be settings such as `version: 1`"
    floor = metadata.get("floor", 0)
    if isinstance(floor, bool) or not isinstance(floor, int | float) or not 0 <= floor <= 1:
        return f"`floor` of metadata is {str(floor)[:40]}: give the share that guessing reaches, from 0 to 1"
    for name in DESCRIBED:
        text = metadata.get(name, "")
        if not isinstance(text, str) or len(text) > MOST_CHARACTERS:
            return f"`{name}` of metadata must be a text of at most {MOST_CHARACTERS} characters"
    return None


def data_files(config: Mapping[str, Any]) -> dict[str, list[str]]:
    """Split -> files as written; empty where they cannot be read."""
    files = (config.get("dataset_kwargs") or {}).get("data_files")
    splits = files if isinstance(files, dict) else {"train": files}
    files_by_split: dict[str, list[str]] = {}
    for name, value in splits.items():
        listed = [value] if isinstance(value, str) else value
        if not isinstance(listed, list) or not listed or not all(isinstance(file, str) for file in listed):
            return {}
        files_by_split[str(name)] = listed
    return files_by_split


def scored_split(config: Mapping[str, Any]) -> str | None:
    """The split whose samples are scored."""
    return config.get("test_split") or config.get("validation_split")


def is_answered_in_text(config: Mapping[str, Any]) -> bool:
    """Tell whether a model writes its answers; else the probabilities of given texts are compared."""
    return bool(config.get("output_type", "generate_until") == "generate_until")


def row_templates(config: Mapping[str, Any]) -> dict[str, list[str]]:
    """Setting -> what is filled in from a row."""
    templates = {}
    for name in TEMPLATES:
        value = config.get(name)
        if isinstance(value, list):
            values = value
        else:
            values = list(value.values()) if isinstance(value, dict) else [value]
        templates[name] = [text for text in values if isinstance(text, str)]
    return templates


def metric_names(config: Mapping[str, Any]) -> list[str]:
    """The metrics of a task without a problem, as its scores name them: `METRIC`, or `METRIC,FILTER` for filters of its
    own."""
    listed = config.get("metric_list")
    names = [row["metric"] for row in listed] if listed else [*BY_DEFAULT[config.get("output_type", "generate_until")]]
    filters = [row["name"] for row in config.get("filter_list") or () if isinstance(row, dict) and "name" in row]
    return [name if chosen == "none" else f"{name},{chosen}" for name in names for chosen in filters or ["none"]]
