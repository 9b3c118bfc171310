"""Engine and serving settings behind a source: they are read back as written, and wrong ones are named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.domain.errors import RequestError
from backend.domain.recipe.recipe import Serving
from backend.domain.recipe.serving import source_settings
from backend.domain.recipe.serving.source_settings import SourceSettings, apply_settings, parse_source, write_source
from backend.domain.recipe.serving_engines import ENGINES

SERVINGS = st.builds(
    Serving,
    engine=st.just("llama.cpp"),
    max_model_len=st.none() | st.integers(16, 10**6),
    max_num_seqs=st.none() | st.integers(1, 512),
    kv_cache_dtype=st.sampled_from(["auto", "q8_0", "q4_0"]),
    prefix_caching=st.none() | st.booleans(),
    enforce_eager=st.booleans(),
    threads=st.none() | st.integers(1, 64),
)


@given(
    st.sampled_from(["starter", "/a folder/m@main", "a-13bc84d67213@tokens=3"]),
    st.sampled_from([None, *ENGINES, "auto"]),
    st.dictionaries(st.sampled_from(source_settings.SETTINGS), st.text("abc019._", max_size=8)),
)
def test_a_source_is_read_back_as_written(plain: str, engine: str | None, settings: dict[str, str]) -> None:
    parts = SourceSettings(plain, engine, settings)  # type: ignore[arg-type]
    written = write_source(parts)
    assert parse_source(written) == parts
    assert source_settings.remove_settings(written) == plain


@given(SERVINGS)
def test_written_differences_give_the_same_serving(serving: Serving) -> None:
    parts = parse_source(f"starter{source_settings.write_differences(serving)}")
    assert parts.engine == "llama.cpp"
    assert apply_settings(Serving(engine="llama.cpp"), parts.settings) == serving


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("starter@thread=2", r"no serving setting `thread`: use threads"),
        ("starter@threads=2@threads=3", r"`@threads=` is written twice behind starter"),
        ("starter@engine=tgi", r"no serving engine `tgi`: use vllm or llama.cpp"),
        ("starter@engine=vllm@threads=2", r"`@threads=2` is wrong: `threads` goes with .*llama.cpp"),
        ("starter@max_num_seqs=many", r"`@max_num_seqs=many` is wrong"),
        ("starter@max_num_seqs=0", r"`@max_num_seqs=0` is wrong: .*1"),
        ("starter@kv_cache_dtype=q9", r"`@kv_cache_dtype=q9` is wrong: .*fp8"),
    ],
)
def test_a_wrong_setting_is_named_with_what_works(source: str, sentence: str) -> None:
    with pytest.raises(RequestError, match=sentence):
        parts = parse_source(source)
        apply_settings(Serving(engine=parts.engine or "vllm"), parts.settings)


def test_a_name_says_the_settings_in_short_words() -> None:
    settings = {"kv_cache_dtype": "q8_0", "prefix_caching": "on"}
    assert source_settings.name_settings(settings) == ", KV cache q8_0, prefix caching on"
