"""Which models can be rotated before they are quantized, and what that changes of their sizes.

The hidden state is rotated by an orthogonal matrix that is folded into all weights that read or write it (QuaRot,
Ashkboos et al. 2024, arXiv 2404.00456, section 4). A norm divides by the length of its input, which a rotation keeps,
so its weights must first move into the matrices behind it. The output head takes those of the last norm: it can no
longer be the embedding.
"""

from __future__ import annotations

from backend.domain.maths.hadamard import find_factors
from backend.domain.model.facts import ModelFacts
from backend.domain.recipe.quantize_step import rotates
from backend.domain.recipe.recipe import Recipe

SOURCE = "Ashkboos et al. 2024, arXiv 2404.00456, section 4"
FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "phi3")
"""Model types whose hidden state is read behind norms that only divide by its length (RMSNorm), and whose engines take
an output head of its own."""
FURTHER_HEADS = (
    "Heads or layers in the model's files predict further tokens from the hidden state as it was before a rotation: "
    "leave `rotate` out."
)


def untied(model: ModelFacts, recipe: Recipe) -> ModelFacts:
    """Return the model as the recipe stores it: a rotated one has an output head beside the embedding."""
    has_head = not model.tied_embeddings if model.stored_head is None else model.stored_head
    if not rotates(recipe) or has_head:
        return model
    head = model.vocabulary * model.hidden_size
    return model.model_copy(
        update={"tied_embeddings": False, "stored_head": None, "parameters": model.parameters + head}
    )


def find_problem(model: ModelFacts) -> str | None:
    """Return in one sentence why the model cannot be rotated; None where it can."""
    if model.model_type not in FAMILIES or model.experts or model.outside_parameters:
        kind = f"of type {model.model_type}"
        if model.experts:
            kind = "a mixture of experts"
        elif model.outside_parameters:
            kind = "a model of several parts"
        known = ", ".join(FAMILIES)
        return f"`rotate` is for dense text models of the types {known}, and {model.id} is {kind}: leave it out."
    size = next((size for size in (model.hidden_size, model.head_dim) if find_factors(size) is None), None)
    if size is not None:
        return f"`rotate` needs a Hadamard matrix of order {size} for {model.id}, which has none here: leave it out."
    return None
