"""What a person copies to serve and ask a model elsewhere: a shell and Python read it as it is meant."""

from __future__ import annotations

import ast
import json
import shlex

import pytest

from backend.domain.evaluation.document import Speculation, Variant
from backend.domain.recipe.recipe import Serving
from backend.present import serve_command


def test_the_command_is_vllms_with_the_settings_of_the_variant() -> None:
    variant = Variant(
        name="--it's",
        source="a-1",
        kind="artifact",
        model_path="/a folder/model",
        serving=Serving(max_model_len=512),
        speculation=Speculation(method="draft", tokens=3, draft_path="/a folder/draft"),
    )
    words = shlex.split(serve_command.command(variant))
    assert words[:3] == ["vllm", "serve", "/a folder/model"]
    assert "--served-model-name=--it's" in words and "--it's" not in words
    assert words[words.index("--max-model-len") + 1] == "512"
    assert json.loads(words[words.index("--speculative-config") + 1])["model"] == "/a folder/draft"


@pytest.mark.parametrize("chat", [True, False])
def test_all_clients_ask_the_same_of_the_same_place(chat: bool) -> None:
    name, url = 'it\'s "mine"', "http://127.0.0.1:1234/v1"
    words = shlex.split(serve_command.curl(name, chat=chat, url=url).replace("\\\n", " "))
    parsed = json.loads(words[-1])
    assert words[1] == f"{url}/{'chat/completions' if chat else 'completions'}" and parsed["model"] == name
    call = next(
        node
        for node in ast.walk(ast.parse(serve_command.python(name, chat=chat, url=url)))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".create")
    )
    assert {each.arg: ast.literal_eval(each.value) for each in call.keywords} == parsed
    script = serve_command.javascript(name, chat=chat, url=url)
    assert f'fetch("{words[1]}"' in script
    assert json.loads(script.partition("JSON.stringify(")[2].partition("),\n})")[0]) == parsed


def test_all_clients_read_the_key_of_a_server_that_wants_one() -> None:
    written = serve_command.curl("m", chat=True, key_file="/tmp/a key/8000.key")
    assert "-H \"Authorization: Bearer $(cat '/tmp/a key/8000.key')\"" in written
    assert "Authorization" not in serve_command.curl("m", chat=True)
    tree = ast.parse(serve_command.python("m", chat=True, key_file="/tmp/a key/8000.key"))
    words = [word for node in ast.walk(tree) if isinstance(node, ast.Call) for word in node.keywords]
    keys = [ast.unparse(word.value) for word in words if word.arg == "api_key"]
    assert keys == ["open('/tmp/a key/8000.key').read()"]
    script = serve_command.javascript("m", chat=True, key_file="/tmp/a key/8000.key")
    assert 'readFileSync("/tmp/a key/8000.key", "utf8")' in script and "Authorization: `Bearer ${key}`" in script
    assert "Authorization" not in serve_command.javascript("m", chat=True)
