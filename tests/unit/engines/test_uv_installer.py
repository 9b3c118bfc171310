"""uv takes packages from where pip is configured to take them, or leaves it to pip."""

from __future__ import annotations

import pytest

from backend.engines.uv_installer import read_pip_options, translate

LISTING = """\
:env:.find-links='/wheels'
:env:.disable_pip_version_check='1'
global.cert='/etc/certificates.crt'
global.extra-index-url='https://one.example/simple\\nhttps://two.example/simple'
global.find-links='/elsewhere'
global.timeout='60'
install.index-url='https://mirror.example/simple'
list.format='columns'
"""


def test_pips_options_become_uvs() -> None:
    arguments, variables = translate(read_pip_options(LISTING)) or ([], {})
    assert arguments[:2] == ["--index-strategy", "unsafe-best-match"]
    pairs = list(zip(arguments[2::2], arguments[3::2], strict=True))
    assert sorted(pairs) == [
        ("--default-index", "https://mirror.example/simple"),
        ("--find-links", "/wheels"),
        ("--index", "https://one.example/simple"),
        ("--index", "https://two.example/simple"),
    ]
    assert variables == {"SSL_CERT_FILE": "/etc/certificates.crt", "UV_HTTP_TIMEOUT": "60"}


@pytest.mark.parametrize(("value", "is_passed"), [("1", True), ("true", True), ("0", False)])
def test_an_index_is_left_out_as_pip_leaves_it_out(value: str, is_passed: bool) -> None:
    arguments, _ = translate({"no-index": value}) or ([], {})
    assert ("--no-index" in arguments) is is_passed


@pytest.mark.parametrize("name", ["no-binary", "platform", "target", "an-option-of-a-later-pip"])
def test_pip_installs_where_it_is_configured_in_a_way_that_uv_does_not_know(name: str) -> None:
    assert translate({"index-url": "https://mirror.example/simple", name: "x"}) is None
