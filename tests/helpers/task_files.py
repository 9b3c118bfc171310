"""Task files."""

from __future__ import annotations

TASK = """task: sums
dataset_path: json
dataset_kwargs: {data_files: {test: sums.jsonl}}
test_split: test
output_type: loglikelihood
doc_to_text: "{{q}}"
doc_to_target: "{{a}}"
"""
