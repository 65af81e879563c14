"""Prefill and decode speed of Hugging Face Transformers on the CPU, as one JSON object.

    run_transformers.py MODEL --lengths 8192,6144 --threads 2 [--dtype bfloat16] [--tokens 32] [--repeats 3] [--seconds 20]

MODEL is a folder or, for random weights, a config.json. Each sequence is read on its own, so that no padding is computed;
decode takes one token of each sequence a step, with the shorter caches padded on the left, as `generate` does. Token ids
are random. `prefill_seconds` and `decode_seconds` are medians.
"""
import os
import time

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

import runner


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
    parser = runner.arguments(__doc__)
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model = load(args)
    with torch.inference_mode():
        runner.report(args, lambda lengths, tokens: measure(model, lengths, tokens))


if __name__ == "__main__":
    main()
