#!/usr/bin/env python3
"""Writes the golden files under tests/golden: what Transformers computes for tiny random models.

    python3 -m venv .venv && .venv/bin/pip install -r scripts/requirements.txt
    .venv/bin/python scripts/make_golden.py [NAME ...]

NAME: only these models. Without any, all of them and rope.json.

tests/golden/models/NAME is a model folder as Transformers saves it, with a golden.json beside its
weights:

    prompt   token ids
    tokens   the greedy continuation, end tokens ignored
    margins  of each of them, the distance between the two best logits
    rows     positions in prompt + tokens
    logits   of those positions, [rows][vocab]

All is computed in f32 with eager attention, also where the weights are stored in 16 bits. Frequencies
of the rope type `dynamic` are those of the prompt's length, during generation, too.

tests/golden/rope.json holds inverse frequencies for every rope type, as
[{config, total_length, inv_freq, scale}].
"""

import json
import math
import shutil
import sys
from pathlib import Path

import torch
import transformers
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    Qwen2Config,
    Qwen3Config,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden"
GENERATED = 64

SMALL = dict(
    vocab_size=160,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    max_position_embeddings=512,
    bos_token_id=1,
    eos_token_id=2,
)
LLAMA3 = dict(
    rope_type="llama3",
    rope_theta=500000.0,
    factor=8.0,
    low_freq_factor=1.0,
    high_freq_factor=4.0,
    original_max_position_embeddings=64,
)

OPT = dict(
    vocab_size=160,
    hidden_size=32,
    ffn_dim=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    max_position_embeddings=200,
    bos_token_id=1,
    eos_token_id=2,
)

NEOX = SMALL | dict(intermediate_size=64, num_attention_heads=2)


def model_list():
    """(name, config, prompt length, options); options: dtype, old_keys, shards."""
    return [
        ("llama2", LlamaConfig(**SMALL, num_attention_heads=2), 130, dict(old_keys=True)),
        (
            "llama31",
            LlamaConfig(**SMALL, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
                        rope_parameters=LLAMA3),
            200,
            dict(old_keys=True, shards=True),
        ),
        (
            "llama32-tied",
            LlamaConfig(**SMALL, num_attention_heads=4, num_key_value_heads=1, head_dim=32,
                        tie_word_embeddings=True, rope_parameters=LLAMA3 | dict(factor=32.0)),
            150,
            {},
        ),
        (
            "llama-linear-biases",
            LlamaConfig(**SMALL, num_attention_heads=2, attention_bias=True, mlp_bias=True,
                        rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=4.0)),
            120,
            {},
        ),
        (
            "llama-dynamic",
            LlamaConfig(**SMALL | dict(max_position_embeddings=64), num_attention_heads=2,
                        rope_parameters=dict(rope_type="dynamic", rope_theta=10000.0, factor=2.0)),
            180,
            dict(old_keys=True),
        ),
        (
            "llama-yarn",
            LlamaConfig(**SMALL, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
                        rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0,
                                             original_max_position_embeddings=64)),
            200,
            {},
        ),
        (
            "llama-bf16",
            LlamaConfig(**SMALL | dict(hidden_size=48), num_attention_heads=6,
                        num_key_value_heads=2, head_dim=80, rope_parameters=LLAMA3),
            100,
            dict(dtype=torch.bfloat16, shards=True),
        ),
        (
            "llama-f16",
            LlamaConfig(**SMALL, num_attention_heads=4, num_key_value_heads=2, head_dim=96),
            100,
            dict(dtype=torch.float16, old_keys=True),
        ),
        (
            "mistral-window",
            MistralConfig(**SMALL, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
                          sliding_window=48),
            200,
            dict(old_keys=True),
        ),
        (
            "qwen2",
            Qwen2Config(**SMALL, num_attention_heads=4, num_key_value_heads=2),
            130,
            dict(old_keys=True),
        ),
        (
            "qwen2-sliding",
            Qwen2Config(**SMALL | dict(num_hidden_layers=3), num_attention_heads=4,
                        num_key_value_heads=2, use_sliding_window=True, sliding_window=40,
                        max_window_layers=1),
            150,
            {},
        ),
        (
            "qwen2-group7",
            Qwen2Config(**SMALL | dict(hidden_size=56), num_attention_heads=14,
                        num_key_value_heads=2, head_dim=16, tie_word_embeddings=True),
            100,
            dict(dtype=torch.bfloat16),
        ),
        (
            "qwen3",
            Qwen3Config(**SMALL, num_attention_heads=4, num_key_value_heads=2, head_dim=32),
            150,
            {},
        ),
        (
            "qwen3-bf16",
            Qwen3Config(**SMALL, num_attention_heads=4, num_key_value_heads=2, head_dim=128,
                        tie_word_embeddings=True),
            120,
            dict(dtype=torch.bfloat16),
        ),
        ("opt", OPTConfig(**OPT), 130, {}),
        (
            "opt-projected",  # as opt-350m: norms behind, and embeddings narrower than the model
            OPTConfig(**OPT | dict(word_embed_proj_dim=24, do_layer_norm_before=False)),
            120,
            {},
        ),
        (
            "opt-f16",
            OPTConfig(**OPT | dict(hidden_size=64, ffn_dim=96)),
            100,
            dict(dtype=torch.float16),
        ),
        (
            "opt-plain",
            OPTConfig(**OPT | dict(enable_bias=False, layer_norm_elementwise_affine=False,
                                   tie_word_embeddings=False)),
            100,
            {},
        ),
        ("neox", GPTNeoXConfig(**NEOX, rotary_pct=0.25), 130, dict(old_keys=True)),
        (
            "neox-sequential",
            GPTNeoXConfig(**NEOX | dict(hidden_size=48, num_attention_heads=3),
                          use_parallel_residual=False, hidden_act="gelu_fast", rotary_pct=0.5),
            120,
            dict(shards=True),
        ),
        (
            "neox-linear",
            GPTNeoXConfig(**NEOX, rotary_pct=1.0, tie_word_embeddings=True, attention_bias=False,
                          hidden_act="gelu_new",
                          rope_scaling=dict(rope_type="linear", factor=4.0)),
            120,
            dict(old_keys=True),
        ),
        (
            "neox-yarn",
            GPTNeoXConfig(**NEOX | dict(hidden_size=64), rotary_pct=0.5,
                          rope_scaling=dict(rope_type="yarn", factor=4.0,
                                            original_max_position_embeddings=64)),
            200,
            {},
        ),
        (
            "neox-f16",  # 20 of 80 elements of a head rotate, as in Pythia-2.8B
            GPTNeoXConfig(**NEOX | dict(hidden_size=80, num_attention_heads=1), rotary_pct=0.25),
            100,
            dict(dtype=torch.float16),
        ),
        (
            "neox-bf16",
            GPTNeoXConfig(**NEOX | dict(hidden_size=64), hidden_act="gelu_fast", rotary_pct=0.5,
                          tie_word_embeddings=True),
            100,
            dict(dtype=torch.bfloat16),
        ),
    ]


