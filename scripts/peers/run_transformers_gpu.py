"""Prefill and decode speed of Hugging Face Transformers on a GPU, as one JSON line for each context and phase.

    run_transformers_gpu.py MODEL --lengths 8192,32768 [--batch 1] [--offloaded] [--chunk 8192] [--dtype bfloat16]
                            [--tokens 32] [--repeats 3] [--seconds 20] [--phases prefill,decode]

MODEL is a folder or, for random weights, a config.json, whose dtype it has unless another is given. The sequences of a
batch are equally long. Attention is PyTorch's (sdpa). The cache is the one that `generate` makes: on the GPU or, with
--offloaded, as for cache_implementation='offloaded'. A prompt is read in one step, or in pieces of --chunk tokens. Decode
is greedy, behind a cache of random keys and values; its repetitions continue each other, and the clock may end one before
--tokens. Everything is warmed up first and read off the clock after `torch.cuda.synchronize`. `seconds` is the median, of a
batch of prompts or of a step; `reserved_bytes` the most that PyTorch held on the GPU in the phase, the driver's context not
counted. A phase that runs out of memory has `error` instead.
"""
import gc
import json
import os
import statistics
import time

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

import runner

WARM_UP = 8192  # tokens at most
WARM_UP_STEPS = 2
STEPS = 4       # the clock ends no repetition of decode before so many


def load(args):
    config = AutoConfig.from_pretrained(args.model)
    dtype = getattr(torch, args.dtype) if args.dtype else config.dtype or torch.bfloat16
    if os.path.isdir(args.model):
        return AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype, attn_implementation="sdpa").to(args.device).eval()
    with torch.device(args.device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").eval()


def now(args):
    if args.device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter()


def new_cache(args, model):
    return DynamicCache(config=model.config.get_text_config(decoder=True), offloading=args.offloaded)


def prefill(args, model, length):
    """Seconds of reading random tokens."""
    cache = new_cache(args, model)
    ids = torch.randint(0, model.config.vocab_size, (args.batch, length), device=args.device)
    start = now(args)
    for piece in ids.split(args.chunk or length, dim=1):
        model(piece, past_key_values=cache, use_cache=True, logits_to_keep=1)
    return now(args) - start


def filled(args, model, length):
    """A cache of random keys and values."""
    config, cache = model.config, new_cache(args, model)
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    for layer in range(config.num_hidden_layers):
        states = [torch.randn((args.batch, heads, length, width), dtype=model.dtype, device=args.device)
                  for _ in range(2)]
        cache.update(*states, layer)
    return cache


class Decode:
    """Greedy steps behind one cache."""

    def __init__(self, args, model, length):
        self.args, self.model, self.cache = args, model, filled(args, model, length)
        self.token = torch.zeros((args.batch, 1), dtype=torch.long, device=args.device)
        self.run(WARM_UP_STEPS)
        self.begin = now(args)

    def run(self, steps):
        for _ in range(steps):
            logits = self.model(self.token, past_key_values=self.cache, use_cache=True, logits_to_keep=1).logits
            self.token = logits[:, -1].argmax(-1, keepdim=True)

    def measure(self):
        """Seconds a step."""
        start, done = now(self.args), 0
        while done < self.args.tokens:
            self.run(1)
            done += 1
            end = now(self.args)  # `generate` waits for each token, too
            if done >= STEPS and end - self.begin > self.args.seconds:
                break
        return (end - start) / done


def phase_seconds(args, model, phase, length):
    last = length if phase == "prefill" else length + WARM_UP_STEPS + args.repeats * args.tokens
    if model.config.model_type == "opt" and last > model.config.max_position_embeddings:  # learned: one more is out of bounds
        raise RuntimeError(f"{last} tokens, and the model has {model.config.max_position_embeddings} positions")
    if phase == "prefill":
        prefill(args, model, min(length, WARM_UP))
        return runner.repeat(args, lambda: prefill(args, model, length))
    return runner.repeat(args, Decode(args, model, length).measure)


def measure(args, model, phase, length):
    """The phase's line."""
    line = {"phase": phase, "batch": args.batch, "length": length, "cache": "offloaded" if args.offloaded else "gpu",
            "dtype": str(model.dtype).removeprefix("torch."), "torch": torch.__version__,
            "transformers": transformers.__version__}
    try:
        seconds = phase_seconds(args, model, phase, length)
        median = statistics.median(seconds)
        tokens = args.batch * (length if phase == "prefill" else 1)
        line |= {"seconds": median, "tokens_per_second": tokens / median, "repeats": len(seconds)}
    except (RuntimeError, MemoryError) as error:  # CUDA's own are RuntimeErrors
        text = str(error) or "out of memory"
        line["error"] = "out of memory" if "out of memory" in text else text.splitlines()[0]
    gc.collect()
    if args.device != "cpu":
        line["reserved_bytes"] = torch.cuda.max_memory_reserved()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return line


def main():
    parser = runner.arguments(__doc__, threads=False)
    parser.add_argument("--phases", default="prefill,decode")
    parser.add_argument("--offloaded", action="store_true")
    parser.add_argument("--chunk", type=int, default=0)
    parser.add_argument("--dtype", default="", help="instead of the config's")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    model = load(args)
    with torch.inference_mode():
        for length in args.lengths:
            for phase in args.phases.split(","):
                print(json.dumps(measure(args, model, phase, length)), flush=True)


if __name__ == "__main__":
    main()
