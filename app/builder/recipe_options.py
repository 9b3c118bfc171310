"""The options of a recipe with labels and help, and functions that change one setting. Pure: no widgets."""

from __future__ import annotations

from typing import Any, NamedTuple, get_args

from app.builder import recovery_options as recovering
from app.builder.option import TRI, Option
from backend.domain.model.gguf import file_types
from backend.domain.model.shapes import GROUP_SIZES
from backend.domain.recipe import methods, quantize_step, speculation
from backend.domain.recipe import recipe as recipes
from backend.domain.recipe.capability_table import supported
from backend.domain.recipe.quantization_engines import ENGINES
from backend.domain.recipe.recipe import Prune, Quantize, Recipe, Speculate, Step, run_order
from backend.domain.recipe.speculation import SPECULATE
from backend.domain.rules import gguf_rules


class StartingGoal(NamedTuple):
    """A goal to start from. `starts` are bundled recipes; the first that is valid for the model and served is
    used."""

    title: str
    help: str
    starts: tuple[str, ...]


GOALS = {
    "cost": StartingGoal(
        "Lower cost",
        "8-bit weights and activations, for more answers from the same machine. An evaluation says how many.",
        ("w8a8", "awq"),
    ),
    "latency": StartingGoal(
        "Lower latency",
        "Speculative decoding, for a faster answer to one user: a draft model proposes tokens, or n-grams of the "
        "prompt do if there is no draft, and the model only checks them.",
        ("w8a8-draft", "draft", "ngram-adaptive", "ngram"),
    ),
    "size": StartingGoal("Smaller", "4-bit weights, or 8-bit ones where those are not served.", ("awq", "w8a8")),
}


def _methods(technique: str) -> tuple[str, ...]:
    """Return the methods of a technique that this version supports."""
    return tuple(method for name, method, _, _ in supported() if name == technique and method)


