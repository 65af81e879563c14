"""Headway and Transformers on one NVIDIA GPU, one after the other: prefill, decode and memory, one table.

    compare_gpu.py CONFIG --lengths 1024,8192,32768,131072 [--engines peer,peer-offloaded,headway,headway-offloaded]
                   [--gpu-memory 17GiB] [--batch 1] [--limit 600] [--cells FILE] [--json] [-- HEADWAY OPTIONS]
    compare_gpu.py CONFIG --headinfer [--lengths 10000,20000] [--groups 1,2,4,8,auto] ...
    compare_gpu.py CONFIG --kvpr [--lengths 128+128,256+128,512+32]
                   [--engines peer,peer-offloaded,stream,recompute,headway-offloaded] ...

CONFIG is a config.json, such as bench/shapes/llama-3-8b.json, whose weights are drawn at random, or a model's folder.
Transformers has its cache on the GPU and offloaded. Headway has it where its planner puts it when all of the GPU may be
used, and in host memory alone within --gpu-memory. Decode is measured behind a cache of random keys and values. The
columns "x peer" divide Headway's rate by that of the best peer, for the offloaded row by the best peer that offloads.

With --headinfer the table is that of HeadInfer's Tables 4 and 5 (arXiv 2502.12574, appendix A.1): Headway with its cache in
host memory and each size of head group, and behind each figure the paper's, taken on an RTX 4090 with PCIe 4.

With --kvpr the table is that of KVPR's Tables 3 and 4 (arXiv 2411.17089, appendix A.3), for bench/shapes/opt-6.7b.json and
opt-13b.json: decode of 64 sequences, measured at the mean of the lengths that they have while they grow from a prompt by the
generated tokens (--lengths PROMPT+GENERATED). Headway has its cache in host memory and streams alone, or recomputes a part,
or does what it plans by itself, host attention included. Rows of the paper follow, taken on an A100 with PCIe 4.

Each engine runs in processes of its own, of which none may take longer than --limit seconds; what fails says so in its row.
"GPU GB" is the most that NVML saw in use above what was in use at the start, the driver's context counted, looked at every
20 ms. Contexts over 131,072 are measured once. What is in the file of --cells is not measured again, so that a long table can
be made by several calls, each with some of the --lengths and --engines, and printed by a last one with all of them.
"""
import argparse
import json
import os
import signal
import sys

import papers
from cells import Cells

HERE = os.path.dirname(os.path.abspath(__file__))
LONG = 131072       # over it one repetition, and fewer steps
LONG_TOKENS = 8

DEFAULTS = {"lengths": [1024, 8192, 32768, 131072], "engines": "peer,peer-offloaded,headway,headway-offloaded",
            "gpu_memory": "17GiB", "batch": 1, "tokens": 32, "repeats": 3}
HEADINFER_DEFAULTS = DEFAULTS | {"lengths": papers.HEADINFER_LENGTHS[:7]}
# Few steps, so that the length stays near the mean. PyTorch pins memory in powers of two: in eight steps more of these settings
# no layer's keys grow out of theirs, and no step waits for larger ones.
KVPR_DEFAULTS = {"lengths": [(128, 128), (256, 128), (512, 32)],
                 "engines": "peer,peer-offloaded,stream,recompute,headway-offloaded",
                 "gpu_memory": "40GiB", "batch": 64, "tokens": 24, "peer_tokens": 8, "repeats": 1}


def measured(args, length, tokens):
    """Repetitions and decode steps of a context."""
    return (1, min(tokens, LONG_TOKENS)) if length > LONG else (args.repeats, tokens)


def empty_row(length, engine):
    return {"length": length, "engine": engine, "prefill": None, "decode": None, "gpu_bytes": None, "errors": {}}


