"""Trains the demo model: first on sequences of 2K tokens, then on 16K. Writes a Hugging Face folder.

    train.py CORPUS OUT [--short-tokens 573e6] [--long-tokens 225e6] [--seed 1]

CORPUS comes from prepare_corpus.py. The defaults are the demo model's, for one large GPU; README.md has sizes to try
on a CPU.
"""
import argparse
import json
import math
import pathlib
import random
import shutil
import time

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from transformers import LlamaConfig, LlamaForCausalLM

from retrieval_tasks import WEIGHT_ANSWER, TaskMaker

DEMO = pathlib.Path(__file__).resolve().parents[2] / "models" / "demo"
LEARNING_RATE = 3e-3


class Sequences(IterableDataset):
    """Sequences of length + 1 tokens: plain text, or documents with retrieval turns."""

    def __init__(self, corpus, length, task_share, seed):
        self.corpus, self.length, self.task_share, self.seed = corpus, length, task_share, seed

    def __iter__(self):
        worker = get_worker_info()
        rng = random.Random(self.seed * 1000 + (worker.id if worker else 0))
        text = np.memmap(self.corpus / "train.bin", dtype=np.uint16, mode="r")
        tasks = TaskMaker(Tokenizer.from_file(str(self.corpus / "tokenizer.json")), text)
        while True:
            make = self.documents if rng.random() < self.task_share else self.plain
            ids, weights = make(rng, text, tasks, self.length + 1)
            ids = np.array(ids[:self.length + 1], dtype=np.int64)
            yield ids[:-1], ids[1:], np.array(weights[1:self.length + 1], dtype=np.float32)

    @staticmethod
    def plain(rng, text, _, count):
        start = rng.randrange(len(text) - count)
        return text[start:start + count], np.ones(count)

    def documents(self, rng, text, tasks, count):
        """Documents until the sequence is full, the rest plain."""
        ids, weights = [], []
        while len(ids) < count:
            left = count - len(ids)
            if left < min(400, count // 2):
                more = self.plain(rng, text, tasks, left)
            else:
                shortest = min(300, left - 1)
                more = tasks.document(rng, left - 1 if rng.random() < 0.7 else rng.randint(shortest, left - 1))
            ids += list(more[0])
            weights += list(more[1])
        return ids, weights


def new_model(args, tokenizer):
    """Llama with two query heads a KV head; the demo model's width of 384 gives eight and four."""
    kv_heads = max(1, args.width // 96)
    special = tokenizer.token_to_id
    model = LlamaForCausalLM(LlamaConfig(
        hidden_size=args.width, intermediate_size=args.width * 8 // 3, num_hidden_layers=args.layers,
        num_attention_heads=2 * kv_heads, num_key_value_heads=kv_heads, head_dim=64,
        vocab_size=tokenizer.get_vocab_size(), rms_norm_eps=1e-5, rope_theta=500000.0,
        max_position_embeddings=args.long_length, tie_word_embeddings=True,
        initializer_range=0.02, bos_token_id=special("<|begin_of_text|>"),
        eos_token_id=[special("<|end_of_text|>"), special("<|eot_id|>")],
        pad_token_id=special("<|finetune_right_pad_id|>")))
    # What adds to the residual stream starts smaller, the more layers add.
    for name, weight in model.named_parameters():
        if "o_proj" in name or "down_proj" in name:
            weight.data /= math.sqrt(2 * args.layers)
    return model


def new_optimizers(model):
    """Muon for the matrices of layers, AdamW for embeddings and norms."""
    matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n]
    rest = [p for n, p in model.named_parameters() if p.dim() != 2 or "embed" in n]
    return [torch.optim.Muon(matrices, lr=LEARNING_RATE, weight_decay=0.05, momentum=0.95,
                             adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(rest, lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0)]


def weighted_loss(model, ids, targets, weights):
    logits = model(ids, use_cache=False).logits
    losses = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
    return (losses * weights.flatten()).sum() / weights.sum()


@torch.no_grad()
def evaluate(model, corpus, length, device, count=4):
    """Loss on held-out text, and the share of answer tokens that are the likeliest."""
    rng = random.Random(7)
    text = np.fromfile(corpus / "val.bin", dtype=np.uint16)
    tasks = TaskMaker(Tokenizer.from_file(str(corpus / "tokenizer.json")), text)
    losses, right, total = [], 0, 0
    for start in range(0, min(count * length, len(text) - length - 1), length):
        ids = torch.tensor(text[start:start + length + 1].astype(np.int64), device=device)[None]
        losses.append(weighted_loss(model, ids[:, :-1], ids[:, 1:], torch.ones_like(ids[:, 1:])).item())
    for _ in range(count * 6):
        ids, weights = tasks.document(rng, length)
        ids, answer = torch.tensor([ids], device=device), torch.tensor(weights[1:], device=device) == WEIGHT_ANSWER
        best = model(ids[:, :-1], use_cache=False).logits[0].argmax(-1)
        right += (best[answer] == ids[0, 1:][answer]).sum().item()
        total += answer.sum().item()
    return f"loss {np.mean(losses):.3f}, answer tokens right {right / max(1, total):.3f}"


def train_phase(model, optimizers, args, length, batch, tokens, task_share, rates, warmup, seed):
    """Over `tokens` tokens; the learning rate falls from rates[0] to rates[1] along a cosine."""
    device = next(model.parameters()).device
    cuda = device.type == "cuda"
    data = iter(DataLoader(Sequences(args.corpus, length, task_share, seed), batch_size=batch,
                           num_workers=args.workers, pin_memory=cuda))
    compiled = torch.compile(model) if cuda else model
    start, steps = time.monotonic(), max(1, int(tokens / (batch * length)))
    for step in range(1, steps + 1):
        fall = (1 + math.cos(math.pi * (step - 1) / steps)) / 2
        rate = (rates[1] + (rates[0] - rates[1]) * fall) * min(1, step / warmup)
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
        ids, targets, weights = (tensor.to(device, non_blocking=True) for tensor in next(data))
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=cuda):
            loss = weighted_loss(compiled, ids, targets, weights)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if step % args.log_every == 0:
            speed = step * batch * length / (time.monotonic() - start)
            print(f"{length}: step {step} of {steps}, loss {loss.item():.4f}, {speed:,.0f} tokens/s", flush=True)
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=cuda):
        print(f"{length}: {evaluate(model, args.corpus, length, device)}", flush=True)