STEP_OPTIONS: dict[str, tuple[Option, ...]] = {
    "quantize": (
        Option(
            "method",
            "Method",
            "How the weights are quantized; see the line above.",
            "choice",
            _methods("quantize"),
        ),
        Option(
            "type",
            "Type of the file",
            "llama.cpp's name of how weights are stored: q8_0 is closest to the original, q2_k is smallest and loses "
            "most.",
            "choice",
            (None, *file_types.TYPES),
        ),
        Option(
            "imatrix",
            "Importance matrix",
            "Weighs rounding errors by the inputs that the calibration text brings. Empty: yes, where it changes "
            "anything.",
            "choice",
            TRI,
        ),
        Option("bits", "Bits", "Bits per weight. Empty: the method's default.", "choice", (None, 4, 8)),
        Option(
            "group_size",
            "Group size",
            f"Weights that share one scale. Empty: {GROUP_SIZES[0]}. Smaller is more accurate and needs more bytes.",
            "choice",
            (None, *sorted(GROUP_SIZES)),
        ),
        Option(
            "symmetric",
            "Symmetric",
            "Yes leaves out zero points: a little smaller and a little less accurate.",
            "choice",
            TRI,
        ),
        Option("act_order", "Activation order", "Rounds the columns with the largest inputs first.", "choice", TRI),
        Option("awq_scales", "AWQ scales first", "Searches AWQ's scales before rounding; takes longer.", "choice", TRI),
        Option(
            "clip", "Search ranges", "Cuts the range of each group where that lowers the output error.", "choice", TRI
        ),
        Option(
            "learning_steps",
            "Learning steps",
            "Steps in which each layer learns how its weights are rounded. More take longer. Empty: 200.",
            "whole",
            low=1,
            high=2000,
        ),
        Option(
            "loss_weights",
            "Weigh tokens by the loss",
            "Tokens of the calibration text count by how much an error there changes the answer; takes longer.",
            "choice",
            TRI,
        ),
        Option(
            "rotate",
            "Rotate first",
            "Spreads outliers over all channels, folded into the weights (QuaRot). Pays most where activations are "
            "quantized too; a model whose output head is its embedding becomes larger by one head.",
            "choice",
            TRI,
        ),
        Option(
            "activations",
            "Activations",
            "Dynamic: a scale per token while serving. Static: one scale from the calibration text, faster, less "
            "accurate. None: weights only, for NVFP4.",
            "choice",
            (None, "dynamic", "static", "none"),
        ),
        Option(
            "strength",
            "Strength",
            "How much of the outliers moves from activations to weights. Empty: 0.5.",
            "share",
            low=0.0,
            high=1.0,
        ),
        Option(
            "target_bits",
            "Average bits",
            "The most bits per weight, scales included: each group of linears gets 4, 8 or 16 by its measured "
            "loss. Empty: all are alike. It paid little on SmolLM2-135M-Instruct: KL 0.073 at 5.0, 0.084 at 4.3 bits.",
            "bits",
            low=2.0,
            high=16.0,
        ),
        Option(
            "eight_bits",
            "What 8 bits are",
            "int8: weights only, for GPUs. w8a8: activations too, also for processors. Empty: what the target serves.",
            "choice",
            (None, "int8", "w8a8"),
        ),
        Option(
            "outside_experts",
            "Outside of the experts",
            "What attention and other linears get. 16-bit: the experts alone are quantized. Empty: the same as they.",
            "choice",
            (None, *get_args(methods.OutsideExperts)),
        ),
        Option(
            "kv_cache",
            "Key-value cache",
            "fp8 stores scales for a cache of half the size, which the server then uses.",
            "choice",
            (None, "fp8"),
        ),
        Option(
            "format",
            "File format",
            "autoawq only where a pipeline asks for it; both are served.",
            "choice",
            ("compressed-tensors", "autoawq"),
        ),
        Option(
            "engine",
            "Engine",
            " ".join(f"**{engine.title}**: {engine.prefer}" for engine in ENGINES.values()),
            "choice",
            tuple(ENGINES),
        ),
        Option(
            "calibration",
            "Calibration text",
            "`bundled`, or the path of a JSONL, Parquet or text file like your own traffic.",
            "text",
        ),
        Option(
            "samples",
            "Sequences",
            "Calibration sequences; more take longer and rarely help.",
            "whole",
            low=1,
            high=4096,
        ),
        Option("length", "Tokens per sequence", "Length of a calibration sequence.", "whole", low=8, high=32768),
        recovering.QUANTIZED_SWITCH,
    ),
    "speculate": (
        Option(
            "method",
            "Method",
            "What proposes the tokens: a draft model, n-grams of the text so far, or a head trained for this model.",
            "choice",
            tuple(SPECULATE),
        ),
        Option(
            "draft",
            "Draft or head",
            "`auto` is the provided draft; else a folder, an artifact's id, or a model.",
            "text",
        ),
        Option(
            "proposer",
            "Class",
            "package.module.Class of the folder WHETSTONE_PROPOSERS. Its code runs in the server.",
            "text",
        ),
        Option(
            "tokens",
            "Draft tokens",
            "Tokens proposed per step. Many help only if most are accepted.",
            "whole",
            low=1,
            high=16,
        ),
        Option(
            "prompt_lookup_min",
            "Shortest n-gram",
            "Tokens that must repeat before tokens are proposed. Empty: 2.",
            "whole",
            low=1,
            high=32,
        ),
        Option(
            "prompt_lookup_max",
            "Longest n-gram",
            "Longest run of tokens that is looked up. Empty: 4.",
            "whole",
            low=1,
            high=32,
        ),
        Option(
            "tokens_by_batch",
            "Tokens by load",
            "`1: 4, 8: 0` proposes 4 tokens for up to 7 concurrent sequences and none from 8 on. Empty: always "
            "the same.",
            "text",
        ),
        Option(
            "heterogeneous_vocab",
            "Other tokenizer",
            "For a draft of another vocabulary: only tokens that both have are proposed, so fewer are accepted.",
            "flag",
        ),
    ),
    "prune": (
        Option(
            "method", "Method", "How the weights to remove are chosen; see the line above.", "choice", _methods("prune")
        ),
        Option(
            "parts",
            "What becomes narrower",
            "Neurons of the MLP cost least quality; heads go by whole groups, channels of the hidden state last.",
            "choice",
            (None, "mlp", "mlp+heads", "mlp+heads+hidden"),
        ),
        Option(
            "importance",
            "Ranked by",
            "similarity: what a layer changes, in one pass. loss: what the model loses without it, a pass for every "
            "layer. gradients: neurons and heads by how an error of theirs changes the answer. Empty: by one pass.",
            "choice",
            (None, *methods.IMPORTANCES["depth"], *methods.IMPORTANCES["width"]),
        ),
        Option(
            "cut_time",
            "Share of the layers' time",
            "At least so much of the time of all layers is removed. Empty: 0.25, unless another target is given.",
            "share",
            low=0.01,
            high=0.99,
        ),
        Option(
            "cut_parameters",
            "Share of the parameters",
            "At least so much of the model's parameters is removed, in place of a share of the time.",
            "share",
            low=0.01,
            high=0.99,
        ),
        Option(
            "max_bytes",
            "Most bytes",
            "The size of the weights as the whole recipe stores them, in place of a share.",
            "whole",
            low=1,
        ),
        Option("sparsity", "Sparsity", "Share of the weights set to zero.", "share", low=0.05, high=0.95),
        Option(
            "pattern",
            "Pattern",
            "2:4 leaves two of every four. vLLM removed its kernels for it, so it is for scoring: GPUs refuse it.",
            "choice",
            ("unstructured", "2:4", "4:8"),
        ),
        Option(
            "engine",
            "Engine",
            "Another library can prune, for comparison; only the native engine prunes and quantizes in one pass.",
            "choice",
            ("native", "llm-compressor"),
        ),
        recovering.PRUNED_SWITCH,
    ),
    "compile": (),
}