def headway(args, cells, length, engine, options):
    repeats, tokens = measured(args, length, args.tokens)
    model = [args.model] if os.path.isdir(args.model) else ["--random-weights", args.model]
    row = empty_row(length, engine)
    for phase in args.phases:
        more = ["--synthetic-kv", "-n", str(tokens)] if phase == "decode" else []
        done = cells.run([args.headway, "bench", phase, *model, "--device", "cuda", "-c", str(length), "--batch",
                          str(args.batch), "-r", str(repeats), *more, *options, *args.options, "--json", "--no-progress"])
        if done["error"] or not done["lines"]:
            row["errors"][phase] = done["error"] or "no result"
        else:
            result = done["lines"][-1]["results"][0]
            row[phase] = result["tokens_per_second"]
            row[phase + "_roofline"] = result["roofline_share"]
            row[phase + "_result"] = result
        row["gpu_bytes"] = max(filter(None, (row["gpu_bytes"], done["gpu_bytes"])), default=None)
    return row


def transformers(args, cells, length, engine, options):
    repeats, tokens = measured(args, length, args.peer_tokens)
    chunk = ["--chunk", str(args.peer_chunk)] if args.peer_chunk else []
    done = cells.run([args.python, os.path.join(HERE, "run_transformers_gpu.py"), args.model, "--lengths", str(length),
                      *options, *chunk, "--batch", str(args.batch), "--phases", ",".join(args.phases), "--tokens", str(tokens),
                      "--repeats", str(repeats)])
    row = empty_row(length, engine) | {"gpu_bytes": done["gpu_bytes"]}
    for phase in args.phases:
        line = next((line for line in done["lines"] if line["phase"] == phase), {})
        row[phase] = line.get("tokens_per_second")
        if line:
            row[phase + "_result"] = line
        if row[phase] is None:
            row["errors"][phase] = line.get("error") or done["error"] or "no result"
    return row


def offloaded(args):
    return ["--placement", "host-only", "--gpu-memory", args.gpu_memory]


def engines(args):
    """Name in the table, function and options of each engine, the peers first, then what others are compared with."""
    host, no_cores = offloaded(args), ["--host-attention", "off"]
    return {"peer": ("Transformers", transformers, []),
            "peer-offloaded": ("Transformers offloaded", transformers, ["--offloaded"]),
            "headway": ("Headway", headway, []),
            "stream": ("Headway, stream alone", headway, [*host, "--recompute", "off", *no_cores]),
            "recompute": ("Headway, recompute", headway, [*host, "--recompute", "auto", *no_cores]),
            "headway-offloaded": ("Headway offloaded", headway, host)}


def rows_of(args, cells, length):
    """The engine's key and row, for each of --engines at a context."""
    for key, (engine, run, options) in engines(args).items():
        if key in args.engines:
            yield key, run(args, cells, length, engine, options)


def quotient(rate, other):
    return rate / other if rate and other else None


def times(ratio):
    return "" if ratio is None else number(ratio)


def number(value):
    """Three digits, and all before the point."""
    if value is None:
        return "-"
    if value >= 10:
        return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"
    return f"{value:.2f}" if value >= 1 else f"{value:.3g}"


def errors(row):
    """What failed in a row and why."""
    told = row["errors"]
    if len(set(told.values())) == 1:
        return f"{' and '.join(told)}: {next(iter(told.values()))}"
    return "; ".join(f"{phase}: {error}" for phase, error in told.items())


def gigabytes(value):
    return "-" if value is None else f"{value * 1e-9:.1f}"


def compare(args, cells, say):
    """Rows of the table, printed as they come."""
    say(f"{'context':>9}  {'engine':<24}{'prefill tok/s':>14}{'of roofline':>12}{'x peer':>8}"
        f"{'decode tok/s':>14}{'of roofline':>12}{'x peer':>8}{'GPU GB':>8}")
    rows = []
    for length in args.lengths:
        peers = {}
        for key, row in rows_of(args, cells, length):
            text = f"{length:>9}  {row['engine']:<24}"
            if key.startswith("peer"):
                peers[key] = row
            against = [] if key in peers else [peers[p] for p in peers if key == "headway" or p == "peer-offloaded"]
            for phase in args.phases:
                best = max((peer[phase] for peer in against if peer[phase]), default=None)
                share, row[phase + "_ratio"] = row.get(phase + "_roofline"), quotient(row[phase], best)
                text += (f"{number(row[phase]):>14}{'' if share is None else f'{100 * share:.0f} %':>12}"
                         f"{times(row[phase + '_ratio']):>8}")
            say(f"{text}{gigabytes(row['gpu_bytes']):>8}  {errors(row)}")
            rows.append(row)
    return rows


