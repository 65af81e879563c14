"""Headway's answers and perplexity beside those of Transformers, on the same lines and text.

    compare_quality.py retrieval MODEL LINES.jsonl [--headway H] [--device cpu|cuda] [--dtype float32] [-- HEADWAY OPTIONS]
    compare_quality.py perplexity MODEL TEXT --context N [--windows K] ...

Retrieval prints both scores and the share of outputs that are equal; perplexity prints both and their ratio.
"""
import argparse
import json
import math
import subprocess
import sys


def load(args):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=getattr(torch, args.dtype)).to(args.device).eval()
    return torch, model, AutoTokenizer.from_pretrained(args.model)


def headway(args, command):
    done = subprocess.run([args.headway, "eval", *command, "--json", "--no-progress", *args.options],
                          stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(done.returncode)
    return json.loads(done.stdout)


def retrieval(args):
    ours = headway(args, ["retrieval", args.model, "--jsonl", args.data, "-n", str(args.tokens)])
    torch, model, tokenizer = load(args)
    lines = [json.loads(line) for line in open(args.data) if line.strip()]
    score, equal = 0.0, 0
    with torch.inference_mode():
        for line, mine in zip(lines, ours["results"]):
            turn = [{"role": "user", "content": line["context"] + "\n\n" + line["question"]}]
            prompt = tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
            ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt").input_ids.to(args.device)
            out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=args.tokens, do_sample=False,
                                 pad_token_id=tokenizer.pad_token_id)
            text = tokenizer.decode(out[0, ids.shape[1]:], skip_special_tokens=True)
            score += sum(a in text for a in line["answer"]) / len(line["answer"])
            equal += text == mine["output"]
            if text != mine["output"]:
                print(json.dumps({"id": line.get("id"), "transformers": text, "headway": mine["output"]}), file=sys.stderr)
    n = len(lines)
    print(json.dumps({"lines": n, "headway": ours["score"], "transformers": score / n, "equal_outputs": equal / n,
                      "dtype": args.dtype}))


def perplexity(args):
    windows = ["--windows", str(args.windows)] if args.windows else []
    ours = headway(args, ["perplexity", args.model, "--file", args.data, "--context", str(args.context), *windows])
    torch, model, tokenizer = load(args)
    ids = tokenizer(open(args.data, encoding="utf-8").read(), add_special_tokens=False).input_ids
    bos = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    step = args.context - len(bos)
    total, count = 0.0, 0
    with torch.inference_mode():
        for i, at in enumerate(range(0, len(ids), step)):
            piece = bos + ids[at:at + step]
            if len(piece) < 2 or (args.windows and i >= args.windows):
                break
            x = torch.tensor([piece], device=args.device)
            logits = model(x).logits[0, :-1].float()
            total += torch.nn.functional.cross_entropy(logits, x[0, 1:], reduction="sum").item()
            count += len(piece) - 1
    theirs = math.exp(total / count)
    print(json.dumps({"context": args.context, "tokens": [ours["tokens"], count], "headway": ours["perplexity"],
                      "transformers": theirs, "ratio": ours["perplexity"] / theirs, "dtype": args.dtype}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["retrieval", "perplexity"])
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--headway", default="build/src/cli/headway")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--windows", type=int, default=0)
    parser.add_argument("options", nargs="*", help="behind --: given to headway")
    args = parser.parse_args()
    {"retrieval": retrieval, "perplexity": perplexity}[args.what](args)


if __name__ == "__main__":
    main()