def export(model, corpus, out, longest):
    """As models/demo: bf16 weights, the corpus's tokenizer, the demo model's chat template."""
    out.mkdir(parents=True, exist_ok=True)
    model.generation_config.do_sample = False
    model.to(torch.bfloat16).save_pretrained(out)
    shutil.copy(corpus / "tokenizer.json", out)
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(DEMO / name, out)
    config = json.loads((out / "tokenizer_config.json").read_text())
    tokenizer = Tokenizer.from_file(str(corpus / "tokenizer.json"))
    config["model_max_length"] = longest
    config["added_tokens_decoder"] = {str(tokenizer.token_to_id(token["content"])): token
                                      for token in config["added_tokens_decoder"].values()}
    (out / "tokenizer_config.json").write_text(json.dumps(config, indent=2))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short-tokens", type=float, default=573e6)
    parser.add_argument("--long-tokens", type=float, default=225e6)
    parser.add_argument("--short-length", type=int, default=2048)
    parser.add_argument("--long-length", type=int, default=16384)
    parser.add_argument("--batch", type=int, default=64, help="short sequences a step; of the long ones an eighth")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--workers", type=int, default=12)
    parser.add_argument("--log-every", type=int, default=50)
    args = parser.parse_args()
    for name in ("train.bin", "val.bin"):
        tokens = (args.corpus / name).stat().st_size // np.dtype(np.uint16).itemsize
        if tokens <= args.long_length + 1:
            parser.error(f"{args.corpus / name}: {tokens} tokens, fewer than one sequence of --long-length needs")
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    model = new_model(args, Tokenizer.from_file(str(args.corpus / "tokenizer.json")))
    model.to("cuda" if torch.cuda.is_available() else "cpu").train()
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
    optimizers = new_optimizers(model)
    train_phase(model, optimizers, args, args.short_length, args.batch, args.short_tokens, 0.35,
                (LEARNING_RATE, 0.3 * LEARNING_RATE), 100, args.seed)
    train_phase(model, optimizers, args, args.long_length, max(1, args.batch // 8), args.long_tokens, 0.5,
                (0.3 * LEARNING_RATE, 0.01 * LEARNING_RATE), 20, args.seed + 1)
    export(model, args.corpus, args.out, args.long_length)


if __name__ == "__main__":
    main()
