"""What the peers' runners have in common: arguments, and medians over repetitions as one JSON object."""
import argparse
import json
import statistics
import time


def arguments(doc, threads=True):
    """A parser with what every runner takes; those on a GPU take no threads."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--lengths", required=True, type=lambda text: [int(length) for length in text.split(",")])
    if threads:
        parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--tokens", type=int, default=32, help="decode steps")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20, help="no repetition begins after so many")
    return parser


def repeat(args, measure):
    """What measure() returned, of as many repetitions as the arguments allow."""
    start, results = time.perf_counter(), []
    while len(results) < args.repeats and (not results or time.perf_counter() - start < args.seconds):
        results.append(measure())
    return results


def report(args, measure):
    """Prints medians of measure(lengths, tokens), which returns the seconds of prefill and of decode."""
    measure([min(length, 256) for length in args.lengths], 2)  # warms up
    times = repeat(args, lambda: measure(args.lengths, args.tokens))
    prefill, decode = (statistics.median(column) for column in zip(*times))
    print(json.dumps({"prefill_seconds": prefill, "decode_seconds": decode, "repeats": len(times)}))
