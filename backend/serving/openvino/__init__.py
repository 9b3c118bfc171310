"""Starts Whetstone's server over OpenVINO GenAI, which `backend/serving/openvino_program` is."""
