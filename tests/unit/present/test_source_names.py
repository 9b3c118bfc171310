"""What a screen shows in place of a path, an address or a revision."""

import pytest

from backend.present.charts.markers import LEGEND_WIDTH, legend_name
from backend.present.source_names import distinct_labels, evaluation_name, short_name

CACHED = "/home/someone/.cache/huggingface/hub/models--org--Tiny-1B/snapshots/0123456789abcdef"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("starter", "starter"),
        ("w8a8 + draft", "w8a8 + draft"),
        ("org/Tiny-1B", "org/Tiny-1B"),
        ("org/Tiny-1B@1a2b3c4d", "org/Tiny-1B"),
        ("/data/models/Tiny-1B/", "Tiny-1B"),
        ("/data/models/gguf/Tiny-1B@0123456789abcdef", "Tiny-1B"),
        (CACHED, "org/Tiny-1B"),
        ("~/models/Tiny-1B.Q4_K_M.gguf", "Tiny-1B.Q4_K_M.gguf"),
        ("s3://bucket/models/Tiny-1B@1a2b3c4d", "Tiny-1B"),
        ("http://127.0.0.1:8000/v1", "127.0.0.1:8000"),
        ("https://example.org/team/v1/#org%2FTiny-1B", "org/Tiny-1B at example.org/team"),
        ("http://127.0.0.1:8000#/data/models/Tiny-1B", "Tiny-1B at 127.0.0.1:8000"),
        ("http://[::1", "http://[::1"),
        ("sagemaker:chat@eu-west-1#other", "chat"),
        ("sagemaker://us-east-1/whetstone-chat", "whetstone-chat"),
        ("/", "/"),
    ],
)
def test_a_source_has_a_short_name(source: str, name: str) -> None:
    assert short_name(source) == name


def test_labels_of_two_sources_are_never_the_same() -> None:
    sources = ("/a/one/model", "/a/two/model", "http://h/v1", "http://h", "/b/x/tiny", "/c/x/tiny", "starter")
    labels = distinct_labels({source: short_name(source) for source in sources})
    assert list(labels.values())[:4] == ["model (in one)", "model (in two)", "h (http://h/v1)", "h (http://h)"]
    assert labels["starter"] == "starter" and len(set(labels.values())) == len(sources)


def test_a_legend_keeps_what_tells_a_long_name_apart() -> None:
    assert legend_name(f"{CACHED}") == "org/Tiny-1B"
    assert legend_name("an-organization/SmolLM2-135M-Instruct@1a2b3c4d") == "SmolLM2-135M-Instruct"
    one, other = (legend_name(f"SmolLM2-135M-Instruct-finetuned on {engine}") for engine in ("vLLM", "llama.cpp"))
    assert one != other and one.endswith("on vLLM") and max(len(one), len(other)) == LEGEND_WIDTH


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("Evaluate starter", "starter"),
        ("Evaluate starter, w8a8 + draft", "starter vs w8a8 + draft"),
        ("Demo: evaluate org/Tiny-1B@1a2b3c4d, w8a8, adaptive n-gram", "org/Tiny-1B vs 2 variants"),
        ("Evaluate starter, w8a8: 6 more blocks", "starter vs w8a8: 6 more blocks"),
        ("Nightly, all variants", "Nightly, all variants"),
    ],
)
def test_an_evaluation_has_a_short_name(title: str, name: str) -> None:
    assert evaluation_name(title) == name