def headinfer_figure(phase, group, length):
    """The paper's figure, or None; 2^20 counts as its 1M."""
    rounded = length / 1.048576 if length % (1 << 20) == 0 else length
    figures, lengths = papers.HEADINFER[phase].get(group, []), papers.HEADINFER_LENGTHS
    at = lengths.index(rounded) if rounded in lengths else len(figures)
    return figures[at] if at < len(figures) else None


def headinfer(args, cells, say):
    """Rows of HeadInfer's tables with Headway's figures, printed at the end; a line of progress for each cell."""
    rows = []
    for length in args.lengths:
        for group in args.groups.split(","):
            options = ["--head-group", "0" if group == "auto" else group, *offloaded(args)]
            row = headway(args, cells, length, f"group {group}", options) | {"group": group}
            row |= {f"{phase}_paper": headinfer_figure(phase, group, length) for phase in ("prefill", "decode")}
            rows.append(row)
            print(f"{length} tokens, group {group}: {number(row['prefill'])} and {number(row['decode'])} tok/s"
                  f"{'; ' if row['errors'] else ''}{errors(row)}", file=sys.stderr, flush=True)
    at = {(row["group"], row["length"]): row for row in rows}

    def block(title, groups, cell):
        say(f"{title:<32}" + "".join(f"{length:>16,}" for length in args.lengths))
        for group in groups:
            name = "group " + group if group.isdigit() else group
            say(f"{name:<32}" + "".join(f"{cell(group, length):>16}" for length in args.lengths))

    for phase in ("prefill", "decode"):
        def cell(group, length):
            theirs = headinfer_figure(phase, group, length)
            return f"{number(at.get((group, length), {}).get(phase))} / {'-' if theirs is None else f'{theirs:,}'}"
        block(f"{phase} tok/s, ours / paper", [*args.groups.split(","), "vLLM"], cell)
    block("GPU GB, ours (paper: 17 at 1M)", args.groups.split(","),
          lambda group, length: gigabytes(at[group, length]["gpu_bytes"]))
    for row in rows:
        if row["errors"]:
            say(f"{row['length']} tokens, group {row['group']}, {errors(row)}")
    return rows


def kvpr(args, cells, say):
    """Rows of KVPR's tables, printed as they come, the paper's behind ours."""
    with open(os.path.join(args.model, "config.json") if os.path.isdir(args.model) else args.model) as file:
        config = json.load(file)
    longest = max(map(sum, args.lengths))
    if longest > config.get("max_position_embeddings", longest):
        sys.exit(f"compare_gpu.py: a setting of {longest} tokens, and {args.model} has {config['max_position_embeddings']}"
                 " positions")
    figures = papers.KVPR.get(config["hidden_size"], {}) if config["model_type"] == "opt" and args.batch == 64 else {}
    say(f"decode of {args.batch} sequences at the mean of their lengths; paper: KVPR's, an A100 with PCIe 4")
    say(f"{'setting':>9}  {'engine':<31}{'decode tok/s':>14}{'x stream':>10}{'x offloaded':>13}{'GPU GB':>8}")
    rows = []

    def show(setting, row, at):
        for other in ("stream", "peer-offloaded"):
            row["x_" + other] = quotient(row["decode"], at[other]["decode"]) if other in at else None
        say(f"{setting:>9}  {row['engine']:<31}{number(row['decode']):>14}{times(row['x_stream']):>10}"
            f"{times(row['x_peer-offloaded']):>13}{gigabytes(row['gpu_bytes']):>8}  {errors(row)}")
        rows.append(row | {"setting": setting})

    for prompt, generated in args.lengths:
        setting, length = f"{prompt}+{generated}", prompt + generated // 2
        ours, theirs = {}, {}
        for key, row in rows_of(args, cells, length):
            ours[key] = row
            show(setting, row, ours)
        names = {"peer-offloaded": "paper: Transformers offloaded", "kvpr": "paper: KVPR"}
        for (key, name), (rate, memory) in zip(names.items(), figures.get((prompt, generated), [])):
            theirs[key] = empty_row(length, name) | {"decode": rate, "gpu_bytes": memory * 1e9}
            show(setting, theirs[key], theirs)
    return rows


