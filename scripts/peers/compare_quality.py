"""Headway's answers and perplexity beside those of Transformers, or of Headway itself, on the same lines and text.

    compare_quality.py retrieval MODEL LINES.jsonl [--headway H] [--device cpu|cuda] [--dtype float32] [-- HEADWAY OPTIONS]
    compare_quality.py perplexity MODEL TEXT --context N [--windows K] ...
    compare_quality.py retrieval MODEL LINES.jsonl --beside "--device cpu" -- --device cuda --gpu-memory 2GiB

Retrieval prints both scores and the share of outputs that are equal; perplexity prints both and their ratio. --device and
--dtype are those of Transformers; with --beside it is Headway with these options that Headway is compared with.
"""
import argparse
import json
import math
import shlex
import subprocess
import sys


def load(args):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=getattr(torch, args.dtype)).to(args.device).eval()
    return torch, model, AutoTokenizer.from_pretrained(args.model)


def headway(args, options, command):
    done = subprocess.run([args.headway, "eval", *command, "--json", "--no-progress", *options],
                          stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(done.returncode)
    return json.loads(done.stdout)


def transformers_outputs(args):
    torch, model, tokenizer = load(args)
    with torch.inference_mode():
        for line in (json.loads(line) for line in open(args.data) if line.strip()):
            turn = [{"role": "user", "content": line["context"] + "\n\n" + line["question"]}]
            prompt = tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
            ids = tokenizer(prompt, add_special_tokens=False, return_tensors="pt").input_ids.to(args.device)
            out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=args.tokens, do_sample=False,
                                 pad_token_id=tokenizer.pad_token_id)
            text = tokenizer.decode(out[0, ids.shape[1]:], skip_special_tokens=True)
            yield {"id": line.get("id"), "output": text, "score": sum(a in text for a in line["answer"]) / len(line["answer"])}


def retrieval(args):
    command = ["retrieval", args.model, "--jsonl", args.data, "-n", str(args.tokens)]
    ours = headway(args, args.options, command)
    if args.beside is None:
        theirs = list(transformers_outputs(args))
    else:
        theirs = headway(args, shlex.split(args.beside), command)["results"]
    if len(theirs) != len(ours["results"]):
        sys.exit(f"{len(ours['results'])} lines here and {len(theirs)} there")
    equal = 0
    for mine, other in zip(ours["results"], theirs):
        equal += mine["output"] == other["output"]
        if mine["output"] != other["output"]:
            print(json.dumps({"id": other["id"], "peer": other["output"], "headway": mine["output"]}), file=sys.stderr)
    n = len(theirs)
    print(json.dumps({"lines": n, "headway": ours["score"], "peer": sum(other["score"] for other in theirs) / n,
                      "equal_outputs": equal / n, "peer_is": peer(args)}))


def peer(args):
    return f"Transformers in {args.dtype}" if args.beside is None else "Headway " + args.beside


def transformers_perplexity(args):
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
    return {"perplexity": math.exp(total / count), "tokens": count}


def perplexity(args):
    windows = ["--windows", str(args.windows)] if args.windows else []
    command = ["perplexity", args.model, "--file", args.data, "--context", str(args.context), *windows]
    ours = headway(args, args.options, command)
    theirs = transformers_perplexity(args) if args.beside is None else headway(args, shlex.split(args.beside), command)
    print(json.dumps({"context": args.context, "tokens": [ours["tokens"], theirs["tokens"]], "headway": ours["perplexity"],
                      "peer": theirs["perplexity"], "ratio": ours["perplexity"] / theirs["perplexity"], "peer_is": peer(args)}))


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
    parser.add_argument("--beside", help="options of the Headway to compare with, instead of Transformers")
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    args = parser.parse_args(sys.argv[1:cut])
    args.options = sys.argv[cut + 1:]
    {"retrieval": retrieval, "perplexity": perplexity}[args.what](args)


if __name__ == "__main__":
    main()
