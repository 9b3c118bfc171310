"""The exact command by which an engine that is not started here serves a variant, in its makers' container."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import Any, NamedTuple

from backend.domain.errors import ImpossibleStack
from backend.domain.evaluation.document import Speculation, Variant
from backend.domain.launch_commands.engines import CHECKED, ENGINES, LaunchEngine, LaunchName
from backend.domain.recipe import quantize_step
from backend.domain.recipe.recipe import Quantize, Recipe
from backend.domain.recipe.speculation import PROMPT_LOOKUP

MODEL, DRAFT, SETTINGS = "/model", "/draft", "/settings.yaml"
"""Places in the container: the folder of the weights, that of the draft, and a file of settings."""
SETTINGS_FILE = "whetstone-settings.yaml"
PARALLEL_SETTINGS = {"stages": "pipeline_parallel", "copies": "data_parallel", "experts": "expert_parallel"}
"""Options of an engine -> the serving settings that only some engines have."""


class LaunchCommand(NamedTuple):
    """A command for a shell with Docker and NVIDIA GPUs, and sentences on what it rests on."""

    engine: LaunchName
    title: str
    version: str
    image: str
    command: str
    url: str
    """The address that answers on the machine where it runs."""
    notes: tuple[str, ...]
    sources: tuple[str, ...]


def make_command(engine: LaunchName, variant: Variant, recipe: Recipe) -> LaunchCommand:
    """Return the command that serves a variant with folders, made by that recipe. Raises ImpossibleStack."""
    # 1. Refuse what the engine does not read.
    row = ENGINES[engine]
    why = find_unread(engine, variant, recipe)
    if why is not None:
        readers = [ENGINES[name].title for name in ENGINES if find_unread(name, variant, recipe) is None]
        instead = f"use {' or '.join(readers)}" if readers else "serve it with vLLM"
        raise ImpossibleStack(f"{row.title} {row.version} cannot serve {variant.name}: {why}; {instead}.")
    # 2. The folders of weights and draft, and what has no flag.
    draft = variant.speculation.draft_path if variant.speculation else None
    mounts = [_mount(str(variant.gguf or variant.model_path), _place(variant))]
    mounts += [_mount(str(variant.model_path), f"{MODEL}-tokenizer")] if variant.gguf else []
    mounts += [_mount(draft, DRAFT)] if draft else []
    settings = _settings_file(variant) if engine == "tensorrt-llm" else ""
    mounts += [f'-v "$PWD/{SETTINGS_FILE}:{SETTINGS}:ro"'] if settings else []
    mounts += ["-e PREFIX_CACHING=0"] if engine == "tgi" and variant.serving.prefix_caching is False else []
    host_port = 8080 if row.port == 80 else row.port
    run = f"docker run --rm --gpus all --ipc host -p 127.0.0.1:{host_port}:{row.port} {' '.join(mounts)} {row.image} "
    # 3. The whole.
    return LaunchCommand(
        engine=engine,
        title=row.title,
        version=row.version,
        image=row.image,
        command=settings + run + shlex.join(_arguments(engine, row, variant)),
        url=f"http://127.0.0.1:{host_port}/v1",
        notes=tuple(_notes(row, variant)),
        sources=row.sources,
    )


def find_unread(engine: LaunchName, variant: Variant, recipe: Recipe) -> str | None:
    """Return why the engine cannot serve the variant; None where its sources say that it can."""
    row, step, serving = ENGINES[engine], recipe.step("quantize"), variant.serving
    if variant.gguf is not None and not row.reads_gguf:
        return "it reads no GGUF files"
    if variant.neuron is not None:
        return "it was compiled for Neuron"
    if isinstance(step, Quantize) and variant.gguf is None:
        why = _unread_weights(row, step)
        if why is not None:
            return why
    if serving.kv_cache_dtype != "auto" and serving.kv_cache_dtype not in row.cache_types:
        return f"it has no key-value cache of type {serving.kv_cache_dtype}"
    for option, name in PARALLEL_SETTINGS.items():
        if getattr(serving, name) and option not in row.options:
            return f"the command made here has no `{name}` for it"
    if serving.dtype not in row.dtypes:
        return f"it does not compute in {serving.dtype}"
    return _unserved_speculation(row, variant.speculation)


def _unread_weights(row: LaunchEngine, step: Quantize) -> str | None:
    scheme = quantize_step.method_row(step).scheme
    if step.format == "autoawq" or step.engine == "autoawq":
        return None if row.reads_autoawq else "it does not read AutoAWQ's layout"
    if scheme is None and step.method == "kv_cache":
        return None if "wNa16" in row.schemes else "nothing says that it reads the scales of a key-value cache"
    if scheme not in row.schemes:
        return f"it does not read {step.method} weights in compressed-tensors"
    return None


def _unserved_speculation(row: LaunchEngine, speculation: Speculation | None) -> str | None:
    if speculation is None:
        return None
    if speculation.method not in row.speculation:
        return f"it has no `speculate: {{method: {speculation.method}}}`"
    if speculation.heterogeneous_vocab or speculation.synthetic is not None:
        return "it takes no draft with another tokenizer"
    return None


def _arguments(engine: LaunchName, row: LaunchEngine, variant: Variant) -> list[str]:
    """Return the program in the container with its options; settings that are the engine's own choice are left out."""
    serving = variant.serving
    values: dict[str, Any] = {
        "model": _place(variant),
        "name": variant.name,
        "dtype": None if serving.dtype == "auto" else serving.dtype,
        "cache": row.cache_types.get(serving.kv_cache_dtype),
        "parallel": serving.tensor_parallel if serving.tensor_parallel > 1 else None,
        "stages": serving.pipeline_parallel,
        "copies": serving.data_parallel,
        "experts": serving.tensor_parallel if serving.expert_parallel else None,
        "length": serving.max_model_len,
        "sequences": serving.max_num_seqs,
    }
    arguments = [*row.program, *([] if "model" in row.options else [_place(variant)]), *row.address_options]
    for name, value in values.items():
        if value is not None and name in row.options:
            arguments += [row.options[name], str(value)]
    own = {"sglang": _sglang_options, "tgi": _tgi_options, "tensorrt-llm": _tensorrt_options}[engine]
    return arguments + own(variant)


