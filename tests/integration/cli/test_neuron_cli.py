"""`whetstone optimize --target neuron:...` as a user meets it: the plan and its key, a refusal that helps, and no
job."""

from __future__ import annotations

import json
from pathlib import Path

from backend.settings import ASSETS
from tests.integration.cli.calling import one_sentence, whetstone

TARGET = "neuron:ml.inf2.48xlarge"
RECIPE = """
name: neuron
steps:
  - quantize: {method: int8}
  - compile: {}
serving: {tensor_parallel: 8, max_model_len: 2048, max_num_seqs: 4}
"""

EAGLE = """
name: neuron
steps: [{{{speculate}}}, {{compile: {{}}}}]
serving: {{tensor_parallel: 2, max_model_len: 512, max_num_seqs: 2}}
"""


def test_the_plan_and_its_key_are_printed_and_nothing_is_compiled(tmp_path: Path) -> None:
    file = tmp_path / "neuron.yaml"
    file.write_text(RECIPE)
    requests = ("optimize", "meta-textgeneration-llama-3-8b", "--recipe", str(file), "--target", TARGET)
    document = json.loads(whetstone(tmp_path, *requests, "--dry-run", "--json").stdout)
    plan = document["plan"]
    assert (plan["stack"], plan["tensor_parallel"], plan["batch"], plan["weights"]) == ("nxd-inference", 8, 4, "int8")
    assert (
        plan["context_buckets"] == [128, 256, 512, 1024, 2048]
        and document["cores"] == 24
        and len(document["key"]) == 20
    )
    used = document["weights_bytes"] + document["cache_bytes"] + document["runtime_bytes"]
    assert 3e9 < used < document["core_memory_bytes"] == 16 << 30
    assert any("neuronx-cc is not installed" in note for note in document["notes"])
    text = whetstone(tmp_path, *requests, "--dry-run").stdout
    assert document["key"] in text and "NxD Inference" in text and "compilation plan" in text
    here = ("optimize", "starter", *requests[2:])
    assert one_sentence(whetstone(tmp_path, *here))
    jobs = json.loads(whetstone(tmp_path, "jobs", "list", "--json").stdout)
    assert not (jobs["jobs"] if isinstance(jobs, dict) else jobs)


def test_an_architecture_that_no_library_names_is_refused_with_where_it_would_work(tmp_path: Path) -> None:
    file = tmp_path / "neuron.yaml"
    file.write_text(RECIPE)
    requests = ("optimize", "huggingface-llm-gemma-2b", "--recipe", str(file), "--target", TARGET, "--dry-run")
    sentence = one_sentence(whetstone(tmp_path, *requests))
    assert (
        "no support for models of type gemma" in sentence
        and "Nearest valid recipe: quantize int8 + compile on ml." in sentence
    )


def test_an_eagle_head_is_compiled_with_the_model_and_counts_in_key_and_memory(tmp_path: Path) -> None:
    head, file = ASSETS / "starter" / "target", tmp_path / "eagle.yaml"
    file.write_text(EAGLE.format(speculate=f"speculate: {{method: eagle3, draft: {head}, tokens: 5}}"))
    requests = ("optimize", "starter", "--recipe", str(file), "--target", TARGET, "--dry-run", "--json")
    shown = json.loads(whetstone(tmp_path, *requests).stdout)
    plan = shown["plan"]
    assert (plan["draft_method"], plan["draft_tokens"], plan["draft_hash"]) == ("eagle3", 5, plan["model_hash"])
    file.write_text(EAGLE.format(speculate=f"speculate: {{method: draft, draft: {head}, tokens: 5}}"))
    assert "for one sequence: set `max_num_seqs: 1`" in one_sentence(whetstone(tmp_path, *requests))
    file.write_text(EAGLE.format(speculate="compile: {}").replace("{compile: {}}, ", ""))
    plain = json.loads(whetstone(tmp_path, *requests).stdout)
    assert plain["weights_bytes"] < shown["weights_bytes"] and plain["key"] != shown["key"]
