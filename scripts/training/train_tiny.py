"""Trains a tiny model of another family than the demo model's, to measure what its keys and values are like.

    train_tiny.py CORPUS OUT --family opt|qwen2 [--tokens 8e6] [--length 1024] [--batch 16] [--seed 1]

CORPUS comes from prepare_corpus.py, with a vocabulary of 4,096 so that the weights are 5 to 6 MB. Writes a Hugging Face
folder of bf16 weights. The defaults take less than a minute on one large GPU.
"""
import argparse
import math
import pathlib
import time

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import OPTConfig, OPTForCausalLM, Qwen2Config, Qwen2ForCausalLM

from train import export

LEARNING_RATE = 2e-3
WARM_UP = 50  # steps
VALIDATION = 32  # sequences
WIDTH, HEADS = 256, 4


def new_model(family, tokenizer, length):
    """OPT: two layers of LayerNorm and learned positions. Qwen2: three, with biases and two heads of K and V."""
    common = dict(vocab_size=tokenizer.get_vocab_size(), hidden_size=WIDTH, num_attention_heads=HEADS,
                  max_position_embeddings=length, tie_word_embeddings=True,
                  bos_token_id=tokenizer.token_to_id("<|begin_of_text|>"),
                  eos_token_id=tokenizer.token_to_id("<|end_of_text|>"),
                  pad_token_id=tokenizer.token_to_id("<|finetune_right_pad_id|>"))
    if family == "opt":
        return OPTForCausalLM(OPTConfig(ffn_dim=4 * WIDTH, num_hidden_layers=2, word_embed_proj_dim=WIDTH, dropout=0.0,
                                        **common))
    return Qwen2ForCausalLM(Qwen2Config(intermediate_size=2 * WIDTH, num_hidden_layers=3, num_key_value_heads=2,
                                        **common))


def loss_of(model, ids):
    with torch.autocast(ids.device.type, dtype=torch.bfloat16):
        return model(ids, labels=ids, use_cache=False).loss


def cut(text, starts, length, device):
    """Sequences of the text that begin at `starts`."""
    return torch.tensor(np.stack([text[start:start + length] for start in starts]).astype(np.int64), device=device)


def train(model, text, args):
    """The learning rate falls to nothing along a cosine."""
    device = model.device
    rng = np.random.default_rng(args.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.05)
    begin, steps = time.monotonic(), max(1, int(args.tokens / (args.batch * args.length)))
    for step in range(1, steps + 1):
        fall = (1 + math.cos(math.pi * (step - 1) / steps)) / 2
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * fall * min(1, step / WARM_UP)
        ids = cut(text, rng.integers(len(text) - args.length, size=args.batch), args.length, device)
        loss = loss_of(model, ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0 or step == steps:
            print(f"step {step} of {steps}, loss {loss.item():.3f}, {time.monotonic() - begin:.0f} s", flush=True)


@torch.no_grad()
def evaluate(model, text, length):
    starts = np.linspace(0, len(text) - length, VALIDATION, dtype=np.int64)
    return np.mean([loss_of(model, cut(text, [start], length, model.device)).item() for start in starts])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--family", choices=("opt", "qwen2"), required=True)
    parser.add_argument("--tokens", type=float, default=8e6)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    texts = {name: np.fromfile(args.corpus / f"{name}.bin", dtype=np.uint16) for name in ("train", "val")}
    for name, text in texts.items():
        if len(text) <= args.length:
            parser.error(f"{args.corpus / name}.bin: {len(text)} tokens, fewer than one sequence of --length needs")
    torch.manual_seed(args.seed)
    tokenizer = Tokenizer.from_file(str(args.corpus / "tokenizer.json"))
    model = new_model(args.family, tokenizer, args.length)
    model.to("cuda" if torch.cuda.is_available() else "cpu").train()
    print(f"{sum(weight.numel() for weight in model.parameters()):,} parameters")
    train(model, texts["train"], args)
    print(f"loss on held-out text: {evaluate(model.eval(), texts['val'], args.length):.3f}")
    export(model, args.corpus, args.out, args.length)


if __name__ == "__main__":
    main()
