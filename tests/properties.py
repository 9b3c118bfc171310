"""How many examples hypothesis tries: at most 30, or with `--hypothesis-profile=full` (the campaign) what each test
asks for."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

QUICK, FULL = "quick", "full"
QUICK_EXAMPLES = 30


def register_profiles() -> None:
    """Both without a deadline: a shared two-core machine pauses any test, so how long an example took says nothing."""
    settings.register_profile(QUICK, deadline=None, max_examples=QUICK_EXAMPLES)
    settings.register_profile(FULL, deadline=None)
    settings.load_profile(QUICK)


def examples(full: int, quick: int = QUICK_EXAMPLES, **others: Any) -> settings:
    """Settings of a test that is worth `full` examples where there is time, else `quick`. `others`: as of
    hypothesis.settings."""
    hurried = settings.get_current_profile_name() == QUICK
    return settings(max_examples=min(full, quick) if hurried else full, **others)