@torch.no_grad()
def randomize(model, generator):
    """Weights large enough that attention is sharp and the continuation varied.

    The deviation of 0.02 that models are initialised with leaves attention nearly uniform: wrong
    angles or windows would hardly show.
    """
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("norm.weight"):
            parameter.copy_(1.0 + 0.25 * noise)
        elif name.endswith(".bias"):
            parameter.copy_(0.3 * noise)
        elif "embed_positions" in name:
            parameter.copy_(1.0 * noise)
        elif "embed_tokens" in name or "embed_in" in name:
            parameter.copy_((0.3 if model.config.tie_word_embeddings else 1.0) * noise)
        else:
            sharp = ("q_proj", "k_proj", "query_key_value")
            gain = 1.6 if any(part in name for part in sharp) else 1.2
            if any(part in name for part in ("out_proj", "fc", "dense")):
                gain = 2.4  # biases, ReLU and GELU leave less to chance
            parameter.copy_(gain * noise / math.sqrt(parameter.shape[1]))


def use_old_keys(path):
    """Spells config.json as Transformers did before version 5."""
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    neox = config["model_type"] == "gpt_neox"
    config["rotary_emb_base" if neox else "rope_theta"] = rope.pop("rope_theta")
    if neox:
        config["rotary_pct"] = rope.pop("partial_rotary_factor")
    kind = rope.pop("rope_type")
    config["rope_scaling"] = None
    if kind in ("linear", "dynamic"):
        config["rope_scaling"] = {"type": kind} | rope
    elif kind != "default":
        config["rope_scaling"] = {"rope_type": kind} | rope
    config["torch_dtype"] = config.pop("dtype")
    path.write_text(json.dumps(config, indent=2) + "\n")


