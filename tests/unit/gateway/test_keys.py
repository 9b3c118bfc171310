"""Keys of clients: who is known, how much each may send, and what is stored."""

from __future__ import annotations

import hashlib

import pytest

from backend.gateway import keys
from backend.gateway.keys import Allowance, ClientKey, KeyRing
from backend.gateway.refusals import Refusal

APP = ClientKey(name="app", digest=keys.digest("secret"), requests_per_minute=2)
OTHER = ClientKey(name="other", digest=keys.digest("another"))


def refusal_status(ring: KeyRing, authorization: str | None) -> int:
    with pytest.raises(Refusal) as refused:
        ring.identify(authorization)
    assert "secret" not in str(refused.value)
    return refused.value.status


def test_a_token_is_random_and_known_as_one_and_only_its_hash_is_compared() -> None:
    token = keys.make_token()
    assert token != keys.make_token() and token.startswith("sk-") and len(token) >= 43
    assert keys.digest(token) == hashlib.sha256(token.encode()).hexdigest()


def test_each_key_has_its_name_and_all_else_is_refused() -> None:
    ring = KeyRing([APP, OTHER], loopback_only=True)
    assert ring.identify("Bearer secret") == "app"
    assert ring.identify("bearer  another ") == "other"
    for wrong in (None, "", "Bearer", "Bearer ", "Bearer secre", "Bearer secret x", "Basic secret", "secret"):
        assert refusal_status(ring, wrong) == 401
    assert refusal_status(ring, "Bearer \u00fc\udcff") == 401


def test_without_keys_only_loopback_is_open_and_a_removed_key_opens_nothing() -> None:
    assert KeyRing(loopback_only=True).identify(None) == ""
    assert refusal_status(KeyRing(loopback_only=False), None) == 401
    ring = KeyRing(loopback_only=True)
    ring.replace([APP])
    assert refusal_status(ring, None) == 401
    ring.replace([])
    assert refusal_status(ring, "Bearer secret") == 401 and not ring.is_open


def test_a_limit_holds_in_any_minute_and_says_when_it_ends() -> None:
    allowance = Allowance(2)
    assert [allowance.take(0.0), allowance.take(30.0)] == [0.0, 0.0]
    assert allowance.take(45.0) == pytest.approx(15.0)
    assert allowance.take(60.0) == 0.0, "the one of second 0 is a minute ago"
    assert allowance.take(61.0) == pytest.approx(29.0)


def test_a_refused_request_says_when_to_try_again() -> None:
    ring = KeyRing([APP, OTHER], loopback_only=False)
    for _ in range(2):
        ring.take("app", 0.0)
    with pytest.raises(Refusal, match=r"2 requests per minute: try again in 30 s\.") as refused:
        ring.take("app", 30.5)
    assert refused.value.status == 429 and (b"retry-after", b"30") in refused.value.headers()
    for _ in range(100):
        ring.take("other", 30.5)


def test_what_was_used_of_a_limit_stays_when_keys_are_read_again() -> None:
    ring = KeyRing([APP], loopback_only=False)
    for _ in range(2):
        ring.take("app", 0.0)
    ring.replace([OTHER, APP])
    with pytest.raises(Refusal):
        ring.take("app", 1.0)
    ring.replace([APP.model_copy(update={"requests_per_minute": 3})])
    ring.take("app", 1.0)
