"""The rules of a `speculate` step: what the draft, the head or the proposer must be, and where vLLM 0.32 refuses it.

What runs on a processor was tried, method by method: docs/decisions/0033-speculation.md.
"""

from __future__ import annotations

from collections.abc import Iterator

from backend.domain.model.facts import HeadOf, ModelCard, ModelFacts
from backend.domain.recipe.recipe import Recipe, Speculate
from backend.domain.recipe.speculation import OWN, SPECULATE
from backend.domain.rules.target_facts import Place, Reason, TargetFacts

LEVIATHAN = "Leviathan et al. 2023, section 2.3: draft and target share one vocabulary"
TRIED = "vLLM 0.32.0, docs/decisions/0033-speculation.md"


def _speculate_step(recipe: Recipe) -> Speculate | None:
    step = recipe.step("speculate")
    return step if isinstance(step, Speculate) else None


def check_generates(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    if _speculate_step(recipe) and not model.generates:
        yield Reason(
            rule="no-tokens",
            message=f"{model.id} is an embedding model, which generates no tokens to speculate on: leave the step out.",
            source="the model's task",
        )


def check_elsewhere(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    """Refuse options that neither the managed toolkit nor Neuron's libraries take."""
    step = _speculate_step(recipe)
    if step is None or facts.place not in {"managed", "neuron"}:
        return
    stated = [f"`{name}`" for name in OWN if getattr(step, name) != type(step).model_fields[name].default]
    if stated:
        message = f"{', '.join(stated)} of `speculate` is for our own servers, not for {facts.where}: leave it out."
        yield Reason(rule="speculation-options", message=message, source=TRIED)
    if facts.place == "managed" and SPECULATE[step.method].needs == "head" and step.draft is not None:
        message = f"The managed toolkit trains the head of `method: {step.method}` itself: leave `draft` out."
        yield Reason(rule="speculation-options", message=message, source="docs/aws.md")


def check_draft(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    """A whole model that drafts: it exists, is smaller, and reads and writes the same tokens or is told that it does
    not."""
    step = _speculate_step(recipe)
    if step is None or step.method != "draft":
        return
    if facts.draft is None:
        if facts.place == "managed" and facts.provided_draft and step.draft in {None, "auto"}:
            return
        other = "" if facts.place == "managed" else ", or use `method: ngram`"
        message = f"{model.id} has no provided draft model: name one with `draft: FOLDER`{other}."
        yield Reason(rule="no-draft", message=message, source="catalog")
        return
    yield from _check_size(model, facts.draft)
    yield from _check_vocabulary(model, facts.draft, step, facts.place)


def _check_size(model: ModelFacts, drafting: ModelFacts) -> Iterator[Reason]:
    if drafting.parameters > model.parameters:
        sizes = f"{drafting.parameters / 1e6:,.1f} M parameters against {model.parameters / 1e6:,.1f} M"
        yield Reason(
            rule="draft-size",
            message=(
                f"The draft {drafting.id} is larger than {model.id} ({sizes}), so each guess costs more than it "
                "saves: use a smaller one, or `method: ngram`."
            ),
            source="Leviathan et al. 2023, section 3.1: the speedup falls with the draft's cost",
        )


def _check_vocabulary(model: ModelFacts, drafting: ModelFacts, step: Speculate, place: Place) -> Iterator[Reason]:
    other = has_other_vocabulary(model, drafting)
    if other and not step.heterogeneous_vocab:
        mend = "set `heterogeneous_vocab: true`" if place in {"local", "planned"} else "use a draft made for it"
        message = f"The draft {drafting.id} has another vocabulary ({drafting.vocabulary}) than {model.id} "
        yield Reason(
            rule="draft-vocabulary",
            message=f"{message}({model.vocabulary}): {mend}, or use `method: ngram`.",
            source=LEVIATHAN,
        )
    if step.heterogeneous_vocab and not other:
        message = f"The draft {drafting.id} has the vocabulary of {model.id}: leave `heterogeneous_vocab` out."
        yield Reason(rule="draft-vocabulary", message=message, source="vLLM 0.32.0, VocabMapping")


def has_other_vocabulary(model: ModelFacts, drafting: ModelFacts) -> bool:
    """Return whether the vocabularies differ: by the tokenizers where both are here, else by their sizes."""
    mine, its = (getattr(card, "tokenizer_hash", None) for card in (model, drafting))
    return drafting.vocabulary != model.vocabulary or bool(mine and its and mine != its)


def check_own_head(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    """Refuse heads that our own servers cannot use; `neuron_rules` has the vendor's rules."""
    step, draft = _speculate_step(recipe), facts.draft
    if step is None or SPECULATE[step.method].needs != "head" or facts.place not in {"local", "planned"}:
        return
    own, most_tokens = _head_of(draft), most_head_tokens(facts)
    if own is not None and draft is not None and draft.model_type != step.method:
        # 1. It is of another method.
        what = "a whole model and no head: use `method: draft`"
        if draft.model_type in SPECULATE:
            what = f"{SPECULATE[draft.model_type].title}: use `method: {draft.model_type}`"
        yield Reason(rule="head-method", message=f"{draft.id} is {what}.", source=TRIED)
    elif draft is not None and most_tokens is not None and step.tokens > most_tokens:
        # 2. It proposes fewer tokens.
        can = f"set `tokens: {most_tokens}`"
        message = f"{draft.id} has heads for {most_tokens} tokens and `tokens` is {step.tokens}: {can}."
        yield Reason(rule="head-tokens", message=message, source=TRIED)
    # 3. It is of another model.
    yield from check_head(model, step.method, draft, TRIED)


def most_head_tokens(facts: TargetFacts) -> int | None:
    """Return how many tokens the head can propose at once; None where any number."""
    own = _head_of(facts.draft)
    return own.tokens if own else None


def mend_step(step: Speculate, facts: TargetFacts) -> Speculate:
    """Return the step with the method of the head that there is, and no more tokens than it can propose."""
    kind = next((name for name in SPECULATE if facts.draft is not None and name == facts.draft.model_type), None)
    if _head_of(facts.draft) is None or kind is None or SPECULATE[step.method].needs != "head":
        return step
    schedule = step.tokens_by_batch if "tokens_by_batch" in SPECULATE[kind].options else None
    tokens = min(step.tokens, most_head_tokens(facts) or step.tokens)
    return step.model_copy(update={"method": kind, "tokens": tokens, "tokens_by_batch": schedule})


def _head_of(draft: ModelFacts | None) -> HeadOf | None:
    return draft.head_of if isinstance(draft, ModelCard) else None


def check_head(model: ModelFacts, method: str, draft: ModelFacts | None, source: str) -> Iterator[Reason]:
    """Refuse a missing head, and one that was trained for another model."""
    if draft is None:
        message = (
            f"`method: {method}` needs a head that was trained for {model.id}: name its folder with `draft: FOLDER`."
        )
        yield Reason(rule="no-draft", message=message, source=source)
        return
    read = _head_of(draft) or draft
    if (read.hidden_size, read.vocabulary) != (model.hidden_size, model.vocabulary):
        has = f"hidden size {read.hidden_size} and {read.vocabulary} tokens, {model.id} {model.hidden_size} and "
        message = f"The head {draft.id} was trained for another model ({has}{model.vocabulary}): use one made for it."
        yield Reason(rule="draft-vocabulary", message=message, source=source)


def check_proposer(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    """Refuse foreign code unless the person who runs this machine named its folder."""
    step = _speculate_step(recipe)
    if step is None or step.method != "custom":
        return
    module = (step.proposer or "").partition(".")[0]
    # The first thing that is missing: the class, the right to run it here, the folder, the module.
    if step.proposer is None:
        message = "`method: custom` needs the class that proposes: name it with `proposer: package.module.Class`."
    elif facts.place != "local":
        message = (
            f"A proposer of one's own runs on this machine alone, not on {facts.where}: use `method: ngram` there."
        )
    elif facts.proposers is None:
        message = (
            "A proposer of one's own runs its code in the server: put it into a folder and start Whetstone with "
            "WHETSTONE_PROPOSERS=FOLDER."
        )
    elif module not in facts.proposers:
        has = f"which has {', '.join(facts.proposers)}" if facts.proposers else "which has no Python module"
        message = f"There is no module `{module}` in the folder of WHETSTONE_PROPOSERS, {has}: put it there."
    else:
        return
    yield Reason(rule="proposer", message=message, source="vLLM 0.32.0, create_custom_proposer")


def check_suffix(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    step = _speculate_step(recipe)
    if step is not None and step.method == "suffix" and facts.place == "local" and not facts.suffixes:
        message = (
            "`method: suffix` needs arctic-inference, which the serve environment does not have: use `method: ngram`."
        )
        yield Reason(rule="suffix", message=message, source="vLLM 0.32.0, SpeculativeConfig")


def check_adaptive(model: ModelFacts, recipe: Recipe, facts: TargetFacts) -> Iterator[Reason]:
    """Refuse adaptive n-grams elsewhere: their class is here, and in no vendor's container."""
    step = _speculate_step(recipe)
    if step is not None and step.method == "ngram_adaptive" and facts.place != "local":
        message = (
            "`method: ngram_adaptive` runs in servers that Whetstone starts, not on "
            f"{facts.where}: use `method: ngram` there."
        )
        yield Reason(rule="proposer", message=message, source="docs/decisions/0038-adaptive-n-grams.md")


COMMON = (check_generates, check_elsewhere, check_draft)
OURS = (check_own_head, check_proposer, check_suffix, check_adaptive)


def notes(recipe: Recipe) -> list[str]:
    """Return the notes of the plan for a speculation that works."""
    step = _speculate_step(recipe)
    if step is None:
        return []
    sentences = []
    if step.method == "custom":
        sentences.append(
            f"`{step.proposer}` is foreign code and runs in the server with all its rights: use only what you trust."
        )
    if step.heterogeneous_vocab:
        sentences.append(
            "Only tokens that both vocabularies have are proposed, each the draft's most likely one: less is accepted."
        )
    return sentences
