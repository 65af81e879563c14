#!/usr/bin/env python3
"""Compares what the planner says with what a machine does.

  check_plans.py predict --headway build-cuda/src/cli/headway
      runs bench over a grid of settings and prints predicted and measured speed, and the errors
      (measured over predicted time, less one): median and worst
  check_plans.py choose --headway build-cuda/src/cli/headway
      runs the plan that Headway chooses for some workloads and then others that could have been
      chosen, and prints how far the choice is from the best of them. The choice runs once before
      what counts, since the first process of a machine may get memory that the system still has to
      find. The best two and the choice run --again times more, by turns, and means count. A run
      takes 7 to 25 seconds; with --budget SECONDS no other plan begins after so many, and what was
      left out is said

Both want a GPU of 80 GB or more, and `headway probe --device cuda` before: machines of one kind differ in
what their cores read. --only NAME picks settings whose name contains NAME.
"""
import argparse
import itertools
import json
import signal
import statistics
import subprocess
import sys
import time

LLAMA = "bench/shapes/llama-3-8b.json"
OPT = "bench/shapes/opt-6.7b.json"
OPT13 = "bench/shapes/opt-13b.json"
HOST_ONLY = "--placement host-only"

# Name, kind of bench, shape, contexts, further options. KVPR's settings are batches of 64 at the mean
# lengths of 128 + 128, 256 + 128 and 512 + 32 tokens.
KVPR = f"{HOST_ONLY} --batch 64 -n 4"
SETTLED = "-n 24"  # steps after which the host's share has settled
SETTINGS = [
    ("decode, KVPR, 6.7B, stream alone", "decode", OPT, "192,320,528", f"{KVPR} --recompute off --host-attention off"),
    ("decode, KVPR, 6.7B, recompute", "decode", OPT, "192,320,528", f"{KVPR} --host-attention off"),
    ("decode, KVPR, 6.7B", "decode", OPT, "192,320,528", f"{HOST_ONLY} --batch 64 {SETTLED}"),
    ("decode, resident", "decode", LLAMA, "1024,8192,32768,131072", ""),
    ("decode, batches, resident", "decode", LLAMA, "2048+2048+2048+2048,16384+8192+4096", ""),
    ("decode, nothing resident, bus alone", "decode", LLAMA, "32768,131072",
     f"{HOST_ONLY} --gpu-memory 20GiB --host-attention off -n 2"),
    ("decode, nothing resident", "decode", LLAMA, "32768,131072,524288", f"{HOST_ONLY} --gpu-memory 20GiB {SETTLED}"),
    ("decode, 24 GiB", "decode", LLAMA, "131072", f"--gpu-memory 24GiB {SETTLED}"),
    ("prefill, resident", "prefill", LLAMA, "2048,8192,32768", ""),
    ("prefill, nothing resident", "prefill", LLAMA, "8192,32768", f"{HOST_ONLY} --gpu-memory 18GiB"),
    ("prefill, last chunk, nothing resident", "prefill", LLAMA, "65536,131072",
     f"{HOST_ONLY} --gpu-memory 18GiB --synthetic-kv"),
    ("decode, int8, bus alone", "decode", LLAMA, "131072",
     f"{HOST_ONLY} --gpu-memory 20GiB --host-attention off -n 2 --kv-encoding int8"),
    ("decode, int4, bus alone", "decode", LLAMA, "131072",
     f"{HOST_ONLY} --gpu-memory 20GiB --host-attention off -n 2 --kv-encoding int4"),
    ("decode, KVPR, 13B, stream alone", "decode", OPT13, "320", f"{KVPR} --recompute off --host-attention off"),
    ("decode, KVPR, 13B, recompute", "decode", OPT13, "320", f"{KVPR} --host-attention off"),
    ("decode, weights streamed, stream alone", "decode", OPT, "256",
     f"{HOST_ONLY} --batch 256 -n 4 --gpu-layers 0 --host-attention off --recompute off"),
    ("decode, weights streamed, recompute", "decode", OPT, "256",
     f"{HOST_ONLY} --batch 256 -n 4 --gpu-layers 0 --host-attention off"),
]

