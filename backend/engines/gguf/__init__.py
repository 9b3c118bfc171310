"""GGUF files -> a model folder: weights, config and tokenizer, and the proof that the folder computes what the file
says."""
