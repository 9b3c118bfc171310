"""A trained draft in words: its title, its acceptance, its training, and its card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backend.domain.figures import counted, figure
from backend.domain.recipe.draft_training import LOSS_TITLES, METHODS, TITLES, Training

RULE = (
    "Acceptance is the share that vLLM's sampling rule would accept on the model's own answers to prompts that were "
    "not used for training; the speed-up must be measured."
)


def title(options: Training) -> str:
    """Return the kind and loss: `small model, forward KL`."""
    return f"{TITLES[options.kind]}, {LOSS_TITLES[options.loss]}"


def temperature_words(temperature: float) -> str:
    return "greedy" if temperature == 0 else f"temperature {temperature:g}"


def acceptance_words(training: Mapping[str, Any]) -> str:
    """`Greedy 43% of proposed tokens accepted, 2.72 tokens per step; temperature 1 ...`."""
    parts = [
        f"{temperature_words(row['temperature'])} {row['rate']:.0%} of proposed tokens accepted, "
        f"{figure(row['length'])} tokens per step"
        for row in training["acceptance"]
    ]
    sentence = "; ".join(parts)
    return f"{sentence[:1].upper()}{sentence[1:]} of at most {1 + len(training['acceptance'][0]['by_position'])}."


def training_words(training: Mapping[str, Any]) -> str:
    """Return what the draft learned from, and how the training ended."""
    data = training["data"]
    wrote = f" and {data['written']} that the model wrote itself" if data["written"] else ""
    how = {
        "steps": "all of them",
        "time": "ended by the time limit",
        "patience": "ended early: acceptance stopped improving",
        "not finite": "ended early: the loss was no longer finite",
    }[training["stopped"]]
    return (
        f"{counted(data['answers'], 'answer')} of the model itself ({data['answer_tokens']:,} tokens, "
        f"{data['greedy']} greedy) to {counted(data['prompts'] - data['aside'], 'prompt')}{wrote}; acceptance on "
        f"{data['aside']} other prompts. {counted(training['steps'], 'step')} ({how}); the weights are those of "
        f"step {training['best_step']}."
    )


def step(training: Mapping[str, Any], artifact: str) -> dict[str, Any]:
    """Return the speculate step of a recipe that uses the draft."""
    options = training["asked"]
    return {"speculate": {"method": METHODS[options["kind"]], "draft": artifact, "tokens": options["tokens"]}}


def card(target: str, training: Mapping[str, Any], hardware: Mapping[str, Any]) -> str:
    """Return the card in Markdown: purpose, training, acceptance by position, machine and versions."""
    # One row for each temperature: tokens per step, then the acceptance at each position.
    options = Training.model_validate(training["asked"])
    rows = []
    for row in training["acceptance"]:
        numbers = [f"{number:.3f}" for number in (row["length"], *row["by_position"])]
        rows.append(f"| {' | '.join([temperature_words(row['temperature']), *numbers])} |")
    places = [f"position {number}" for number in range(1, options.tokens + 1)]
    # Time, machine and versions in words.
    seconds, machine = training["seconds"], hardware.get("cpu_model") or hardware.get("cpu") or "an unnamed processor"
    took = f"{seconds['answers'] / 60:.1f} min for answers, {seconds['training'] / 60:.1f} min for training"
    versions = ", ".join(f"{name} {number}" for name, number in training["versions"].items())
    # The card.
    return "\n".join(
        [
            f"# A draft for {target}: {title(options)}",
            "",
            f"A {TITLES[options.kind]} for speculative decoding with {target}, made by Whetstone. "
            "It works with no other model.",
            "",
            f"- Trained parameters: {training['draft']['parameters']:,}",
            f"- Loss: {LOSS_TITLES[options.loss]}; highest learning rate {training['learning_rate']:g}",
            f"- Training: {training_words(training)} Prompts: {training['prompts']}.",
            f"- Time: {took}, on {machine}",
            f"- Versions: {versions}",
            "",
            f"| acceptance | tokens per step | {' | '.join(places)} |",
            f"|---|---|{'---|' * options.tokens}",
            *rows,
            "",
            RULE,
            "",
        ]
    )
