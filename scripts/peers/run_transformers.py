"""Prefill and decode speed of Hugging Face Transformers on the CPU, as one JSON object.

    run_transformers.py MODEL --lengths 8192,6144 --threads 2 [--dtype bfloat16] [--tokens 32] [--repeats 3] [--seconds 20]

MODEL is a folder or, for random weights, a config.json. Each sequence is read on its own, so that no padding is computed;
decode takes one token of each sequence a step, with the shorter caches padded on the left, as `generate` does. Token ids
are random. `prefill_seconds` and `decode_seconds` are medians.
"""
import argparse
import json
import os
import statistics
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache


def load(args):
    dtype = getattr(torch, args.dtype)
    if os.path.isdir(args.model):
        return AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype).eval()
    return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(args.model), dtype=dtype).eval()


def padded(caches, lengths):
    """One cache of all sequences, each ending at the same slot."""
    longest, joined = max(lengths), DynamicCache()
    for layer in range(len(caches[0].layers)):
        states = []
        for name in ("keys", "values"):
            parts = [torch.nn.functional.pad(getattr(cache.layers[layer], name), (0, 0, longest - length, 0))
                     for cache, length in zip(caches, lengths)]
            states.append(torch.cat(parts))
        joined.update(*states, layer)
    return joined


def measure(model, lengths, tokens):
    """Seconds of prefill and of decode."""
    prefill, caches = 0.0, []
    for length in lengths:
        ids = torch.randint(0, model.config.vocab_size, (1, length))
        start = time.perf_counter()
        caches.append(model(ids, use_cache=True, logits_to_keep=1).past_key_values)
        prefill += time.perf_counter() - start
    batch, longest = len(lengths), max(lengths)
    cache = caches[0] if batch == 1 else padded(caches, lengths)
    del caches
    ends = torch.tensor(lengths)[:, None]
    mask = (torch.arange(longest + tokens) >= longest - ends).long()
    start = time.perf_counter()
    for step in range(tokens):
        more = {} if batch == 1 else {"attention_mask": mask[:, : longest + step + 1], "position_ids": ends + step}
        model(torch.randint(0, model.config.vocab_size, (batch, 1)), past_key_values=cache, use_cache=True, **more)
    return prefill, time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--lengths", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tokens", type=int, default=32, help="decode steps")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20, help="no repetition begins after so many")
    args = parser.parse_args()
    lengths = [int(length) for length in args.lengths.split(",")]
    torch.set_num_threads(args.threads)
    model = load(args)
    with torch.inference_mode():
        measure(model, [min(length, 256) for length in lengths], 2)  # warms up
        start, times = time.perf_counter(), []
        while len(times) < args.repeats and (not times or time.perf_counter() - start < args.seconds):
            times.append(measure(model, lengths, args.tokens))
    prefill, decoding = (statistics.median(column) for column in zip(*times))
    print(json.dumps({"prefill_seconds": prefill, "decode_seconds": decoding, "repeats": len(times)}))


if __name__ == "__main__":
    main()
