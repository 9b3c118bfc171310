"""Fields of a small config.json, as many architectures name them."""

COMMON = {"vocab_size": 320, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
PLAIN = {
    **COMMON,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 128,
}
LATENT = {"kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 8}
