"""The wording of a recipe's steps, in one place for plans, screens and the command line.

Names, titles, explanations.
"""

from __future__ import annotations

import re
from typing import Any

from backend.domain.recipe import quantize_step, recovery
from backend.domain.recipe.methods import (
    GGUF,
    ORIGINAL_BITS,
    PRUNE,
    QUANTIZE,
    SIXTEEN_BIT,
    STRUCTURED,
    TARGETS,
    USUAL_CUT,
)
from backend.domain.recipe.recipe import Compile, Prune, Quantize, Recipe, Speculate, Step
from backend.domain.recipe.speculation import SPECULATE

UNNAMED = "my recipe"
"""The name of a recipe that has no steps yet."""
TECHNIQUE_TITLES: dict[tuple[str, str | None], str] = {
    **{("quantize", name): method.title for name, method in QUANTIZE.items()},
    **{("prune", name): title for name, title in (PRUNE | STRUCTURED).items()},
    ("speculate", "draft"): "Draft model",
    ("speculate", "ngram"): "N-gram speculation",
    ("speculate", "ngram_adaptive"): "Adaptive n-gram speculation",
    ("compile", None): "Ahead-of-time compile",
}
"""(technique, method) -> its title in lists of techniques."""
ACTIONS: dict[tuple[str, str | None], str] = {
    **{("quantize", name): method.action for name, method in QUANTIZE.items()},
    ("prune", "magnitude"): "Prune by magnitude",
    ("prune", "wanda"): "Prune by Wanda",
    ("prune", "sparsegpt"): "Prune by SparseGPT",
    ("prune", "depth"): "Remove layers (depth)",
    ("prune", "width"): "Remove neurons and heads (width)",
    ("prune", "experts"): "Remove experts",
    **{("speculate", str(name)): f"Speculate with {row.title}" for name, row in SPECULATE.items()},
    ("compile", None): "Compile ahead of time",
}
"""(technique, method) -> the words on the card and the button of a step."""
TECHNIQUE_HELP = {
    "prune": "Sets weights to zero and keeps the rest, or removes whole parts.",
    "quantize": "Stores the weights, and for w8a8 the activations, as integers.",
    "speculate": "Proposes several tokens at once, which the model then checks.",
    "compile": "Compiles before the server starts, so that it starts sooner.",
    "shard": "Writes the weights one file per device, so that they load sooner.",
}
METHOD_HELP: dict[tuple[str, str], str] = {
    **{("quantize", name): method.help for name, method in QUANTIZE.items()},
    ("prune", "magnitude"): (
        "Sets the smallest weights to zero. No server here skips zeros, so neither size nor speed gains."
    ),
    ("prune", "wanda"): "Sets weights to zero that are small and see small inputs. Neither size nor speed gains here.",
    ("prune", "sparsegpt"): "Sets weights to zero and corrects the others for it. Neither size nor speed gains here.",
    ("prune", "depth"): (
        "Removes whole decoder layers that change little. The result is a smaller dense model, faster on every engine."
    ),
    ("prune", "width"): (
        "Makes every layer narrower, and fits what is left to make up for it. A smaller dense model, faster on every "
        "engine."
    ),
    ("prune", "experts"): "Removes the experts that add least to a layer's output. Less memory, the same time a token.",
    **{("speculate", str(name)): f"{row.help} The model checks every guess." for name, row in SPECULATE.items()},
}
"""Used instead of the technique's help where a method has its own."""
SHORT_NAMES = {
    "smoothquant": "SmoothQuant",
    "autoround": "AutoRound",
    "slim_llm": "SliM-LLM",
    "bitnet": "BitNet b1.58",
    "billm": "BiLLM",
    "kv_cache": "FP8 cache",
    "sparsegpt": "SparseGPT",
    "gguf": "GGUF",
    "fp8_block": "FP8 blocks",
    "w4a8_fp8": "W4A8-FP8",
    "ngram": "n-gram",
    "ngram_adaptive": "adaptive n-gram",
    "eagle": "EAGLE",
    "eagle3": "EAGLE-3",
    "medusa": "Medusa",
    "dflash": "DFlash",
    "custom": "own proposer",
}
"""Methods that are not written in capitals, as they appear in a recipe's name."""
MENU_HEADINGS: dict[int | str, str] = {
    4: "4-bit weights: smallest, and quickest where weights are read from memory",
    8: "8 bits: closer to the original",
    GGUF: "For llama.cpp: one file with weights and tokenizer",
    16: "Key-value cache: longer contexts, more streams",
    "scored": "To compare with: no engine serves it",
    "prune": "Pruning: zeros in the weights",
    "structure": "Pruning of whole parts: a smaller, faster dense model",
    "speculate": "Speculation: several tokens per step",
    "compile": "Starting sooner",
}
RANKED = {"loss": ", ranked by the loss without each", "gradients": ", ranked by gradients of the loss"}
"""Words for how the parts of a structured pruning are ranked, where that is not the usual way."""
_NUMBER = re.compile(r" \d+$")


