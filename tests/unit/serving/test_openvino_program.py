"""The OpenVINO server's own rules: what it reads of a request, the text of an answer as it comes, and its options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from backend.domain.evaluation.document import Speculation, Variant
from backend.domain.evaluation.evidence import openvino_findings
from backend.domain.recipe.recipe import Serving
from backend.serving.openvino import options
from backend.serving.openvino_program.__main__ import read_arguments
from backend.serving.openvino_program.cache_layout import find_cache_type
from backend.serving.openvino_program.model_text import ModelText
from backend.serving.openvino_program.requests import Refusal, parse_body, parse_completion
from tests.tiny import tiny_llama

TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
    "{% if messages[0].role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def text(folder: Path) -> ModelText:
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return ModelText(folder)


@pytest.mark.parametrize(
    ("body", "chat", "words"),
    [
        ({"prompt": "a", "logit_bias": {"1": 2}}, False, "does not follow `logit_bias`"),
        ({"prompt": "a", "temprature": 1}, False, "no field `temprature`"),
        ({"prompt": "a", "messages": []}, False, "no field `messages`"),
        ({"prompt": "a", "temperature": -1}, False, "temperature must be from 0"),
        ({"prompt": "a", "temperature": float("nan")}, False, "must be a number"),
        ({"prompt": "a", "top_p": 0}, False, "top_p must be"),
        ({"prompt": "a", "max_tokens": True}, False, "max_tokens must be a whole number"),
        ({"prompt": "a", "min_tokens": 5, "max_tokens": 4}, False, "min_tokens 5 is above"),
        ({"prompt": "a", "logprobs": 5}, False, "at most 1"),
        ({"prompt": ["a", 3]}, False, "prompt must be"),
        ({"prompt": []}, False, "prompt must be"),
        ({"prompt": "a", "stop": [""]}, False, "stop must be"),
        ({"prompt": "a", "stream_options": {"include_usage": True}}, False, "goes with `stream: true`"),
        ({"prompt": "a", "model": "other"}, False, "the model m only"),
        ({"prompt": "a", "n": 2, "prompt_logprobs": 2}, False, "one prompt, n=1"),
        ({"messages": []}, True, "at least one message"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, True, "must be text"),
        ({"messages": [{"role": "user", "content": "a"}], "top_logprobs": 1}, True, "goes with `logprobs: true`"),
    ],
)
def test_an_impossible_request_is_refused(body: dict[str, Any], chat: bool, words: str) -> None:
    with pytest.raises(Refusal, match=words) as refused:
        parse_completion(body, chat=chat, model="m")
    error = json.loads(refused.value.document())["error"]
    assert error["type"] == "invalid_request_error" and error["message"] == str(refused.value)


def test_a_body_that_is_no_object_is_refused() -> None:
    for body in (b"", b"[1]", b"{", b"[" * 100_000):
        with pytest.raises(Refusal, match="The body is not"):
            parse_body(body)


def test_fields_that_change_nothing_are_taken() -> None:
    read = parse_completion(
        {"prompt": [1, 2], "user": "u", "tools": [], "top_k": -1, "seed": None}, chat=False, model="m"
    )
    assert read.prompts == ([1, 2],) and read.sampling.top_k == 0 and read.most_tokens is None
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    chat = parse_completion({"messages": [{"role": "user", "content": parts}]}, chat=True, model="m")
    assert chat.prompts[0][0]["content"] == "a\nb"


def test_pieces_are_whole_characters_and_add_up_to_the_text(text: ModelText) -> None:
    written = "é 東京 🙂👩‍💻 x"
    answer = text.answer(text.encode("a "), ())
    pieces = [answer.add([token]) for token in text.encode(written, special=False)]
    assert "".join(pieces) == written and not any("�" in piece for piece in pieces)


@pytest.mark.parametrize(
    ("written", "stops", "expected", "stop"),
    [
        ("one two three", ("two",), "one ", "two"),
        ("one twelve", ("two",), "one twelve", None),
        ("one tw", ("two",), "one tw", None),
        ("aab", ("ab", "aab"), "", "aab"),
    ],
)
def test_a_stop_string_ends_the_text_before_it(
    text: ModelText, written: str, stops: tuple[str, ...], expected: str, stop: str | None
) -> None:
    answer, pieces = text.answer([1], stops), []
    for token in text.encode(written, special=False):
        pieces.append(answer.add([token]))
        if answer.stopped_by:
            break
    assert "".join([*pieces, answer.finish()]) == expected and answer.stopped_by == stop


def test_a_chat_is_rendered_as_transformers_does(text: ModelText, folder: Path) -> None:
    from backend.layered import tokenizers

    messages = [{"role": "user", "content": " hello "}, {"role": "assistant", "content": "yes"}]
    theirs = tokenizers.load(folder).apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert text.encode_messages(messages) == list(theirs)
    with pytest.raises(Refusal, match="refuses the messages: no tools"):
        text.encode_messages([{"role": "tool", "content": "x"}])
    with pytest.raises(Refusal, match="is not one of the"):
        text.check_known([10**9])


def test_the_options_are_those_that_the_program_reads(folder: Path) -> None:
    serving = Serving(
        engine="openvino",
        threads=1,
        kv_cache_dtype="u4",
        max_model_len=64,
        prefix_caching=True,
        max_num_batched_tokens=48,
        cache_eviction_tokens=128,
        sparse_attention="xattention",
    )
    speculation = Speculation(method="ngram", tokens=3)
    variant = Variant(
        name="-a", source="a", kind="model", model_path=str(folder), gguf="/x/a.gguf", serving=serving
    ).model_copy(update={"speculation": speculation})
    command = options.server_arguments(variant, port=7, served_name="-a", tokens_in_flight=100, streams=2)
    read = read_arguments(command[2:])
    assert (read.alias, read.port, read.threads, read.context, read.device) == ("-a", 7, 1, 64, "CPU")
    assert read.kv_cache_type == "u4" and read.prefix_caching and read.cache_tokens >= 100
    assert read.ngram_tokens == 3 and read.ngram_max >= 1
    chosen = (read.max_num_batched_tokens, read.cache_eviction_tokens, read.sparse_attention)
    assert chosen == (48, 128, "xattention")


def test_the_type_of_the_cache_shows_in_its_size() -> None:
    """Bytes a token that GenAI 2026.4.1 reported of SmolLM2-135M: 30 layers, 3 KV heads of 64."""
    config = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576}
    for reported, cache_type in ((13680, "u8"), (15840, "u4"), (23040, "f16"), (20000, None)):
        assert find_cache_type(config, reported) == cache_type
    assert find_cache_type({}, 13680) is None


def test_what_the_server_says_is_held_against_the_settings() -> None:
    from backend.domain.evaluation.evidence.engine_log import parse_engine_log
    from backend.domain.evaluation.evidence.findings import findings
    from backend.domain.evaluation.evidence.served_variant import StartEvidence

    document = {"data": [{"max_model_len": 64, "meta": {"file_bytes": 10, "cache_type": "u8", "slots": 4}}]}
    serving = Serving(engine="openvino", kv_cache_dtype="u4", max_model_len=64, prefix_caching=False)
    variant = Variant(name="a", source="a", kind="model", serving=serving, bytes_on_disk=10)
    evidence = StartEvidence(parse_engine_log([]), openvino=openvino_findings.parse_facts(document))
    proven = {finding.what: finding.proven for finding in findings(variant, {}, [evidence], [])}
    assert proven == {"quantization": True, "context": True, "kv_cache": False, "prefix_cache": None}
