"""Headway, llama.cpp and Transformers on the CPU, one after the other on the same cores: prefill and decode, one table.

    compare_cpu.py MODEL --contexts 2048,8192,16384 --threads 2 [--unequal] [--gguf A.gguf,B.gguf]
                   [--dtypes bfloat16,float32] [--cpu-isa amx] [--out table.json]

MODEL is a folder or, for random weights, a config.json. With --unequal each context L is a batch of four sequences of L,
3L/4, L/2 and L/4 tokens. GGUF files come from make_gguf.py; with several, and with flash attention on and off, the best
of llama.cpp counts for prefill and for decode. Decode is measured behind the whole context. An empty --gguf or --dtypes
leaves that engine out.
"""
import argparse
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def run_json(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def headway(args, lengths):
    model = [args.model] if os.path.isdir(args.model) else ["--random-weights", args.model]
    common = model + ["-c", "+".join(map(str, lengths)), "-t", str(args.threads), "-r", str(args.repeats), "--cpu-isa",
                      args.cpu_isa, "--json", "--no-progress"]
    prefill = run_json([args.headway, "bench", "prefill"] + common)
    decode = run_json([args.headway, "bench", "decode", "--synthetic-kv", "-n", str(args.tokens)] + common)
    result = {"name": "Headway", "kernels": prefill["kernels"], "peaks": prefill["peaks"]}
    for key, part in (("prefill", prefill), ("decode", decode)):
        result[key] = part["results"][0]["tokens_per_second"]
        result[key + "_roofline"] = part["results"][0]["roofline_share"]
    return result


def peer(args, script, lengths, *options):
    """(prefill, decode) in tokens a second."""
    done = run_json([sys.executable, os.path.join(HERE, script), *options, "--lengths", ",".join(map(str, lengths)),
                     "--threads", str(args.threads), "--tokens", str(args.tokens), "--repeats", str(args.repeats)])
    return sum(lengths) / done["prefill_seconds"], len(lengths) * args.tokens / done["decode_seconds"]


def llama(args, lengths):
    rates = [peer(args, "run_llama_cpp.py", lengths, gguf, *(["--flash"] if flash == "on" else []))
             for gguf in args.gguf.split(",") for flash in args.flash.split(",")]
    return {"name": "llama.cpp", "prefill": max(r[0] for r in rates), "decode": max(r[1] for r in rates), "all": rates}


def transformers(args, lengths, dtype):
    prefill, decode = peer(args, "run_transformers.py", lengths, args.model, "--dtype", dtype)
    return {"name": f"Transformers {dtype}", "prefill": prefill, "decode": decode}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--headway", default="build/src/cli/headway")
    parser.add_argument("--contexts", default="2048,8192,16384")
    parser.add_argument("--unequal", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=32, help="decode steps a run")
    parser.add_argument("--repeats", type=int, default=3, help="at most; the peers' runs begin none after 20 seconds")
    parser.add_argument("--cpu-isa", default="auto")
    parser.add_argument("--gguf", default="")
    parser.add_argument("--flash", default="off,on", help="flash attention of llama.cpp")
    parser.add_argument("--dtypes", default="bfloat16,float32", help="of Transformers")
    parser.add_argument("--out", default="")
    args = parser.parse_args()

    rows = []
    print(f"{'context':>8}  {'engine':<24}{'prefill tok/s':>14}{'of roofline':>12}{'decode tok/s':>14}{'of roofline':>12}")
    for context in (int(c) for c in args.contexts.split(",")):
        lengths = [context * quarters // 4 for quarters in (4, 3, 2, 1)] if args.unequal else [context]
        runs = [lambda: headway(args, lengths)]
        if args.gguf:
            runs.append(lambda: llama(args, lengths))
        runs += [lambda dtype=dtype: transformers(args, lengths, dtype) for dtype in args.dtypes.split(",") if dtype]
        for run in runs:
            r = run()
            share = lambda key: f"{100 * r[key]:.0f} %" if key in r else ""
            print(f"{context:>8}  {r['name']:<24}{r['prefill']:>14.1f}{share('prefill_roofline'):>12}"
                  f"{r['decode']:>14.1f}{share('decode_roofline'):>12}", flush=True)
            rows.append({"lengths": lengths, **r})
            if args.out:
                with open(args.out, "w") as file:
                    json.dump(rows, file, indent=1)


if __name__ == "__main__":
    main()