# Name, kind of bench, shape, context, options of the workload, and the grids of choices that are tried, the likeliest first,
# a dozen with the plan that is chosen. KVPR's has steps enough for the cores' share to settle. What recomputes everything
# leaves the cores nothing.
WORKLOADS = [
    ("decode, KVPR, 6.7B", "decode", OPT, "320", f"{HOST_ONLY} --batch 64 -n 24",
     [{"--recompute": ["0.5", "0.4", "0.6", "0.3", "0.7", "off"], "--host-attention": ["auto"]},
      {"--recompute": ["0.5", "off"], "--host-attention": ["0.6", "off"]},
      {"--recompute": ["1"], "--host-attention": ["off"]}]),
    ("decode at 128K, nothing resident", "decode", LLAMA, "131072",
     f"{HOST_ONLY} --gpu-memory 20GiB {SETTLED}",
     [{"--host-attention": ["0.7", "0.8", "0.6", "0.5", "off"], "--head-group": ["1", "8"]}]),
    ("decode at 128K, 24 GiB", "decode", LLAMA, "131072", f"--gpu-memory 24GiB {SETTLED}",
     [{"--host-attention": ["0.7", "0.5", "off"], "--segment": ["8192", "32768"]}]),
    ("prefill of 32K, nothing resident", "prefill", LLAMA, "32768", f"{HOST_ONLY} --gpu-memory 18GiB",
     [{"--chunk": ["8192", "4096", "2048"], "--head-group": ["8", "4", "1"]}]),
]


def bench(args, kind, shape, contexts, options):
    """The results of one bench, or None where it failed."""
    command = [args.headway, "bench", kind, "--random-weights", shape, "--device", "cuda", "--json", "--no-progress",
               "-c", contexts, "-r", str(args.repetitions), *options.split()]
    if kind == "decode":
        command.append("--synthetic-kv")
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        print(f"  failed: {' '.join(command)}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    return json.loads(done.stdout)["results"]


def name_of(lengths):
    text = f"{lengths[0]:,}" if len(set(lengths)) == 1 else "+".join(f"{length:,}" for length in lengths)
    return text if len(set(lengths)) > 1 or len(lengths) == 1 else f"{len(lengths)} × {text}"


def predict(args):
    errors = []
    print("| setting | context | predicted tok/s | measured | error |\n|---|---|---|---|---|")
    for name, kind, shape, contexts, options in SETTINGS:
        if args.only not in name:
            continue
        for result in bench(args, kind, shape, contexts, options) or []:
            predicted, measured = result["predicted_seconds"], result["median_seconds"]
            errors.append(measured / predicted - 1)
            print(f"| {name} | {name_of(result['lengths'])} | {result['tokens'] / predicted:,.4g} "
                  f"| {result['tokens'] / measured:,.4g} | {100 * errors[-1]:+.1f} % |", flush=True)
    sizes = [abs(error) for error in errors]
    if sizes:
        print(f"\n{len(sizes)} settings: median error {100 * statistics.median(sizes):.1f} %, "
              f"worst {100 * max(sizes):.1f} %")


def choose(args):
    start, left_out = time.monotonic(), 0
    print("| workload | plan | tok/s | of the best | runs | predicted |\n|---|---|---|---|---|---|")
    for name, kind, shape, context, options, grids in WORKLOADS:
        if args.only not in name:
            continue
        plans = [""] + [" ".join(f"{flag} {value}" for flag, value in zip(choices, values))
                        for choices in grids for values in itertools.product(*choices.values())]
        runs, predicted = {}, {}

        def run(plan):
            results = bench(args, kind, shape, context, f"{options} {plan}")
            if results:
                runs.setdefault(plan, []).append(results[0]["tokens"] / results[0]["median_seconds"])
                predicted[plan] = results[0]["tokens"] / results[0]["predicted_seconds"]

        bench(args, kind, shape, context, options)
        for at, plan in enumerate(plans):
            if args.budget and time.monotonic() - start > args.budget:
                left_out += len(plans) - at
                break
            run(plan)

        def ranked():
            return sorted(runs, key=lambda plan: -statistics.mean(runs[plan]))

        # What two runs differ by is not the plan's: the best and the choice again, by turns.
        again = list(dict.fromkeys([*ranked()[:2], ""])) if len(runs) > 1 else []
        for plan in again * args.again:
            run(plan)
        for plan in ranked():
            speed = statistics.mean(runs[plan])
            print(f"| {name} | {plan or 'chosen'} | {speed:,.4g} "
                  f"| {100 * speed / statistics.mean(runs[ranked()[0]]):.1f} % "
                  f"| {', '.join(f'{rate:,.4g}' for rate in runs[plan])} | {predicted[plan]:,.4g} |", flush=True)
    if left_out:
        print(f"\n{left_out} plans left out: over {args.budget:g} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["predict", "choose"])
    parser.add_argument("--headway", default="build-cuda/src/cli/headway")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--budget", type=float, default=0, help="seconds after which choose begins no run; 0: no limit")
    parser.add_argument("--again", type=int, default=1, help="more runs of the best two plans and the chosen one")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the bench at work, too
    {"predict": predict, "choose": choose}[args.what](args)


if __name__ == "__main__":
    main()
