#!/usr/bin/env python3
"""compare_selectors.py HEADWAY MODEL FILE [--context N]: selectors at equal keys, beside exact.

For each selector and share of the context's keys, or of the attention to far ones (--top-p): the
distance from exact (`headway eval divergence`), the far attention that its lists hold (`headway eval
recall`, unless --no-recall), and with --lines the score of retrieval (`headway eval retrieval`).
Prints a table; --svg FILE draws what was measured over the keys read. What is given behind `--` goes
to headway as it is (--device cuda, --kv-encoding int8, ...)."""
import argparse
import json
import math
import subprocess
import sys

COLOURS = ["#1f6f54", "#b4552d", "#3b5ba5", "#8a4f9e", "#7a6a1f", "#444444"]
PANEL_WIDTH, PANEL_HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 470, 330, 70, 80, 30, 50


def keys_of(options, share):
    keys = options.context // share - options.sink - options.recent
    if keys < 1:
        sys.exit(f"1/{share} of {options.context} keys is less than sink and recent keys")
    return keys


def headway(options, what, arguments):
    command = [options.headway, "eval", what, options.model, *arguments, "--json"] + options.more
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def ask(options, arguments):
    """The score of retrieval."""
    return headway(options, "retrieval",
                   ["--lines", str(options.lines), "--length", str(options.context),
                    "--tasks", options.tasks, "--seed", str(options.seed), *arguments])["score"]


def without_selection(arguments):
    """The same but for flags of selection, and their values: exact runs refuse them."""
    left, skipping = [], False
    for argument in arguments:
        if argument.startswith("--"):
            skipping = argument.startswith(("--sparse", "--hip-"))
        if not skipping:
            left.append(argument)
    return left


class Budget:
    """A share of the keys, 1/`share`, or with a `top_p` at most that."""

    def __init__(self, share, top_p=None):
        self.share, self.top_p = share, top_p

    def flags(self, options):
        flags = ["--sparse-keys", str(keys_of(options, self.share)),
                 "--sparse-sink", str(options.sink), "--sparse-recent", str(options.recent)]
        return flags if self.top_p is None else flags + ["--sparse-top-p", str(self.top_p)]

    def name(self, result):
        if self.top_p is None:
            return f"1/{self.share}"
        return f"top {self.top_p:g}: 1/{result['share']:.1f}"


def budgets_of(options):
    shares = sorted(map(int, options.shares.split(",")), reverse=True)
    if options.top_p is None:
        return [Budget(share) for share in shares]
    return [Budget(shares[-1], float(top_p)) for top_p in options.top_p.split(",")]


def measure(options, selector, asked):
    budget = asked.flags(options)
    if selector == "infinitehip":
        budget += ["--hip-outer-keys", "0"]  # all layers read as many
    text = ["--file", options.file, "--context", str(options.context),
            "--tokens", str(options.tokens), "--windows", str(options.windows)]
    result = headway(options, "divergence", [*text, *budget, "--selector", selector])
    if options.recall:
        found = headway(options, "recall", [*text, *budget, "--selectors", selector])
        result["recall"] = found["selectors"][0]["recall"]
        result["oracle"] = found["selectors"][0]["oracle_of_layer"]
    result["share"] = asked.share
    if asked.top_p is not None:
        near = options.sink + options.recent
        far = found["selectors"][0]["far_blocks_read"] * (options.context - near)
        result["share"] = options.context / (near + far)
    if options.lines:
        result["score"] = ask(options, [*budget, "--selector", selector])
    return result


def columns(options, exact_score):
    """(heading, cell) of the table behind selector and keys."""
    def kl(result):
        error = result["kl_standard_error"]
        return f"{result['kl_divergence']:.4f}" + ("" if error is None else f" ± {error:.2g}")
    all_columns = [("mean KL, nats", kl),
                   ("95 % below", lambda r: f"{r['kl_p95']:.4f}"),
                   ("same top token", lambda r: f"{r['same_top']:.3f}"),
                   ("perplexity (exact)",
                    lambda r: f"{r['perplexity']:.3f} ({r['exact_perplexity']:.3f})")]
    if options.recall:
        all_columns.append(("recall of far attention (oracle)",
                            lambda r: f"{r['recall']:.4f} ({r['oracle']:.4f})"))
    if options.lines:
        all_columns.append((f"retrieval (exact {exact_score:.3f})",
                            lambda r: f"{r['score']:.3f}"))
    return all_columns


class Panel:
    """One measure over the keys read, whose axis is logarithmic."""

    def __init__(self, left, shares, low, high, logarithmic):
        """`shares` ascend."""
        self.left, self.shares, self.low, self.high = left, shares, low, high
        self.logarithmic = logarithmic

    def x(self, share):
        span = math.log(self.shares[-1] / self.shares[0]) or 1.0
        width = PANEL_WIDTH - LEFT - RIGHT
        return (self.left + LEFT
                + width * (0.05 + 0.9 * math.log(self.shares[-1] / share) / span))

    def y(self, value):
        at = math.log10(value) if self.logarithmic else value
        return TOP + (PANEL_HEIGHT - TOP - BOTTOM) * (self.high - at) / (self.high - self.low)

    def grid(self):
        count = round(self.high - self.low) if self.logarithmic else 5
        for i in range(count + 1):
            at = self.low + (self.high - self.low) * i / count
            yield 10.0 ** at if self.logarithmic else at


