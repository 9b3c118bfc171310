"""An OpenAI-compatible server over OpenVINO GenAI's continuous batching (`python -m backend.serving.openvino_program`).

It runs in the environment of `whetstone engines install openvino`, which has neither pydantic nor torch: its modules
import the standard library, that environment's packages and each other. Decision 0057.
"""