def _method(step: Step) -> str | None:
    method = getattr(step, "method", None)
    return None if method is None else str(method)


def technique_title(technique: str, method: str | None, engine: str = "native") -> str:
    """Return the title of a row of the capability table: `INT4 (AWQ)`, `INT4 (GPTQ), llm-compressor`."""
    title = TECHNIQUE_TITLES.get((technique, method)) or " ".join(filter(None, (technique, method)))
    return title if engine == "native" else f"{title}, {engine}"


def step_title(step: Step) -> str:
    """Return the words on the step's card and button: `Quantize to 4 bits (awq)`."""
    method = _method(step)
    if (step.technique, method) in ACTIONS:
        return _at_its_width(step, ACTIONS[step.technique, method])
    technique = step.technique.capitalize()
    return f"{technique} ({method})" if method else technique


def step_help(step: Step) -> str:
    """Return what the step does, in one line."""
    return _at_its_width(step, METHOD_HELP.get((step.technique, _method(step) or ""), TECHNIQUE_HELP[step.technique]))


def _at_its_width(step: Step, words: str) -> str:
    """Return what is written for a method's usual bits, with the bits of the step."""
    if not isinstance(step, Quantize) or step.bits is None:
        return words
    usual = quantize_step.method_row(step).bits[0]
    return words.replace(f"{usual} bits", f"{step.bits} bits").replace(f"{usual}-bit", f"{step.bits}-bit")


def menu_group(step: Step) -> str:
    """Return the heading of the menu under which the step is offered."""
    if getattr(step, "method", None) == GGUF:
        return MENU_HEADINGS[GGUF]
    if isinstance(step, Prune) and step.structured:
        return MENU_HEADINGS["structure"]
    if not isinstance(step, Quantize):
        return MENU_HEADINGS[step.technique]
    row = quantize_step.method_row(step)
    unserved = row.scheme is None and row.bits[0] < ORIGINAL_BITS
    return MENU_HEADINGS["scored" if unserved else row.bits[0]]


def plan_title(step: Step) -> str:
    """Return what the step makes, as plans and job pages write it."""
    match step:
        case Quantize():
            return _quantize_title(step)
        case Prune():
            return _prune_title(step)
        case Speculate():
            return f"Speculate with {SPECULATE[step.method].title}, {step.tokens} tokens"
        case Compile():
            return "Compile ahead of time"
        case _:
            return step.technique.capitalize()


def _quantize_title(step: Quantize) -> str:
    """Return the title with the recovery after it, if there is one."""
    title = _stored_title(step)
    return f"{title}, {recovery.title(step.recover)}" if step.recover else title


def _stored_title(step: Quantize) -> str:
    """Return `Quantize to INT4 (AWQ), 5 bits on average, with FP8 key-value cache`."""
    if step.method == "kv_cache":
        return "Scale an FP8 key-value cache"
    if step.method == GGUF:
        matrix = " with an importance matrix" if quantize_step.uses_imatrix(step) else ""
        return f"Quantize to a GGUF file in {quantize_step.gguf_type(step).title}{matrix}"
    method = quantize_step.method_row(step)
    title = f"Quantize to {method.made.format(bits=quantize_step.bits(step), method=step.method.upper())}"
    # 1. Options that change what is made.
    extras = []
    if quantize_step.option_value(step, "awq_scales"):
        extras.append("AWQ scales")
    if quantize_step.option_value(step, "act_order"):
        extras.append("activation order")
    if method.activations and quantize_step.option_value(step, "activations") == "static":
        extras.append("static activations")
    if quantize_step.option_value(step, "activations") == "none":
        extras.append("16-bit activations")
    if step.kv_cache:
        extras.append("FP8 key-value cache")
    if step.outside_experts:
        extras.append(f"{outside_words(step.outside_experts)} outside of the experts")
    # 2. One phrase.
    average = f", {step.target_bits:g} bits on average" if step.target_bits else ""
    if not extras:
        return f"{title}{average}"
    comma = "," if average else ""
    return f"{title}{average}{comma} with {', '.join(extras)}"


def outside_words(form: str) -> str:
    """Return the words for the form of linears outside of experts: `16 bits`, `FP8`."""
    return "16 bits" if form == SIXTEEN_BIT else QUANTIZE[form].made.format(bits=8, method=form.upper())