def value(recipe: Recipe, where: int | str, name: str) -> Any:
    """Return the current value of an option. `where`: the number of a step, `serving` or `limits`."""
    if name.partition(".")[0] == recovering.SWITCH and isinstance(where, int):
        return recovering.value(recipe.steps[where], name)
    setting = getattr(recipe.steps[where] if isinstance(where, int) else getattr(recipe, where), name)
    return speculation.format_schedule(setting) if name == "tokens_by_batch" and setting else setting


def shown_options(step: Step, *, experts: bool = False) -> tuple[Option, ...]:
    """Return the options that mean something for this step; `experts`: the model is a mixture of experts."""
    hidden: set[str] = set()
    if isinstance(step, Quantize):
        hidden = _hidden_options(step)
        if not (experts or step.outside_experts):
            hidden |= {"outside_experts"}
    if isinstance(step, Prune):
        hidden = _hidden_prune_options(step)
    if isinstance(step, Speculate):
        hidden = set(speculation.OPTIONS) - SPECULATE[step.method].options
    own = tuple(_for_method(option, step) for option in STEP_OPTIONS[step.technique] if option.name not in hidden)
    return own + recovering.settings(step)


def _for_method(option: Option, step: Step) -> Option:
    """Return the option with the choices that the step's method has."""
    if option.name == "bits" and isinstance(step, Quantize):
        return option._replace(choices=(None, *sorted(quantize_step.method_row(step).bits)))
    if option.name == "importance":
        return option._replace(choices=(None, *methods.IMPORTANCES.get(getattr(step, "method", ""), ())))
    if option.name != "activations":
        return option
    other = "static" if getattr(step, "method", None) == "nvfp4" else "none"
    return option._replace(choices=tuple(choice for choice in option.choices if choice != other))


def _hidden_prune_options(step: Prune) -> set[str]:
    """Return the options of the other kind of pruning, and those that another option decides."""
    if not step.structured:
        return {*methods.STRUCTURE_OPTIONS, *({"sparsity"} if step.pattern != "unstructured" else ())}
    hidden = {"sparsity", "pattern", "engine"}
    hidden |= {"importance"} if step.method not in methods.IMPORTANCES else set()
    hidden |= {"parts"} if step.method != "width" else set()
    return hidden | ({"cut_time", recovering.SWITCH} if step.method == "experts" else set())


