"""Headway, Transformers and llama.cpp on the CPU, one after the other on the same cores: prefill and decode, one table.

    compare_cpu.py MODEL --headway build/src/cli/headway --contexts 2048,8192,16384 --threads 2
                   [--llama-bench PATH --gguf A.gguf,B.gguf] [--skip transformers] [--out table.json]

MODEL is a folder or, for random weights, a config.json. GGUF files come from make_gguf.py; with several, and with flash
attention on and off, the best of llama.cpp counts. Decode is measured behind a context of the given length.
"""
import argparse
import json
import os
import subprocess
import time


def run_json(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def headway(args, context):
    model = [args.model] if os.path.isdir(args.model) else ["--random-weights", args.model]
    common = model + ["-c", str(context), "-t", str(args.threads), "-r", str(args.repeats), "--json", "--no-progress"]
    prefill = run_json([args.headway, "bench", "prefill"] + common)
    decode = run_json([args.headway, "bench", "decode", "--synthetic-kv", "-n", str(args.tokens)] + common)
    result = {"name": "headway (" + prefill["kernels"] + ")", "peaks": prefill["peaks"]}
    for key, part in (("prefill", prefill), ("decode", decode)):
        result[key] = part["results"][0]["tokens_per_second"]
        result[key + "_roofline"] = part["results"][0]["roofline_share"]
    return result


def llama(args, context):
    best = {"name": "llama.cpp", "prefill": 0.0, "decode": 0.0}
    for gguf in args.gguf.split(","):
        for flash in ("0", "1"):
            rows = run_json([args.llama_bench, "-m", gguf, "-t", str(args.threads), "-fa", flash, "-r",
                             str(args.repeats), "-o", "json", "--no-warmup", "-p", str(context), "-n", "0"])
            best["prefill"] = max(best["prefill"], rows[0]["avg_ts"])
            rows = run_json([args.llama_bench, "-m", gguf, "-t", str(args.threads), "-fa", flash, "-r", "1", "-o",
                             "json", "--no-warmup", "-p", "0", "-n", str(args.tokens), "-d", str(context)])
            best["decode"] = max(best["decode"], rows[0]["avg_ts"])
    return best


def transformers(args, context, dtype):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.set_num_threads(args.threads)
    if os.path.isdir(args.model):
        model = AutoModelForCausalLM.from_pretrained(args.model, dtype=dtype)
    else:
        config = AutoConfig.from_pretrained(args.model)
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.eval()
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, model.config.vocab_size - 8, (1, context), generator=generator)
    prefill, decode = [], []
    with torch.inference_mode():
        for _ in range(args.repeats):
            start = time.perf_counter()
            out = model(ids, use_cache=True, logits_to_keep=1)
            prefill.append(time.perf_counter() - start)
            cache, token = out.past_key_values, out.logits[:, -1:].argmax(-1)
            start = time.perf_counter()
            for _ in range(args.tokens):
                out = model(token, past_key_values=cache, use_cache=True)
                token = out.logits[:, -1:].argmax(-1)
            decode.append(time.perf_counter() - start)
            del out, cache
    middle = lambda times: sorted(times)[len(times) // 2]
    return {"name": f"transformers {str(dtype).split('.')[-1]}", "prefill": context / middle(prefill),
            "decode": args.tokens / middle(decode)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--headway", default="build/src/cli/headway")
    parser.add_argument("--contexts", default="2048,8192,16384")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=32, help="decoded a run")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--llama-bench", default="")
    parser.add_argument("--gguf", default="")
    parser.add_argument("--dtypes", default="bfloat16,float32", help="of Transformers")
    parser.add_argument("--skip", default="")
    parser.add_argument("--out", default="")
    args = parser.parse_args()

    rows = []
    print(f"{'context':>8}  {'engine':<28}{'prefill tok/s':>14}{'of roofline':>12}{'decode tok/s':>14}{'of roofline':>12}")
    for context in (int(c) for c in args.contexts.split(",")):
        results = [headway(args, context)]
        if args.llama_bench:
            results.append(llama(args, context))
        if "transformers" not in args.skip:
            import torch
            results += [transformers(args, context, getattr(torch, name)) for name in args.dtypes.split(",")]
        for r in results:
            share = lambda key: f"{100 * r[key]:.0f} %" if key in r else ""
            print(f"{context:>8}  {r['name']:<28}{r['prefill']:>14.1f}{share('prefill_roofline'):>12}"
                  f"{r['decode']:>14.1f}{share('decode_roofline'):>12}", flush=True)
            rows.append({"context": context, **r})
    if args.out:
        with open(args.out, "w") as file:
            json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
