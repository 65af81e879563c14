"""Writes a Llama-shaped Hugging Face folder, or random weights of a config.json, as a GGUF file for llama.cpp.

    make_gguf.py MODEL_FOLDER_OR_CONFIG OUT.gguf [--type bf16|f16]

Only for comparing speed: the vocabulary is written without merges, so llama.cpp cannot tokenize with it.
"""
import argparse
import json
import os

import gguf
import numpy as np
import torch


def permuted(weight, heads):
    """llama.cpp rotates neighbouring elements, Hugging Face halves of a head."""
    rows, cols = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, cols).swapaxes(1, 2).reshape(rows, cols)


def tensors(config, folder):
    """(name in GGUF, f32 tensor), from safetensors or random."""
    d, hd = config["hidden_size"], config["head_dim"]
    q, k, ff = config["num_attention_heads"], config["num_key_value_heads"], config["intermediate_size"]
    weights = {}
    if folder:
        from safetensors.torch import load_file

        for name in sorted(os.listdir(folder)):
            if name.endswith(".safetensors"):
                weights.update(load_file(os.path.join(folder, name)))
    generator = torch.Generator().manual_seed(1)

    def get(name, *shape):
        if weights:
            return weights[name].float()
        if len(shape) == 1:
            return torch.ones(shape)
        return torch.randn(shape, generator=generator) * 0.02

    yield "token_embd.weight", get("model.embed_tokens.weight", config["vocab_size"], d)
    yield "output_norm.weight", get("model.norm.weight", d)
    if not config.get("tie_word_embeddings"):
        yield "output.weight", get("lm_head.weight", config["vocab_size"], d)
    for i in range(config["num_hidden_layers"]):
        p, b = f"model.layers.{i}.", f"blk.{i}."
        yield b + "attn_norm.weight", get(p + "input_layernorm.weight", d)
        yield b + "attn_q.weight", permuted(get(p + "self_attn.q_proj.weight", q * hd, d), q)
        yield b + "attn_k.weight", permuted(get(p + "self_attn.k_proj.weight", k * hd, d), k)
        yield b + "attn_v.weight", get(p + "self_attn.v_proj.weight", k * hd, d)
        yield b + "attn_output.weight", get(p + "self_attn.o_proj.weight", d, q * hd)
        yield b + "ffn_norm.weight", get(p + "post_attention_layernorm.weight", d)
        yield b + "ffn_gate.weight", get(p + "mlp.gate_proj.weight", ff, d)
        yield b + "ffn_up.weight", get(p + "mlp.up_proj.weight", ff, d)
        yield b + "ffn_down.weight", get(p + "mlp.down_proj.weight", d, ff)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--type", choices=["bf16", "f16"], default="bf16")
    args = parser.parse_args()
    folder = args.model if os.path.isdir(args.model) else None
    with open(os.path.join(folder, "config.json") if folder else args.model) as file:
        config = json.load(file)

    writer = gguf.GGUFWriter(args.out, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config.get("rope_theta", 10000.0))
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list([f"t{i}".encode() for i in range(config["vocab_size"])])
    writer.add_token_types([gguf.TokenType.NORMAL] * config["vocab_size"])
    writer.add_token_merges(["t0 t1"])  # llama.cpp refuses a vocabulary with none
    for name, tensor in tensors(config, folder):
        if tensor.dim() == 1:
            writer.add_tensor(name, tensor.numpy().astype(np.float32))
        elif args.type == "f16":
            writer.add_tensor(name, tensor.numpy().astype(np.float16))
        else:
            bits = tensor.to(torch.bfloat16).view(torch.int16).numpy()
            writer.add_tensor(name, bits.view(np.uint8), raw_shape=bits.view(np.uint8).shape,
                              raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