def _hidden_options(step: Quantize) -> set[str]:
    method = quantize_step.method_row(step)
    hidden = set(methods.TUNED) - method.defaults.keys()
    if method.group_size is None:
        hidden |= {"group_size", "symmetric", "format", recovering.SWITCH}
    hidden |= {"symmetric", "format"} if method.zero_points is not None else set()
    hidden |= set(methods.MIXED) if step.method not in methods.MIXABLE else set()
    if step.target_bits is None and step.eight_bits is None:
        hidden |= {"eight_bits"}
    if len(method.bits) == 1:
        hidden |= {"bits"}
    if step.method in {methods.GGUF, "kv_cache"}:
        hidden |= {"outside_experts"}
    if step.method == methods.GGUF:
        hidden |= {"engine"}
    return hidden | ({"kv_cache"} if step.method in {"kv_cache", methods.GGUF} else set())


def with_setting(recipe: Recipe, where: int | str, name: str, new: Any) -> Recipe:
    """Return the recipe with one setting changed; options that a new method does not have are removed.

    Raises InvalidRecipe.
    """
    # Change the options of a step, with those that hang on the new value.
    document = recipe.model_dump(mode="json")
    if isinstance(where, int):
        step = recipe.steps[where]
        ((technique, options),) = document["steps"][where].items()
        if name == "method":
            options = _options_for_method(step, new, options)
        if name in methods.TARGETS:  # one of them is the target
            options = {key: value for key, value in options.items() if key not in methods.TARGETS}
        if name == "pattern" and new != "unstructured":
            options = {key: value for key, value in options.items() if key != "sparsity"}
        if isinstance(step, Prune | Quantize) and name.partition(".")[0] == recovering.SWITCH:
            name, new = recovering.SWITCH, recovering.with_setting(step, name, new)
        if isinstance(step, Speculate):
            options |= speculation.linked_changes(step.tokens_by_batch, step.tokens, name, new)
        document["steps"][where] = {technique: {**options, name: new}}
    else:
        # Or change serving settings or limits.
        document[where][name] = new
    changed = recipes.read(document)
    return gguf_rules.with_engine_of_file(recipe, changed) if isinstance(where, int) else changed


def _options_for_method(step: Step, method: Any, options: dict[str, Any]) -> dict[str, Any]:
    if step.technique == "speculate":
        remaining = {k: v for k, v in options.items() if k != "draft" and k in {"tokens", *SPECULATE[method].options}}
        if SPECULATE[method].usual != SPECULATE[step.method].usual:  # what is usual for one is not for the other
            remaining.pop("tokens", None)
        return {**remaining, "draft": "auto"} if method == "draft" else remaining
    if step.technique == "prune":
        return _options_for_pruning(method, options)
    dropped = {"bits", "group_size", "symmetric", "format", *methods.TUNED} if step.technique == "quantize" else set()
    dropped |= {"kv_cache"} if method == "kv_cache" else set()
    dropped |= {"outside_experts"} if method in {"kv_cache", methods.GGUF, options.get("outside_experts")} else set()
    dropped |= {recovering.SWITCH} if method not in methods.GROUP_SIZE else set()
    dropped |= set(methods.MIXED) if method not in methods.MIXABLE else set()
    return {k: v for k, v in options.items() if k not in dropped}


def _options_for_pruning(method: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that another method of pruning takes too."""
    structured = method in methods.STRUCTURED
    dropped = {"sparsity", "pattern", "engine"} if structured else set(methods.STRUCTURE_OPTIONS)
    dropped |= {"importance"}
    dropped |= {"parts"} if method != "width" else set()
    dropped |= {"cut_time", recovering.SWITCH} if method == "experts" else set()
    return {key: value for key, value in options.items() if key not in dropped}


def with_name(recipe: Recipe, name: str) -> Recipe:
    """Return the recipe under another name. Raises InvalidRecipe if the name is empty or too long."""
    return recipes.read({**recipe.model_dump(mode="json"), "name": name.strip()})


def with_step(recipe: Recipe, step: Step) -> Recipe:
    """Return the recipe with one more step, where it runs."""
    return gguf_rules.with_engine_of_file(
        recipe, recipe.model_copy(update={"steps": tuple(sorted((*recipe.steps, step), key=run_order))})
    )


def without_step(recipe: Recipe, index: int) -> Recipe:
    rest = recipe.steps[:index] + recipe.steps[index + 1 :]
    return gguf_rules.with_engine_of_file(recipe, recipe.model_copy(update={"steps": rest}))
