#!/usr/bin/env python3
"""heat_map.py HEADWAY [--svg FILE]: what the host's cores gain over the bus alone (HGCA, Fig. 10).

Decodes with so many keys of a KV head on the GPU, so many beside it in host memory, and so many
sequences; once with `--host-attention auto`, once with `off`. Prints a table of tokens a second and
their ratio; the ratios are drawn into FILE, a batch a panel. Needs a GPU."""
import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHAPE = ROOT / "bench/shapes/llama-3-8b.json"
KEY_BYTES = 2 * 32 * 8 * 128 * 2  # of a token in the shape's cache
STAGING = 160 << 20  # room for buffers, so that about the keys asked for stay on the GPU


def numbers(text):
    return [int(part) for part in text.split(",")]


def measure(options, on_gpu, beside, batch, cores):
    """Tokens a second for each of `beside`, and the tokens of a sequence that stayed on the GPU."""
    contexts = ",".join(str(on_gpu + keys) for keys in beside)
    command = [options.headway, "bench", "decode", "--random-weights", str(SHAPE), "--device", "cuda",
               "--synthetic-kv", "-c", contexts, "--batch", str(batch), "-n", str(options.steps),
               "-r", "1", "--host-attention", cores, "--json",
               "--kv-memory", str(on_gpu * batch * KEY_BYTES + STAGING)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return [(result["tokens_per_second"], result["kv_bytes"]["device"] // KEY_BYTES // batch)
            for result in json.loads(done.stdout)["results"]]


def color(ratio, largest):
    """From white, for 1, to red."""
    share = max(0.0, min(1.0, (ratio - 1.0) / max(largest - 1.0, 1e-9)))
    return f"rgb(255,{int(245 - 175 * share)},{int(235 - 200 * share)})"


def draw(path, options, ratios):
    """A panel a batch: keys beside the GPU to the right, keys on it upward."""
    cell, left, top = 74, 70, 46
    width = left + len(options.beside) * cell + 16
    height = top + len(options.on_gpu) * 44 + 46
    largest = max(ratios.values())
    parts = []
    for panel, batch in enumerate(options.batches):
        x0 = panel * width
        parts.append(f'<text x="{x0 + left}" y="24" font-weight="bold">batch {batch}</text>')
        for row, on_gpu in enumerate(reversed(options.on_gpu)):
            y = top + row * 44
            parts.append(f'<text x="{x0 + left - 8}" y="{y + 27}" text-anchor="end">{on_gpu}</text>')
            for column, beside in enumerate(options.beside):
                ratio = ratios[batch, on_gpu, beside]
                x = x0 + left + column * cell
                parts.append(f'<rect x="{x}" y="{y}" width="{cell - 2}" height="42" '
                             f'fill="{color(ratio, largest)}"/>'
                             f'<text x="{x + cell // 2}" y="{y + 27}" text-anchor="middle">'
                             f'{ratio:.2f}</text>')
        for column, beside in enumerate(options.beside):
            parts.append(f'<text x="{x0 + left + column * cell + cell // 2}" '
                         f'y="{height - 26}" text-anchor="middle">{beside}</text>')
        parts.append(f'<text x="{x0 + left}" y="{height - 6}">keys in host memory</text>'
                     f'<text x="{x0 + 6}" y="{top - 8}">keys on the GPU</text>')
    total = width * len(options.batches)
    path.write_text(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {height}" '
                    f'width="{total}" height="{height}" font-family="sans-serif" font-size="14">'
                    f'<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n')


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("headway")
    parser.add_argument("--on-gpu", type=numbers, default=[1024, 4096, 16384])
    parser.add_argument("--beside", type=numbers, default=[1024, 4096, 16384])
    parser.add_argument("--batches", type=numbers, default=[1, 8])
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--svg", type=pathlib.Path)
    options = parser.parse_args()
    print("| batch | keys on the GPU | beside it | bus alone | with cores | ratio |\n"
          "|---|---|---|---|---|---|")
    ratios = {}
    for batch in options.batches:
        for on_gpu in options.on_gpu:
            with_cores = measure(options, on_gpu, options.beside, batch, "auto")
            alone = measure(options, on_gpu, options.beside, batch, "off")
            for beside, (fast, there), (slow, _) in zip(options.beside, with_cores, alone):
                ratios[batch, on_gpu, beside] = fast / slow
                print(f"| {batch} | {there} | {max(0, on_gpu + beside - there)} | {slow:.1f} | {fast:.1f} "
                      f"| {fast / slow:.2f} |", flush=True)
    if options.svg:
        draw(options.svg, options, ratios)


if __name__ == "__main__":
    main()