@torch.no_grad()
def golden_of(folder, prompt):
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()

    def logits_of(ids):
        return model(torch.tensor([ids]), use_cache=False).logits[0]

    logits_of(prompt)  # makes `dynamic` choose its frequencies, which then stay
    if hasattr(model.base_model, "rotary_emb"):
        model.base_model.rotary_emb.rope_type = "default"
    sequence = list(prompt)
    margins = []
    for _ in range(GENERATED):
        best = torch.topk(logits_of(sequence)[-1], 2)
        sequence.append(int(best.indices[0]))
        margins.append(float(best.values[0] - best.values[1]))
    logits = logits_of(sequence)
    end = len(prompt)
    rows = [0, 1, end // 2, end - 1, end, end + GENERATED // 2, end + GENERATED - 1]
    return dict(
        transformers=transformers.__version__,
        prompt=prompt,
        tokens=sequence[end:],
        margins=[round(margin, 6) for margin in margins],
        rows=rows,
        logits=[[float(f"{value:.9g}") for value in logits[row].tolist()] for row in rows],
    )


def make_models(names):
    for index, (name, config, prompt_length, options) in enumerate(model_list()):
        if names and name not in names:
            continue
        generator = torch.Generator().manual_seed(1000 + index)
        folder = GOLDEN / "models" / name
        shutil.rmtree(folder, ignore_errors=True)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        randomize(model, generator)
        model.to(options.get("dtype", torch.float32))
        model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=[2, 3])
        model.save_pretrained(folder, max_shard_size="64KB" if options.get("shards") else "1GB")
        if options.get("old_keys"):
            use_old_keys(folder / "config.json")
        prompt = torch.randint(4, config.vocab_size, (prompt_length,), generator=generator).tolist()
        golden = golden_of(folder, [config.bos_token_id] + prompt[1:])
        (folder / "golden.json").write_text(json.dumps(golden, separators=(",", ":")) + "\n")
        print(f"{name}: {len(set(golden['tokens']))} different tokens of {GENERATED}, "
              f"smallest margin {min(golden['margins']):.4f}")


def rope_list():
    """(rope parameters, head_dim, max_position_embeddings, total length)"""
    yarn = dict(rope_type="yarn", rope_theta=1e6, factor=4.0, original_max_position_embeddings=32768)
    dynamic = dict(rope_type="dynamic", rope_theta=10000.0, factor=4.0)
    llama3 = LLAMA3 | dict(original_max_position_embeddings=8192)
    return [
        (dict(rope_type="default", rope_theta=10000.0), 128, 4096, 100),
        (dict(rope_type="default", rope_theta=1e6), 80, 32768, 100),
        (dict(rope_type="linear", rope_theta=10000.0, factor=2.5), 64, 4096, 100),
        (dynamic, 128, 2048, 100),
        (dynamic, 128, 2048, 2048),
        (dynamic, 128, 2048, 2049),
        (dynamic, 96, 2048, 50000),
        (yarn, 128, 32768, 100),
        (yarn | dict(truncate=False), 128, 131072, 100),
        (yarn | dict(attention_factor=1.25), 64, 131072, 100),
        (yarn | dict(mscale=0.7, mscale_all_dim=1.0), 64, 131072, 100),
        (yarn | dict(beta_fast=16.0, beta_slow=2.0), 128, 131072, 100),
        (llama3, 128, 131072, 100),
        (llama3 | dict(factor=32.0), 64, 131072, 100),
    ]


def make_rope():
    cases = []
    for rope, head_dim, max_position, total_length in rope_list():
        config = LlamaConfig(**SMALL | dict(max_position_embeddings=max_position),
                             num_attention_heads=2, head_dim=head_dim, rope_parameters=dict(rope),
                             architectures=["LlamaForCausalLM"])
        model = AutoModelForCausalLM.from_config(config)
        rotary = model.model.rotary_emb
        rotary(torch.zeros(1), torch.arange(total_length)[None])  # what a prefill asks for
        cases.append(dict(
            config=config.to_dict(),
            total_length=total_length,
            inv_freq=[float(f"{value:.9g}") for value in rotary.inv_freq.tolist()],
            scale=rotary.attention_scaling,
        ))
        keep = set(SMALL) | {"architectures", "model_type", "num_attention_heads", "head_dim",
                             "num_key_value_heads", "rope_parameters"}
        cases[-1]["config"] = {k: v for k, v in cases[-1]["config"].items() if k in keep}
    text = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    (GOLDEN / "rope.json").write_text(f"[\n{text}\n]\n")


if __name__ == "__main__":
    GOLDEN.mkdir(parents=True, exist_ok=True)
    make_models(sys.argv[1:])
    if not sys.argv[1:]:
        make_rope()
