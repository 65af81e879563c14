#!/usr/bin/env python3
"""compare_selectors.py HEADWAY MODEL FILE [--context N]: selectors at equal keys, beside exact.

Runs `headway eval divergence` for each selector and share of the context's keys, and prints the
distance from exact as a table; --svg FILE draws it over the keys read. What is given behind `--`
goes to headway as it is (--device cuda, --kv-encoding int8, ...)."""
import argparse
import json
import math
import subprocess
import sys

COLOURS = {"pages": "#1f6f54", "quest": "#b4552d", "infinitehip": "#7a4fa3", "infllm": "#a08020",
           "oracle": "#333333", "oracle-heads": "#888888"}


def measure(options, selector, share):
    keys = options.context // share - options.sink - options.recent
    if keys < 1:
        sys.exit(f"1/{share} of {options.context} keys is less than sink and recent keys")
    command = [options.headway, "eval", "divergence", options.model, "--file", options.file,
               "--context", str(options.context), "--tokens", str(options.tokens),
               "--windows", str(options.windows), "--selector", selector,
               "--sparse-keys", str(keys), "--sparse-sink", str(options.sink),
               "--sparse-recent", str(options.recent), "--json"] + options.more
    if selector == "infinitehip":
        command += ["--hip-outer-keys", "0"]  # all layers read as many
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def draw(path, context, found):
    """Mean KL over keys read, both axes logarithmic."""
    width, height, left, bottom = 560, 340, 70, 50
    shares = sorted({share for _, share in found})
    least = min(result["kl_divergence"] for result in found.values())
    most = max(result["kl_divergence"] for result in found.values())
    low, high = math.floor(math.log10(least)), math.ceil(math.log10(most))

    def x(share):
        span = math.log(shares[-1] / shares[0]) or 1.0
        return left + (width - left - 90) * (0.05 + 0.9 * math.log(shares[-1] / share) / span)

    def y(kl):
        return 20 + (height - bottom - 20) * (high - math.log10(kl)) / (high - low)

    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
             'font-family="sans-serif" font-size="12">',
             f'<rect width="{width}" height="{height}" fill="white"/>']
    for power in range(low, high + 1):
        at = y(10.0 ** power)
        lines.append(f'<line x1="{left}" x2="{width - 90}" y1="{at:.1f}" y2="{at:.1f}" '
                     'stroke="#ddd"/>')
        lines.append(f'<text x="{left - 8}" y="{at + 4:.1f}" text-anchor="end">'
                     f'{10.0 ** power:g}</text>')
    for share in shares:
        lines.append(f'<text x="{x(share):.1f}" y="{height - bottom + 20}" text-anchor="middle">'
                     f'1/{share}</text>')
    lines.append(f'<text x="{(width - 20) / 2:.0f}" y="{height - 10}" text-anchor="middle">'
                 f'share of {context} keys that a decode step reads</text>')
    lines.append(f'<text x="16" y="{height / 2:.0f}" text-anchor="middle" '
                 f'transform="rotate(-90 16 {height / 2:.0f})">mean KL to exact, nats</text>')
    for selector in dict.fromkeys(name for name, _ in found):
        points = [(x(share), y(found[selector, share]["kl_divergence"])) for share in shares]
        colour = COLOURS.get(selector, "#444")
        lines.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="'
                     + " ".join(f"{px:.1f},{py:.1f}" for px, py in points) + '"/>')
        lines += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3.5" fill="{colour}"/>'
                  for px, py in points]
        lines.append(f'<text x="{points[0][0] + 10:.1f}" y="{points[0][1] + 4:.1f}" '
                     f'fill="{colour}">{selector}</text>')
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines + ["</svg>", ""]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("headway")
    parser.add_argument("model")
    parser.add_argument("file")
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--windows", type=int, default=1)
    parser.add_argument("--shares", default="16,8,4", help="of the keys, as 1/N")
    parser.add_argument("--selectors", default="pages,quest")
    parser.add_argument("--sink", type=int, default=64)
    parser.add_argument("--recent", type=int, default=256)
    parser.add_argument("--svg", help="file for the plot")
    own, more = (sys.argv[1:], [])
    if "--" in own:
        own, more = own[:own.index("--")], own[own.index("--") + 1:]
    options = parser.parse_args(own)
    options.more = more
    print("| selector | keys read | mean KL, nats | 95 % below | same top token | "
          "perplexity (exact) |\n|---|---|---|---|---|---|")
    found = {}
    for selector in options.selectors.split(","):
        for share in map(int, options.shares.split(",")):
            result = found[selector, share] = measure(options, selector, share)
            error = result["kl_standard_error"]
            spread = "" if error is None else f" ± {error:.2g}"
            print(f"| {selector} | 1/{share} | {result['kl_divergence']:.4f}{spread} | "
                  f"{result['kl_p95']:.4f} | {result['same_top']:.3f} | "
                  f"{result['perplexity']:.3f} ({result['exact_perplexity']:.3f}) |", flush=True)
    if options.svg:
        draw(options.svg, options.context, found)


if __name__ == "__main__":
    main()