def cut_words(step: Prune) -> str:
    """Return the target of a structured pruning: `25 % of the layers' time`, `25 % of the parameters`, `at most 90
    MB`."""
    name = next((name for name in TARGETS if getattr(step, name) is not None), None)
    if name == "max_bytes":
        return f"to at most {(step.max_bytes or 0) / 1e6:,.0f} MB"
    share = USUAL_CUT if name is None else float(getattr(step, name))
    of_parameters = name == "cut_parameters" or (name is None and step.method == "experts")
    whole = "parameters" if of_parameters else "layers' time"
    return f"{share:.0%} of the {whole}".replace("%", " %")


def _structure_title(step: Prune) -> str:
    """Return `Fewer layers, 25 % of the layers' time less`."""
    words = cut_words(step)
    title = f"{STRUCTURED[step.method]}, {words if step.max_bytes else words + ' less'}"
    title += RANKED.get(step.importance or "", "")
    return f"{title}, {recovery.title(step.recover)}" if step.recover else title


def _prune_title(step: Prune) -> str:
    if step.structured:
        return _structure_title(step)
    amount = f"{step.sparsity:.0%} of the weights" if step.pattern == "unstructured" else step.pattern
    title = f"{PRUNE[step.method]}, {amount}"
    return f"{title}, {recovery.title(step.recover)}" if step.recover else title


def short_name(step: Step) -> str:
    """Return the step's part of a recipe's name: `AWQ 4-bit`, `Wanda 50 %`, `draft`."""
    method = _method(step) or ""
    match step:
        case Quantize():
            return f"{_quantized_name(step)} recovered" if step.recover else _quantized_name(step)
        case Prune() if step.structured:
            share = next((getattr(step, name) for name in TARGETS[:2] if getattr(step, name) is not None), USUAL_CUT)
            amount = f"{step.max_bytes / 1e6:,.0f} MB" if step.max_bytes else f"{share:.0%}".replace("%", " %")
            return f"{method} {amount}" if step.max_bytes else f"{method} -{amount}"
        case Prune():
            amount = f"{step.sparsity:.0%}".replace("%", " %") if step.pattern == "unstructured" else step.pattern
            return f"{SHORT_NAMES.get(method, method.capitalize())} {amount}"
        case Compile():
            return "compiled"
        case Speculate():
            return SHORT_NAMES.get(method, method)
        case _:
            return step.technique


def _quantized_name(step: Quantize) -> str:
    """Return the method with its bits, unless its name says them, as it does of 8."""
    name = SHORT_NAMES.get(step.method, step.method.upper())
    if step.bits == 8 or step.method == "bitnet":
        return name
    if step.target_bits:
        return f"{name} {step.target_bits:g}-bit"
    says_no_bits = step.method == GGUF or quantize_step.method_row(step).group_size is not None
    return f"{name} {quantize_step.bits(step)}-bit" if says_no_bits else name


def recipe_name(recipe: Recipe) -> str:
    """Return a name made of the steps: `AWQ 4-bit + draft`."""
    return " + ".join(map(short_name, recipe.steps)) or UNNAMED


def has_default_name(recipe: Recipe) -> bool:
    """Return whether the name is only made of the steps, so that it changes with them."""
    return _NUMBER.sub("", recipe.name) in {UNNAMED, recipe_name(recipe)}


def recipe_title(recipe: Recipe) -> str:
    """Return the steps by the titles of their methods: `INT4 (AWQ) + draft`; `The original` if there are none."""
    titles = []
    for step in recipe.steps:
        row = QUANTIZE.get(step.method) if isinstance(step, Quantize) else None
        titles.append(_title_at_its_width(step, row.title) if row else short_name(step))
    return " + ".join(titles) or "The original"


def _title_at_its_width(step: Step, title: str) -> str:
    """Return the title of a method with the bits of the step: `INT3 (GPTQ)`, `INT4 (GPTQ), 3.5 bits on average`."""
    if not isinstance(step, Quantize):
        return title
    if step.target_bits:
        return f"{title}, {step.target_bits:g} bits on average"
    usual = quantize_step.method_row(step).bits[0]
    return title.replace(f"INT{usual}", f"INT{quantize_step.bits(step)}")


def step_line(step: Step) -> str:
    """Return technique and method as a recipe writes them: `quantize w8a8`."""
    return " ".join(filter(None, (step.technique, _method(step))))


def step_line_with_options(step: Step) -> str:
    """Return `quantize awq (group_size 64)`: the options that are not at their defaults may be all that differs."""
    stated: dict[str, Any] = step.model_dump(exclude_defaults=True).get(step.technique) or {}
    options = [f"{name} {value}" for name, value in stated.items() if name != "method" and value != "auto"]
    return f"{step_line(step)} ({', '.join(options)})" if options else step_line(step)


def steps_line(recipe: Recipe, *, separator: str = " + ", empty: str = "no steps, the original") -> str:
    """Return the steps in one line: `quantize w8a8 + compile`."""
    return separator.join(map(step_line, recipe.steps)) or empty
