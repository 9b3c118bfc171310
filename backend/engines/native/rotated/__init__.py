"""Quantization after a rotation of the hidden state, which is folded into the weights (QuaRot)."""
