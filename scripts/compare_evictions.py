#!/usr/bin/env python3
"""compare_evictions.py HEADWAY MODEL: methods that evict tokens, task by task, beside exact.

Runs `headway eval retrieval` with each method of --evict and budget over the same made-up lines,
and prints a table as that of FairKV (Tab 3): of each budget a row a method, a column a task, and
the mean over the tasks. `headkv` needs budgets of heads and is left out without --profile FILE (see
docs/decisions/eviction.md). What is given behind `--` goes to headway as it is."""
import argparse
import json
import subprocess
import sys

METHODS = ["streamingllm", "h2o", "snapkv", "pyramidkv", "ada-snapkv", "ada-pyramidkv", "headkv",
           "critical-snapkv", "critical-ada-snapkv", "defensivekv", "expectedattention", "kvzip"]


def scores(options, flags):
    """Of each task, in the order of the lines."""
    command = [options.headway, "eval", "retrieval", options.model, "--tasks", options.tasks,
               "--lines", str(options.lines), "--length", str(options.length),
               "--seed", str(options.seed), *flags, "--json"] + options.more
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return {group["labels"]["task"]: group["score"] for group in json.loads(done.stdout)["groups"]}


def print_row(name, of_tasks):
    mean = sum(of_tasks.values()) / len(of_tasks)
    cells = [f"{score:.2f}" for score in of_tasks.values()] + [f"{mean:.3f}"]
    print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("headway")
    parser.add_argument("model")
    parser.add_argument("--tasks", default="ruler")
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--lines", type=int, default=64, help="of all tasks together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--budgets", default="512,1024")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--profile", help="budgets of heads for headkv")
    own, more = sys.argv[1:], []
    if "--" in own:
        own, more = own[:own.index("--")], own[own.index("--") + 1:]
    options = parser.parse_args(own)
    options.more = more
    exact = scores(options, [])
    print("| budget, method | " + " | ".join(exact) + " | mean |")
    print("|---|" + "---|" * (len(exact) + 1))
    print_row("exact", exact)
    for budget in options.budgets.split(","):
        for method in options.methods.split(","):
            flags = ["--evict", method, "--evict-budget", budget]
            if method == "headkv":
                if options.profile is None:
                    continue
                flags += ["--evict-profile", options.profile]
            print_row(f"{budget}, `{method}`", scores(options, flags))


if __name__ == "__main__":
    main()
