#!/usr/bin/env python3
"""Writes what NVIDIA's kvpress keeps of the golden files' prompts: an oracle for tests/engine_kvpress_test.cc.

    python3 -m venv VENV && VENV/bin/pip install kvpress==0.5.5
    VENV/bin/python scripts/kvpress_oracle.py

The methods are run as kvpress has them, over Transformers, on the tiny models of tests/golden/models; a
list has the positions that a head keeps. It is a dependency of nothing else, and needs no GPU.
"""

import json
import pathlib

import torch
import transformers
from kvpress import (AdaKVPress, CriticalAdaKVPress, CriticalKVPress, ExpectedAttentionPress,
                     SnapKVPress)

MODELS = ["llama31", "llama2", "qwen2", "qwen3"]
BUDGET = 40
WINDOW = 8
FUTURE = 100
ROOT = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden"


def presses(ratio):
    snap = lambda: SnapKVPress(compression_ratio=ratio, window_size=WINDOW, kernel_size=7)
    return {
        "snapkv": snap(),
        "ada-snapkv": AdaKVPress(snap(), alpha_safeguard=0.2),
        "critical-snapkv": CriticalKVPress(snap()),
        "critical-ada-snapkv": CriticalAdaKVPress(snap(), alpha_safeguard=0.2),
        "expectedattention": ExpectedAttentionPress(
            compression_ratio=ratio, n_future_positions=FUTURE, n_sink=4),
    }


def kept_by(model, press, ids):
    """[layers][kv_heads][positions], told by the keys that are left, or by the mask of others."""
    lists = []
    compress = press.compress

    def note(module, hidden_states, keys, values, attentions, kwargs):
        module.masked_key_indices = None
        new_keys, new_values = compress(module, hidden_states, keys, values, attentions, kwargs)
        heads, length = keys.shape[1], keys.shape[2]
        layer = []
        for head in range(heads):
            if module.masked_key_indices is not None:
                _, of_head, gone = module.masked_key_indices
                gone = set(gone[of_head == head].tolist())
                layer.append([i for i in range(length) if i not in gone])
                continue
            same = (new_keys[0, head, :, None] == keys[0, head, None]).all(-1)
            layer.append(sorted(same.int().argmax(-1).tolist()))
        lists.append(layer)
        module.masked_key_indices = None
        return keys, values  # later layers see what they would see in a prompt that is read exactly

    press.compress = note
    with torch.no_grad(), press(model):
        model(ids, past_key_values=transformers.DynamicCache())
    return lists


def main():
    for name in MODELS:
        folder = ROOT / "models" / name
        prompt = json.loads((folder / "golden.json").read_text())["prompt"]
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa").eval()
        if not hasattr(model.config, "head_dim"):  # which CriticalKV asks for
            model.config.head_dim = model.model.layers[0].self_attn.head_dim
        ratio = 1 - (BUDGET + 0.5) / len(prompt)
        ids = torch.tensor([prompt])
        kept = {method: kept_by(model, press, ids) for method, press in presses(ratio).items()}
        result = {"budget": BUDGET, "window": WINDOW, "future": FUTURE, "kept": kept}
        path = ROOT / "kvpress" / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(result, separators=(",", ":")) + "\n")
        print(path, {m: [len(h) for layer in k for h in layer] for m, k in kept.items()})


if __name__ == "__main__":
    main()
