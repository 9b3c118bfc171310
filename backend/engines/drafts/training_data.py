"""Gathers the training data of a draft: the target answers prompts, in rounds that a later attempt continues.

A draft proposes what the target then accepts, so it learns from the target's own answers, greedy and drawn
(self-generated data; DistillSpec, Zhou et al. 2023, arXiv 2310.08461, section 4). A chat model that has few prompts
writes more itself, from the beginning of a user's turn (Magpie, Xu et al. 2024, arXiv 2406.08464, section 2); they are
its words too, and learned from like answers. A few prompts are set aside: acceptance is measured on their answers, and
nothing is learned from them. A round is a batch of answers with the target's hidden states: two files, the small one
written last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field

from backend import files
from backend.domain.jobs.progress import Progress
from backend.domain.needs.draft_training_needs import ANSWERING, MOST_PROMPT
from backend.engines.attempt_state import AttemptState
from backend.engines.drafts.generation import Answer
from backend.engines.drafts.proposer import Batch, Proposer
from backend.engines.drafts.target import Target
from backend.engines.native.recovery.sequences import order

if TYPE_CHECKING:
    import torch

FEWEST_ROWS, MOST_ROWS = 32, 64
"""Prompts answered at a time: a step over many rows takes hardly longer than one over few."""
CACHE_BYTES = 2 * 2**30
"""Bytes of keys and values of a round, which limit its rows."""
SET_ASIDE, MOST_ASIDE = 4, 24
"""One prompt of so many is set aside, and at most so many."""
FEW = 256
"""Prompts below which a chat model writes more."""
WRITTEN = 64
"""Tokens of a prompt that the target writes, whether it has come to an end then or not: most have not."""


class AnsweredPrompt(NamedTuple):
    """A prompt and an answer, in tokens."""

    prompt: list[int]
    answer: list[int]
    temperature: float


class Round(AttemptState):
    """One round of answers; `said` has the same order as the hidden states beside it, `wrote` are prompts of the
    target's own."""

    seconds: float
    aside: bool
    said: list[AnsweredPrompt]
    wrote: list[str] = Field(default_factory=list)
    twice: int = 0
    """Answers that were there already and were left out."""


class TrainingSequence(NamedTuple):
    """One sequence with what the target computed: final [T, H], hidden [T, layers, H]."""

    answered: AnsweredPrompt
    final: torch.Tensor
    hidden: torch.Tensor

    def __len__(self) -> int:
        return len(self.answered.prompt) + len(self.answered.answer)


class TrainingData(NamedTuple):
    """All answers, those to learn from and those set aside."""

    training: list[TrainingSequence]
    aside: list[TrainingSequence]
    facts: dict[str, Any]
    seconds: float
    """Seconds that the answers took, over all attempts."""