def contexts(text):
    """Numbers of tokens, and for PROMPT+GENERATED pairs of them."""
    return [tuple(map(int, item.split("+"))) if "+" in item else int(item) for item in text.split(",")]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--headway", default="build-cuda/src/cli/headway")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has torch and transformers")
    parser.add_argument("--lengths", type=contexts, help="contexts; with --kvpr PROMPT+GENERATED")
    parser.add_argument("--engines", help="divided by commas")
    parser.add_argument("--gpu-memory", help="budget of Headway's offloaded rows: 17GiB, with --kvpr 40GiB")
    parser.add_argument("--batch", type=int, help="sequences: 1, with --kvpr 64")
    parser.add_argument("--peer-chunk", type=int, default=0, help="tokens of the peers' prefill steps; 0: all at once")
    parser.add_argument("--tokens", type=int, help=f"decode steps: 32, with --kvpr 24; over {LONG} tokens {LONG_TOKENS}")
    parser.add_argument("--peer-tokens", type=int, help="the peers' decode steps: as many, with --kvpr 8")
    parser.add_argument("--repeats", type=int, help="at most: 3, with --kvpr 1; the peers' runs begin none after 20 seconds")
    parser.add_argument("--limit", type=float, default=600, help="seconds that a process may take")
    parser.add_argument("--gpu", default=os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0],
                        help="index as nvidia-smi counts, or UUID")
    table = parser.add_mutually_exclusive_group()
    table.add_argument("--headinfer", action="store_true")
    table.add_argument("--kvpr", action="store_true")
    parser.add_argument("--groups", default="1,2,4,8,auto", help="head groups of --headinfer")
    parser.add_argument("--cells", default="", help="file of what was measured, read and added to")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    args = parser.parse_args(sys.argv[1:cut])
    args.options = sys.argv[cut + 1:]
    args.phases = ["decode"] if args.kvpr else ["prefill", "decode"]
    for name, value in (KVPR_DEFAULTS if args.kvpr else HEADINFER_DEFAULTS if args.headinfer else DEFAULTS).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if any((isinstance(length, tuple) and len(length) == 2) != args.kvpr for length in args.lengths):
        parser.error("--lengths wants PROMPT+GENERATED with --kvpr, and numbers of tokens without")
    args.peer_tokens = args.peer_tokens or args.tokens
    args.engines = args.engines.split(",")
    if unknown := set(args.engines) - set(engines(args)):
        parser.error(f"--engines does not know {', '.join(unknown)}; there are {', '.join(engines(args))}")
    return args


def main():
    args = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the process at work, too
    cells = Cells(args)
    say = (lambda text: None) if args.json else (lambda text: print(text.rstrip(), flush=True))
    say(f"{cells.gpu.name or 'no NVML: GPU memory is not known'}; Headway offloaded: --placement host-only"
        f" --gpu-memory {args.gpu_memory}")
    rows = (kvpr if args.kvpr else headinfer if args.headinfer else compare)(args, cells, say)
    if args.json:
        print(json.dumps({"gpu": cells.gpu.name, "options": args.options, "batch": args.batch,
                          "gpu_memory": args.gpu_memory, "rows": rows}))


if __name__ == "__main__":
    main()
