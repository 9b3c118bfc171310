"""A case on managed endpoints."""

from __future__ import annotations

ROLE, OUTPUT, SOURCE = "arn:aws:iam::123456789012:role/r", "s3://made/here", "s3://models/mistral"
AWS = ("--aws", f"role={ROLE}", "--aws", f"output={OUTPUT}", "--aws", f"source={SOURCE}")
CASE = ("optimize", "huggingface-llm-mistral-7b", "--target", "sagemaker:ml.g6.12xlarge")
