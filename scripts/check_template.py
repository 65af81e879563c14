#!/usr/bin/env python3
"""Compares Headway's chat templates with jinja2 on random templates.

    scripts/check_template.py BUILD/src/text/template/template_render [--seed N] [--count N]

Prints every difference and exits with 1 when there is one. `--file F` compares the cases of a JSON
list of {"template", "context"} instead.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings

import template_oracle
import template_random


def render_all(tool, cases):
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        json.dump(cases, file)
        file.flush()
        environment = {**os.environ, "TZ": "UTC"}
        done = subprocess.run([tool, file.name], capture_output=True, check=True, env=environment)
    return json.loads(done.stdout)


def same(ours, theirs):
    if re.search(r"(<|&lt;)([^<>]* at 0x|built-in|Macro|class|function|bound)", theirs.get("output", "")):
        return True  # shows addresses
    if "output" in ours or "output" in theirs:
        return ours.get("output") == theirs.get("output")
    return "raised" not in theirs or ours["error"] == theirs["raised"]


def known_limit(ours):
    """Errors that only Headway has, by design: integers beyond 64 bits, complex numbers; and slices
    of constants that have none, which jinja2 takes for undefined when it folds them."""
    return ours.get("code") == "unsupported" or "cannot be sliced" in ours.get("error", "")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tool")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--file")
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # of Python about what jinja2 makes of the templates
    if args.file:
        with open(args.file, encoding="utf-8") as file:
            cases = json.load(file)
    else:
        cases = template_random.cases(args.seed, args.count)
    results = render_all(args.tool, cases)
    different = limits = errors = 0
    for case, ours in zip(cases, results):
        theirs = template_oracle.render(case["template"], case["context"])
        errors += "error" in theirs
        if same(ours, theirs):
            continue
        if known_limit(ours) and not args.file:
            limits += 1
            continue
        different += 1
        print(f"--- {case['template']}\n  jinja2:  {theirs}\n  headway: {ours}")
    print(f"seed {args.seed}: {len(cases)} templates, {errors} errors in jinja2, {limits} beyond "
          f"Headway's limits, {different} differences")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