def panel_lines(panel, title, context, curves, marks):
    """`curves` are (name, colour, {share: value}); `marks` a dashed line at a value, or None."""
    right = panel.left + PANEL_WIDTH - RIGHT
    lines = []
    for value in panel.grid():
        at = panel.y(value)
        lines.append(f'<line x1="{panel.left + LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}" '
                     'stroke="#ddd"/>')
        lines.append(f'<text x="{panel.left + LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">'
                     f'{value:.3g}</text>')
    for share in panel.shares:
        lines.append(f'<text x="{panel.x(share):.1f}" y="{PANEL_HEIGHT - BOTTOM + 20}" '
                     f'text-anchor="middle">1/{share}</text>')
    middle = (panel.left + LEFT + right) / 2
    lines.append(f'<text x="{middle:.0f}" y="{PANEL_HEIGHT - 10}" text-anchor="middle">'
                 f'share of {context} keys that a decode step reads</text>')
    lines.append(f'<text x="{middle:.0f}" y="18" text-anchor="middle">{title}</text>')
    if marks is not None:
        at = panel.y(marks)
        lines.append(f'<line x1="{panel.left + LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}" '
                     'stroke="#444" stroke-dasharray="5 4"/>')
        lines.append(f'<text x="{right + 6}" y="{at + 4:.1f}" fill="#444">exact</text>')
    for name, colour, values in curves:
        points = [(panel.x(share), panel.y(value)) for share, value in values.items()]
        lines.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="'
                     + " ".join(f"{px:.1f},{py:.1f}" for px, py in points) + '"/>')
        lines += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3.5" fill="{colour}"/>'
                  for px, py in points]
        end = max(points)
        lines.append(f'<text x="{end[0] + 10:.1f}" y="{end[1] + 4:.1f}" '
                     f'fill="{colour}">{name}</text>')
    return lines


def draw(path, options, found, exact_score):
    """`found`: of each selector, the results of its budgets."""
    everything = [result for results in found.values() for result in results]
    shares = sorted({round(result["share"], 1) for result in everything})

    def curves(key):
        return [(name, COLOURS[i % len(COLOURS)],
                 {result["share"]: result[key] for result in results})
                for i, (name, results) in enumerate(found.items())]

    positive = [r["kl_divergence"] for r in everything if r["kl_divergence"] > 0.0] or [1e-6]
    low, high = math.floor(math.log10(min(positive))), math.ceil(math.log10(max(positive)))
    high = max(high, low + 1)
    floor = 10.0 ** low
    kl = [(name, colour, {share: max(value, floor) for share, value in values.items()})
          for name, colour, values in curves("kl_divergence")]
    panels = [("mean KL to exact, nats", kl, None, (low, high, True))]
    if options.recall:
        oracle = [("oracle", "#999999",
                   {result["share"]: result["oracle"] for result in next(iter(found.values()))})]
        panels.append(("recall of far attention", oracle + curves("recall"), None,
                       (0.0, 1.0, False)))
    if options.lines:
        panels.append((f"retrieval score, {options.lines} lines", curves("score"), exact_score,
                       (0.0, 1.0, False)))
    width = PANEL_WIDTH * len(panels)
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{PANEL_HEIGHT}" '
             'font-family="sans-serif" font-size="12">',
             f'<rect width="{width}" height="{PANEL_HEIGHT}" fill="white"/>']
    for i, (title, of_panel, mark, (least, most, logarithmic)) in enumerate(panels):
        panel = Panel(i * PANEL_WIDTH, shares, least, most, logarithmic)
        lines += panel_lines(panel, title, options.context, of_panel, mark)
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines + ["</svg>", ""]))


def read_options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("headway")
    parser.add_argument("model")
    parser.add_argument("file")
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--windows", type=int, default=1)
    parser.add_argument("--shares", default="16,8,4", help="of the keys, as 1/N")
    parser.add_argument("--top-p", help="shares of the far attention, read with at most the "
                        "largest of --shares of the keys")
    parser.add_argument("--selectors", default="pages,quest")
    parser.add_argument("--sink", type=int, default=64)
    parser.add_argument("--recent", type=int, default=256)
    parser.add_argument("--no-recall", dest="recall", action="store_false")
    parser.add_argument("--lines", type=int, default=0, help="of retrieval; 0: none")
    parser.add_argument("--tasks", default="needle,passkey,place,variables,passage")
    parser.add_argument("--seed", type=int, default=1, help="of the lines")
    parser.add_argument("--svg", help="file for the plot")
    own, more = (sys.argv[1:], [])
    if "--" in own:
        own, more = own[:own.index("--")], own[own.index("--") + 1:]
    options = parser.parse_args(own)
    options.more = more
    if options.top_p is not None and not options.recall:
        parser.error("--top-p needs recall, which says how many keys were read")
    return options


def main():
    options = read_options()
    exact_options = argparse.Namespace(**{**vars(options), "more": without_selection(options.more)})
    exact_score = ask(exact_options, []) if options.lines else None
    cells = columns(options, exact_score)
    print("| selector | keys read | " + " | ".join(heading for heading, _ in cells) + " |")
    print("|---" * (2 + len(cells)) + "|")
    found = {selector: [] for selector in options.selectors.split(",")}
    for selector, results in found.items():
        for budget in budgets_of(options):
            result = measure(options, selector, budget)
            results.append(result)
            print(f"| {selector} | {budget.name(result)} | "
                  + " | ".join(cell(result) for _, cell in cells) + " |", flush=True)
    if options.svg:
        draw(options.svg, options, found, exact_score)


if __name__ == "__main__":
    main()