def _sglang_options(variant: Variant) -> list[str]:
    serving, speculation = variant.serving, variant.speculation
    options = ["--disable-radix-cache"] if serving.prefix_caching is False else []
    options += ["--chunked-prefill-size", "-1"] if serving.chunked_prefill is False else []
    options += ["--disable-cuda-graph"] if serving.enforce_eager else []
    if variant.gguf is not None:
        options += ["--load-format", "gguf", "--quantization", "gguf", "--tokenizer-path", f"{MODEL}-tokenizer"]
    if speculation is None:
        return options
    # A chain of so many tokens: one branch, and one place more to verify.
    options += ["--speculative-algorithm", ENGINES["sglang"].speculation[speculation.method]]
    if speculation.draft_path is not None:
        options += ["--speculative-draft-model-path", DRAFT]
        options += ["--speculative-num-steps", str(speculation.tokens), "--speculative-eagle-topk", "1"]
        return [*options, "--speculative-num-draft-tokens", str(speculation.tokens + 1)]
    return [*options, "--speculative-num-draft-tokens", str(speculation.tokens)]


def _tgi_options(variant: Variant) -> list[str]:
    options = ["--cuda-graphs", "0"] if variant.serving.enforce_eager else []
    return options + (["--speculate", str(variant.speculation.tokens)] if variant.speculation else [])


def _tensorrt_options(variant: Variant) -> list[str]:
    options = ["--enable_chunked_prefill"] if variant.serving.chunked_prefill else []
    return options + (["--extra_llm_api_options", SETTINGS] if _settings(variant) else [])


def _settings(variant: Variant) -> dict[str, Any]:
    """Return the settings of TensorRT-LLM that have no flag."""
    serving, speculation = variant.serving, variant.speculation
    settings: dict[str, Any] = {}
    if serving.dtype != "auto":
        settings["dtype"] = serving.dtype
    cache: dict[str, Any] = {}
    if serving.kv_cache_dtype != "auto":
        cache["dtype"] = ENGINES["tensorrt-llm"].cache_types[serving.kv_cache_dtype]
    if serving.prefix_caching is not None:
        cache["enable_block_reuse"] = serving.prefix_caching
    settings |= {"kv_cache_config": cache} if cache else {}
    settings |= {"cuda_graph_config": None} if serving.enforce_eager else {}
    if speculation is not None:
        words = ENGINES["tensorrt-llm"].speculation[speculation.method]
        drafting: dict[str, Any] = {"decoding_type": words, "max_draft_len": speculation.tokens}
        if speculation.method == "ngram":
            drafting["max_matching_ngram_size"] = (speculation.prompt_lookup or PROMPT_LOOKUP)[1]
        if speculation.draft_path is not None:
            drafting["speculative_model_dir"] = DRAFT
        settings |= {"speculative_config": drafting, "disable_overlap_scheduler": True}
    return settings


def _settings_file(variant: Variant) -> str:
    """Return the shell lines that write the file of settings, as JSON, which is YAML; empty where there are none."""
    settings = _settings(variant)
    return f"cat > {SETTINGS_FILE} <<'END'\n{json.dumps(settings, indent=1)}\nEND\n" if settings else ""


def _place(variant: Variant) -> str:
    """Return where the weights are in the container: a folder, or a GGUF file by its own name."""
    return f"{MODEL}/{str(variant.gguf).rpartition('/')[2]}" if variant.gguf else MODEL


def _mount(path: str, place: str) -> str:
    return f"-v {shlex.quote(f'{path}:{place}:ro')}"


def _notes(row: LaunchEngine, variant: Variant) -> Iterator[str]:
    yield (
        f"Not run here: the command is made from the documentation and source of {row.title} {row.version}, read on "
        f"{CHECKED}. It needs Docker and NVIDIA GPUs."
    )
    yield row.note
    if variant.speculation is not None and variant.speculation.tokens_by_batch:
        yield "The number of draft tokens by batch is vLLM's alone: the number for one sequence is used."