class Gathering:
    """Gathers rounds of answers in `folder`, and reuses those of an earlier attempt with the same `key`."""

    def __init__(
        self,
        draft: Proposer,
        prompts: Iterable[str],
        folder: Path,
        key: str,
        is_held_out: Callable[[str], bool] = lambda text: False,
    ) -> None:
        self.target, self.options, self.layers = draft.target, draft.options, draft.layers
        self.folder, self.key, self.is_held_out = folder, key, is_held_out
        # 1. Set some prompts aside for measuring; the rest is the pool.
        remaining = list(prompts)
        self.rows = _rows(self.target.token_bytes, MOST_PROMPT + self.options.answer_tokens)
        count = min(MOST_ASIDE, max(2, len(remaining) // SET_ASIDE))
        shuffled = [remaining[number] for number in order(len(remaining), self.options.seed)]
        self.aside, self.pool = shuffled[:count], shuffled[count:]
        # 2. State of the gathering, which earlier rounds fill.
        self.user_head = self.target.user_head() if len(remaining) < FEW else None
        """Tokens that begin prompts which the target writes; None if it writes none."""
        self.wrote: set[str] = set()
        self.prompt_count = len(remaining)
        self.rounds: list[Round] = []
        self.greedy = 0
        """Prompts of the pool that have their greedy answer."""
        self.known: set[tuple[int, ...]] = set()

    def run(self, progress: Progress) -> TrainingData:
        """Gather answers until there are enough. Raises DiskFull or WorkError.

        Phase: answers (unit: seconds, or answers if the options give their number).
        """
        # 1. Make round after round, or take those of an earlier attempt.
        budget, wanted_answers = ANSWERING * 60 * self.options.minutes, self.options.answers
        progress.phase(
            "answers",
            "The target answers the prompts",
            total=wanted_answers or budget,
            unit="answers" if wanted_answers else "s",
            weight=ANSWERING,
        )
        while not self._enough(budget):
            round_ = self._saved_round(len(self.rounds)) or self._make_round(len(self.rounds))
            self._add_round(round_)
            progress.advance(self._answers if wanted_answers else self.seconds, answers=self._answers)

        # 2. Read all rounds.
        data = self._read_data()
        progress.note(
            f"{len(data.training)} answers to learn from and {len(data.aside)} to measure acceptance on, "
            f"{data.facts['tokens']:,} tokens."
        )
        return data

    @property
    def seconds(self) -> float:
        return sum(round_.seconds for round_ in self.rounds)

    @property
    def _answers(self) -> int:
        return sum(len(round_.said) for round_ in self.rounds if not round_.aside)

    def _enough(self, budget: float) -> bool:
        """Return whether time or answers suffice: at least both rounds set aside and one to learn from."""
        if len(self.rounds) < 3:
            return False
        wanted_answers = self.options.answers
        timed = wanted_answers is None or self.options.steps is None
        return (timed and self.seconds >= budget) or (wanted_answers is not None and self._answers >= wanted_answers)

    def _path(self, number: int) -> Path:
        return self.folder / f"round-{number:05d}.json"

    def _saved_round(self, number: int) -> Round | None:
        round_ = Round.read(self._path(number), self.key)
        return round_ if round_ is not None and self._states(number).is_file() else None

    def _states(self, number: int) -> Path:
        return self._path(number).with_suffix(".safetensors")

    def _add_round(self, round_: Round) -> None:
        self.rounds.append(round_)
        self.pool += round_.wrote
        self.wrote |= set(round_.wrote)
        self.known |= {(*answered.prompt, *answered.answer) for answered in round_.said}
        if not round_.aside and round_.said and round_.said[0].temperature == 0:
            self.greedy = min(self.greedy + self.rows, len(self.pool))

    def _make_round(self, number: int) -> Round:
        """Make one round: the first two answer the prompts set aside, greedy and drawn; later ones the pool, greedy
        until its share is reached."""
        # 1. Choose the prompts and the temperature.
        began, aside, wrote = time.monotonic(), number < 2, []
        seed = self.options.seed * 1_000_003 + number
        if aside:
            texts, temperature = self.aside, self.options.temperature * number
        else:
            wrote = self._write_prompts(seed) if self.greedy >= len(self.pool) else []
            self.wrote |= set(wrote)
            texts, temperature = self._next_prompts(number, self.pool + wrote)
        # 2. Let the target answer them.
        prompts = [self.target.prompt(text)[-MOST_PROMPT:] for text in texts]
        answers = self.target.answer(prompts, temperature, self.options.answer_tokens, seed, self.layers)
        # 3. Leave out answers that are there already, and write the others: states first, the small file last.
        fresh = {
            (*prompt, *answer.tokens): (self._answered(text, prompt, answer.tokens, temperature), answer)
            for text, prompt, answer in zip(texts, prompts, answers, strict=True)
        }
        new = [pair for tokens, pair in fresh.items() if tokens not in self.known]
        self._write_states(number, [answer for _, answer in new])
        answered, seconds = [sequence for sequence, _ in new], round(time.monotonic() - began, 3)
        round_ = Round(
            key=self.key, seconds=seconds, aside=aside, said=answered, wrote=wrote, twice=len(answers) - len(new)
        )
        files.write(self._path(number), round_.model_dump_json())
        return round_

    def _answered(self, text: str, prompt: list[int], answer: list[int], temperature: float) -> AnsweredPrompt:
        """Make the pair of prompt and answer; a prompt that the target wrote counts as its answer too."""
        begins = len(self.user_head) if self.user_head and text in self.wrote else len(prompt)
        return AnsweredPrompt(prompt[:begins], prompt[begins:] + answer, temperature)

    def _next_prompts(self, number: int, pool: list[str]) -> tuple[list[str], float]:
        """Choose the prompts of a round and its temperature: greedy ones in order, drawn ones from the whole pool."""
        greedy = sum(bool(round_.said) and round_.said[0].temperature == 0 for round_ in self.rounds[2:])
        if self.greedy < len(pool) and greedy <= self.options.greedy * (number - 2) and self.options.greedy > 0:
            return pool[self.greedy : self.greedy + self.rows], 0.0
        places = order(len(pool), self.options.seed + number)
        return [pool[place] for place in places[: self.rows]], self.options.temperature

    def _write_prompts(self, seed: int) -> list[str]:
        """Let a chat target write prompts itself if there are few."""
        if self.user_head is None:
            return []
        written = self.target.answer([self.user_head] * self.rows, 1.0, WRITTEN, seed + 500_000)
        texts = [self.target.text(answer.tokens).strip() for answer in written]
        known = {*self.pool, *self.aside}
        return [text for text in dict.fromkeys(texts) if text and text not in known and not self.is_held_out(text)]

    def _write_states(self, number: int, answers: list[Answer]) -> None:
        """Write the hidden states, with zeros for the last token, from which nothing is predicted."""
        from safetensors.torch import save_file
        from torch.nn.functional import pad

        finals = {f"final.{row}": pad(answer.final, (0, 0, 0, 1)).cpu() for row, answer in enumerate(answers)}
        hidden = {f"hidden.{row}": pad(answer.hidden, (0, 0, 0, 0, 0, 1)).cpu() for row, answer in enumerate(answers)}
        self.folder.mkdir(parents=True, exist_ok=True)
        with files.disk_errors(self.folder), files.staged_file(self._states(number)) as staged:
            save_file({**finals, **hidden}, staged)

    def _read_data(self) -> TrainingData:
        """Read the states of all rounds, and count what they are made of."""
        # 1. The sequences to learn from, and those set aside.
        training: list[TrainingSequence] = []
        aside: list[TrainingSequence] = []
        for number, round_ in enumerate(self.rounds):
            (aside if round_.aside else training).extend(self._load(number, round_))

        # 2. The facts for the draft's card.
        facts = {
            "prompts": self.prompt_count,
            "aside": len(self.aside),
            "written": sum(len(round_.wrote) for round_ in self.rounds),
            "answers": len(training),
            "greedy": sum(sequence.answered.temperature == 0 for sequence in training),
            "twice": sum(round_.twice for round_ in self.rounds),
            "tokens": sum(map(len, training)),
            "answer_tokens": sum(len(sequence.answered.answer) for sequence in training),
        }
        return TrainingData(training, aside, facts, round(self.seconds, 1))

    def _load(self, number: int, round_: Round) -> Iterator[TrainingSequence]:
        from safetensors.torch import load_file

        tensors = load_file(self._states(number))
        for place, answered in enumerate(round_.said):
            yield TrainingSequence(answered, tensors[f"final.{place}"], tensors[f"hidden.{place}"])


def padded(answered: list[AnsweredPrompt]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return tokens [B, T] padded at the right, which of them are of answers, and which are no padding."""
    import torch

    longest = max(len(pair.prompt) + len(pair.answer) for pair in answered)
    tokens = torch.zeros(len(answered), longest, dtype=torch.long)
    answers, real = torch.zeros_like(tokens, dtype=torch.bool), torch.zeros_like(tokens, dtype=torch.bool)
    for row, pair in enumerate(answered):
        end = len(pair.prompt) + len(pair.answer)
        tokens[row, :end] = torch.tensor(pair.prompt + pair.answer)
        answers[row, len(pair.prompt) : end] = True
        real[row, :end] = True
    return tokens, answers, real


def batch_of(target: Target, known: list[TrainingSequence]) -> Batch:
    """Make a batch of sequences whose states are known, on the target's device."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    tokens, answers, real = padded([sequence.answered for sequence in known])
    temperature = torch.tensor([sequence.answered.temperature for sequence in known])
    final = pad_sequence([sequence.final for sequence in known], batch_first=True)
    hidden = pad_sequence([sequence.hidden for sequence in known], batch_first=True)
    parts = (tokens, answers, real, temperature, final, hidden)
    return Batch(target, *(part.to(target.device) for part in parts))


def batch_of_new(target: Target, answered: list[AnsweredPrompt], layers: tuple[int, ...]) -> Batch:
    """Make a batch of sequences that the target has not read yet, such as answers of the draft."""
    import torch

    tokens, answers, real = padded(answered)
    final, hidden = target.states(tokens, real, layers)
    temperature = torch.tensor([pair.temperature for pair in answered])
    parts = (tokens, answers, real, temperature, final.clone(), hidden.clone())
    return Batch(target, *(part.to(target.device) for part in parts))


def _rows(token_bytes: int, tokens: int) -> int:
    """Return the rows of a round whose rows have `tokens` tokens."""
    return max(FEWEST_ROWS, min(MOST_ROWS, CACHE_BYTES // (token_bytes * tokens)))
