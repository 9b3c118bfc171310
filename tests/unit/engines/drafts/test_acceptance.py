"""The replay of vLLM's rule against speculative sampling as the paper has it, carried out token by token."""

from __future__ import annotations

import pytest
import torch

from backend.engines.drafts import acceptance
from backend.engines.drafts.acceptance import Acceptance

VOCABULARY, ANSWERS, ROUNDS, TOKENS = 5, 2_000, 20, 3


def _models(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each last token the logits of the next, of target and draft."""
    generator = torch.Generator().manual_seed(seed)
    target = 1.5 * torch.randn(VOCABULARY, VOCABULARY, generator=generator)
    return target, target + torch.randn(VOCABULARY, VOCABULARY, generator=generator)


def _speculated(target: torch.Tensor, draft: torch.Tensor, generator: torch.Generator) -> Acceptance:
    """Algorithm 1 of Leviathan et al., many answers at once: propose, accept by min(1, p / q), else draw from max(0, p
    - q)."""
    p, q = target.softmax(-1), draft.softmax(-1)
    last, counts = torch.zeros(ANSWERS, dtype=torch.long), torch.zeros(TOKENS)
    for _ in range(ROUNDS):
        going = torch.ones(ANSWERS).bool()
        for place in range(TOKENS):
            proposed = torch.multinomial(q[last], 1, generator=generator)[:, 0]
            accepted = torch.rand(ANSWERS, generator=generator) < p[last, proposed] / q[last, proposed]
            other = torch.multinomial((p[last] - q[last]).clamp_min(1e-12), 1, generator=generator)[:, 0]
            counts[place] += (going & accepted).sum()
            last = torch.where(going, torch.where(accepted, proposed, other), last)
            going = going & accepted
        last = torch.where(going, torch.multinomial(p[last], 1, generator=generator)[:, 0], last)
    return Acceptance(float(ROUNDS * ANSWERS), tuple(counts.tolist()))


def _replayed(target: torch.Tensor, draft: torch.Tensor, generator: torch.Generator) -> Acceptance:
    """From answers that the target drew alone."""
    p, message = target.softmax(-1), [torch.zeros(ANSWERS, dtype=torch.long)]
    for _ in range(2 * ROUNDS):
        message.append(torch.multinomial(p[message[-1]], 1, generator=generator)[:, 0])
    tokens = torch.stack(message, 1)
    before, after = tokens[:, :-1].flatten(), tokens[:, 1:].flatten()
    each = acceptance.acceptance_probability(
        after, draft[before], target[before], torch.ones(len(after)), certain=False
    )
    every = torch.nn.functional.pad(each.view(ANSWERS, -1), (0, 1))
    ends = torch.full((ANSWERS,), 2 * ROUNDS)
    return acceptance.walk(acceptance.chained(every, TOKENS), torch.zeros_like(ends), ends)


def test_the_replay_expects_what_speculative_sampling_accepts() -> None:
    target, draft = _models(0)
    sampled, replayed = (run(target, draft, torch.Generator().manual_seed(1)) for run in (_speculated, _replayed))
    for one, other in zip(sampled.by_position, replayed.by_position, strict=True):
        assert one == pytest.approx(other, abs=0.015)  # several standard errors of so many rounds
    assert replayed.length == pytest.approx(1 + sum(replayed.by_position))


def test_a_greedy_answer_is_accepted_where_the_draft_would_say_the_same() -> None:
    matches = torch.tensor([[1.0, 1, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0]])
    walked = acceptance.walk(acceptance.chained(matches, 2), torch.tensor([0]), torch.tensor([9]))
    # rounds at 0 (2 accepted), 3 (2), 6 (1 accepted, then refused), 8 would reach beyond 9
    assert walked == Acceptance(3.0, (3.0, 2.0))
    assert walked.rate == pytest.approx(5 / 6)


def test_a_certain_draft_is_accepted_only_where_its_first_choice_was_said() -> None:
    draft, target = torch.tensor([[2.0, 1.0], [2.0, 1.0]]), torch.zeros(2, 2)
    message, warm = torch.tensor([0, 1]), torch.ones(2)
    assert acceptance.acceptance_probability(message, draft, target, warm, certain=True).tolist() == [1.0, 0.0]
    greedy = acceptance.acceptance_probability(message, draft, target, torch.zeros(2), certain=False)
    assert greedy.tolist() == [1.0, 0.0]
    drawn = acceptance.acceptance_probability(message, draft, target, warm, certain=False)
    assert drawn.tolist() == pytest.approx([1.0, 2 * 0.26894143])


def test_answers_add_up() -> None:
    total = acceptance.total([Acceptance(2.0, (1.0, 0.5)), Acceptance(2.0, (2.0, 1.5))])
    assert total.by_position == (0.75, 0.5)
    assert Acceptance(0.0, (0.0,)).length == 1.0
