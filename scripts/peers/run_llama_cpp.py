"""Prefill and decode speed of llama.cpp through its Python binding, as one JSON object.

    run_llama_cpp.py MODEL.gguf --lengths 8192,6144 --threads 2 [--flash] [--tokens 32] [--repeats 3] [--seconds 20]

Each sequence is read on its own, as llama.cpp's users do; decode takes one token of each sequence a step. Token ids are
random. `prefill_seconds` and `decode_seconds` are medians.
"""
import os
import sys
import time

import llama_cpp
import numpy as np

import runner

BATCH = 2048


def load(args, lengths):
    """A context that holds the sequences, each in a cache of its own."""
    stderr = os.dup(2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(args.model.encode(), llama_cpp.llama_model_default_params())
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = len(lengths) * ((max(lengths) + args.tokens + 255) // 256 * 256)
    params.n_batch = BATCH
    params.n_seq_max = len(lengths)
    params.kv_unified = len(lengths) == 1
    params.n_threads = params.n_threads_batch = args.threads
    params.flash_attn = args.flash
    context = llama_cpp.llama_init_from_model(model, params) if model else None
    os.dup2(stderr, 2)
    if not context:
        sys.exit(f"llama.cpp cannot load {args.model}")
    return context


def decode(context, batch, entries):
    """One llama_decode of (token, position, sequence, wants logits)."""
    batch.n_tokens = len(entries)
    for i, (token, position, sequence, logits) in enumerate(entries):
        batch.token[i], batch.pos[i], batch.n_seq_id[i] = int(token), position, 1
        batch.seq_id[i][0] = sequence
        batch.logits[i] = logits
    if llama_cpp.llama_decode(context, batch) != 0:
        sys.exit("llama_decode failed")
    llama_cpp.llama_synchronize(context)


def measure(context, batch, vocab, lengths, tokens):
    """Seconds of prefill and of decode."""
    random = np.random.default_rng()
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
    prefill = 0.0
    for sequence, length in enumerate(lengths):
        ids = random.integers(0, vocab, length)
        pieces = [[(ids[p], p, sequence, p + 1 == length) for p in range(begin, min(begin + BATCH, length))]
                  for begin in range(0, length, BATCH)]
        start = time.perf_counter()
        for piece in pieces:
            decode(context, batch, piece)
        prefill += time.perf_counter() - start
    start = time.perf_counter()
    for step in range(tokens):
        decode(context, batch, [(random.integers(0, vocab), length + step, sequence, True)
                                for sequence, length in enumerate(lengths)])
    return prefill, time.perf_counter() - start


def main():
    parser = runner.arguments(__doc__)
    parser.add_argument("--flash", action="store_true")
    args = parser.parse_args()
    context = load(args, args.lengths)
    vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(llama_cpp.llama_get_model(context)))
    batch = llama_cpp.llama_batch_init(BATCH, 0, 1)
    runner.report(args, lambda lengths, tokens: measure(context, batch, vocab, lengths, tokens))


if __name__ == "__main__":
    main()
