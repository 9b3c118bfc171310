"""A trained draft in words: what it is called, what its acceptance was, and its card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backend.domain.figures import figure
from backend.domain.recipe.draft_training import LOSS_TITLES, METHODS, TITLES, Training

RULE = (
    "Acceptance is what vLLM's sampling rule expects of the target's own answers to prompts that nothing was learned from; the "
    "gain in speed is not known before it is measured."
)


def title(options: Training) -> str:
    """By kind and loss: `small model, forward KL`."""
    return f"{TITLES[options.kind]}, {LOSS_TITLES[options.loss]}"


def at(temperature: float) -> str:
    return "greedy" if temperature == 0 else f"temperature {temperature:g}"


def accepted(training: Mapping[str, Any]) -> str:
    """`Greedy 43% of proposed tokens accepted, 2.72 tokens a round; temperature 1 ...`."""
    parts = [
        f"{at(each['temperature'])} {each['rate']:.0%} of proposed tokens accepted, {figure(each['length'])} tokens a round"
        for each in training["acceptance"]
    ]
    found = "; ".join(parts)
    return f"{found[:1].upper()}{found[1:]} of at most {1 + len(training['acceptance'][0]['by_position'])}."


def learned(training: Mapping[str, Any]) -> str:
    """What it learned from, and how the training ended."""
    data = training["data"]
    wrote = f" and {data['written']} that the model wrote itself" if data["written"] else ""
    how = {
        "steps": "all of them",
        "time": "ended by the time",
        "patience": "ended early: acceptance no longer grew",
        "not finite": "ended since the loss was no longer finite",
    }[training["stopped"]]
    return (
        f"{data['answers']} answers of the model itself ({data['answer_tokens']:,} tokens, {data['greedy']} greedy) to "
        f"{data['prompts'] - data['aside']} prompts{wrote}; acceptance on {data['aside']} other prompts. "
        f"{training['steps']} steps ({how}), of which step {training['best_step']} is kept."
    )


def step(training: Mapping[str, Any], artifact: str) -> dict[str, Any]:
    """The speculate step of a recipe that uses it."""
    asked = training["asked"]
    return {"speculate": {"method": METHODS[asked["kind"]], "draft": artifact, "tokens": asked["tokens"]}}


def card(target: str, training: Mapping[str, Any], hardware: Mapping[str, Any]) -> str:
    """Markdown: what it is for, what it learned from, acceptance by position, where and by what it was made."""
    asked = Training.model_validate(training["asked"])
    rows = [
        f"| {' | '.join([at(each['temperature']), *(f'{number:.3f}' for number in (each['length'], *each['by_position']))])} |"
        for each in training["acceptance"]
    ]
    places = [f"position {number}" for number in range(1, asked.tokens + 1)]
    seconds, machine = training["seconds"], hardware.get("cpu_model") or hardware.get("cpu") or "an unnamed processor"
    took = f"{seconds['answers'] / 60:.1f} min for answers, {seconds['training'] / 60:.1f} min for training"
    versions = ", ".join(f"{name} {number}" for name, number in training["versions"].items())
    return "\n".join(
        [
            f"# A draft for {target}: {title(asked)}",
            "",
            f"A {TITLES[asked.kind]} for speculative decoding with {target}, made by Whetstone. Of no use with another model.",
            "",
            f"- Parameters learned: {training['draft']['parameters']:,}",
            f"- Loss: {LOSS_TITLES[asked.loss]}; highest learning rate {training['learning_rate']:g}",
            f"- Learned from: {learned(training)} Prompts: {training['prompts']}.",
            f"- Time: {took}, on {machine}",
            f"- Versions: {versions}",
            "",
            f"| acceptance | tokens a round | {' | '.join(places)} |",
            f"|---|---|{'---|' * asked.tokens}",
            *rows,
            "",
            RULE,
            "",
        ]
    )
