#!/usr/bin/env python3
"""compare_speed.py OLD NEW [--device cpu|cuda]: the speed of two builds of headway, by turns.

Runs each row of a table of benchmarks with both programs, OLD, NEW, OLD, NEW, ..., and prints the
medians in tokens a second with their ratio. For changes that must not cost speed."""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LLAMA = ["--random-weights", str(ROOT / "bench/shapes/llama-3-8b.json"), "--device", "cuda"]
OPT = ["--random-weights", str(ROOT / "bench/shapes/opt-6.7b.json"), "--device", "cuda"]
DEMO = [str(ROOT / "models/demo"), "-t", "2"]
AWAY = ["--placement", "host-only", "--gpu-memory", "20GiB"]
BATCH = ["--placement", "host-only", "--batch", "64", "-c", "320", "--gpu-memory", "40GiB"]

ROWS = {
    "cuda": {
        "decode 1K, resident": ["decode"] + LLAMA + ["-c", "1024", "--synthetic-kv", "-n", "64"],
        "decode 128K, resident": ["decode"] + LLAMA + ["-c", "131072", "--synthetic-kv", "-n", "32"],
        "decode 128K, bus": ["decode"] + LLAMA + AWAY + ["-c", "131072", "--synthetic-kv", "-n", "4",
                                                       "--host-attention", "off"],
        "decode 128K, bus and cores": ["decode"] + LLAMA + AWAY + ["-c", "131072", "--synthetic-kv",
                                                                 "-n", "20"],
        "prefill 32K, resident": ["prefill"] + LLAMA + ["-c", "32768"],
        "prefill 32K, offloaded": ["prefill"] + LLAMA + AWAY + ["-c", "32768"],
        "OPT-6.7B, 64 sequences, recompute": ["decode"] + OPT + BATCH + [
            "--synthetic-kv", "-n", "16", "--host-attention", "off"],
    },
    "cpu": {
        "demo, prefill 16K": ["prefill"] + DEMO + ["-c", "16384"],
        "demo, decode 16K": ["decode"] + DEMO + ["-c", "16384", "--synthetic-kv", "-n", "64"],
    },
}


def measure(program, row, machine):
    command = [program, "bench"] + row + ["-r", "1", "--json"] + machine
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)["results"][0]["tokens_per_second"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--device", default="cpu", choices=ROWS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--machine", help="profile to plan for")
    parser.add_argument("--only", default="", help="rows whose name has this")
    options = parser.parse_args()
    machine = ["--machine", options.machine] if options.machine else []
    print("| row | old | new | new / old | spread of old, new |\n|---|---|---|---|---|")
    for name, row in ROWS[options.device].items():
        if options.only not in name:
            continue
        rates = {options.old: [], options.new: []}
        for _ in range(options.rounds):
            for program, found in rates.items():
                found.append(measure(program, row, machine))
        old, new = (statistics.median(found) for found in rates.values())
        spread = ", ".join(f"{(max(found) - min(found)) / statistics.median(found):.1%}"
                           for found in rates.values())
        print(f"| {name} | {old:.4g} | {new:.4g} | {new / old:.3f} | {spread} |", flush=True)


if __name__ == "__main__":
    main()
