#!/usr/bin/env python3
"""Writes a profile of heads whose budgets are unequal by as much as is asked for.

    scripts/synthetic_profile.py bench/shapes/llama-3-8b.json 0.30 > profile.json

In each layer the shares of the heads are log-normal with that deviation, and their mean is 1. FairKV's
Tab. 2 (how busy ranks are without balance) is met by 0.50 for Llama-3.3-70B, 0.30 for Llama-3-8B and 0.28
for Mistral-24B; src/plan/assignment_test.cc holds them to it. For --assignment-profile, --evict-profile.
"""
import argparse
import json
import math
import random
import subprocess
import sys


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", help="the model's config.json")
    parser.add_argument("deviation", type=float, help="of the logarithms of the shares")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--headway", default="build/src/cli/headway")
    args = parser.parse_args()
    config = json.load(open(args.config))
    layers, heads = config["num_hidden_layers"], config["num_key_value_heads"]
    planned = subprocess.run([args.headway, "plan", args.config, "-c", "1024", "--json"],
                             check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    draw = random.Random(args.seed)
    profile = {"format": "headway head profile", "version": 1,
               "model": {"layers": layers, "kv_heads": heads, "config": json.loads(planned.stdout)["config"]},
               "kind": "importance", "heads": []}
    for _ in range(layers):
        shares = [math.exp(draw.gauss(0.0, args.deviation)) for _ in range(heads)]
        mean = sum(shares) / heads
        profile["heads"].append([share / mean for share in shares])
    json.dump(profile, sys.stdout)


if __name__ == "__main__":
    main()
