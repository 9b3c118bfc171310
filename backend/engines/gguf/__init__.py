"""Makes a model folder of a GGUF file: weights, config and tokenizer, and a check that both compute the same."""
