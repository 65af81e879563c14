"""Headway and Transformers on one NVIDIA GPU, one after the other, batch 1: prefill, decode and memory, one table.

    compare_gpu.py CONFIG --lengths 1024,8192,32768,131072 [--engines peer,peer-offloaded,headway,headway-offloaded]
                   [--gpu-memory 17GiB] [--limit 600] [--cells FILE] [--json] [-- HEADWAY OPTIONS]
    compare_gpu.py CONFIG --headinfer [--lengths 10000,20000] [--groups 1,2,4,8,auto] ...

CONFIG is a config.json, such as bench/shapes/llama-3-8b.json, whose weights are drawn at random, or a model's folder.
Transformers has its cache on the GPU and offloaded. Headway has it where its planner puts it when all of the GPU may be
used, and in host memory alone within --gpu-memory. Decode is measured behind a cache of random keys and values. The
columns "x peer" divide Headway's rate by that of the best peer, for the offloaded row by the best peer that offloads.

With --headinfer the table is that of HeadInfer's Tables 4 and 5 (arXiv 2502.12574, appendix A.1): Headway with its cache in
host memory and each size of head group, and behind each figure the paper's, taken on an RTX 4090 with PCIe 4.

Each engine runs in processes of its own, of which none may take longer than --limit seconds; what fails says so in its row.
"GPU GB" is the most that NVML saw in use above what was in use at the start, the driver's context counted, looked at every
20 ms. Contexts over 131,072 are measured once. What is in the file of --cells is not measured again, so that a long table can
be made by several calls.
"""
import argparse
import ctypes
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
LONG = 131072       # over it one repetition, and fewer steps
LONG_TOKENS = 8
LOOK_SECONDS = 0.02

PAPER_LENGTHS = [10_000, 20_000, 40_000, 100_000, 200_000, 400_000, 1_000_000, 2_000_000, 4_000_000]
PAPER = {  # Tables 4 and 5, tokens a second
    "prefill": {
        "vLLM": [9151, 7847],
        "1": [8982, 7781, 6060, 3476, 2121, 1196],
        "2": [8910, 7646, 5784, 3455, 2100, 1190, 516],
        "4": [8910, 7516, 5570, 3442, 2100, 1180, 516, 264],
        "8": [8700, 7221, 5405, 3365, 2079, 1176, 511, 263, 155],
        "auto": [8982, 7781, 5906, 3476, 2121, 1196, 516, 264, 155],
    },
    "decode": {
        "vLLM": [52, 49],
        "1": [12, 7, 3.7, 1.6, 0.79, 0.4],
        "2": [11, 6, 3.7, 1.5, 0.78, 0.4, 0.16],
        "4": [10, 6, 3.4, 1.5, 0.78, 0.4, 0.16, 0.07],
        "8": [8, 5, 3.1, 1.4, 0.77, 0.39, 0.16, 0.07, 0.04],
        "auto": [12, 7, 3.7, 1.6, 0.79, 0.4, 0.16, 0.07, 0.04],
    },
}


class Gpu:
    """NVML's view of one GPU; without NVML, none."""

    class Memory(ctypes.Structure):
        _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]

    def __init__(self, which):
        self.handle, self.name = ctypes.c_void_p(), None
        try:
            self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            self.nvml = None
            return
        if which.isdigit():
            found = self.nvml.nvmlInit_v2() or self.nvml.nvmlDeviceGetHandleByIndex_v2(int(which), ctypes.byref(self.handle))
        else:
            found = self.nvml.nvmlInit_v2() or self.nvml.nvmlDeviceGetHandleByUUID(which.encode(), ctypes.byref(self.handle))
        if found != 0:
            self.nvml = None
            return
        name = ctypes.create_string_buffer(96)
        self.nvml.nvmlDeviceGetName(self.handle, name, len(name))
        self.name = name.value.decode()
        self.start = self.used()

    def used(self):
        memory = self.Memory()
        self.nvml.nvmlDeviceGetMemoryInfo(self.handle, ctypes.byref(memory))
        return memory.used

    def watch(self, done, peak):
        """Puts the most that was in use above the start into peak[0] until done is set."""
        while self.nvml is not None:
            peak[0] = max(peak[0] or 0, self.used() - self.start)
            if done.wait(LOOK_SECONDS):
                return


class Cells:
    """Outcomes of commands, kept in a file where one is given."""

    def __init__(self, args):
        self.args, self.gpu, self.known = args, Gpu(args.gpu), {}
        self.environment = os.environ | {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": args.gpu}
        if args.cells and os.path.exists(args.cells):
            with open(args.cells) as file:
                self.known = json.load(file)

    def run(self, command):
        """{"lines": JSON objects printed, "error": "" or why it failed, "gpu_bytes": most in use or None, "limit": seconds}."""
        key = shlex.join(command)
        known = self.known.get(key)
        if not known or known["error"].startswith("over ") and known["limit"] < self.args.limit:
            self.known[key] = self.measure(command)
            if self.args.cells:
                with open(self.args.cells, "w") as file:
                    json.dump(self.known, file, indent=1)
        return self.known[key]

    def measure(self, command):
        done, peak = threading.Event(), [None]
        watcher = threading.Thread(target=self.gpu.watch, args=(done, peak))
        watcher.start()
        error, out, errors = "", "", ""
        try:
            child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=self.environment,
                                     start_new_session=True)
            try:
                out, errors = child.communicate(timeout=self.args.limit)
            except BaseException as stop:
                os.killpg(child.pid, signal.SIGKILL)
                out, errors = child.communicate()
                if not isinstance(stop, subprocess.TimeoutExpired):
                    raise
                error = f"over {self.args.limit:g} s"
            error = error or failure(child.returncode, errors)
        except OSError as problem:
            error = str(problem)
        finally:
            done.set()
            watcher.join()
        lines = [json.loads(line) for line in out.splitlines() if line.startswith("{") and line.endswith("}")]
        return {"lines": lines, "error": error, "gpu_bytes": peak[0], "limit": self.args.limit}


def failure(status, errors):
    """Why a process failed, in a line."""
    if status == 0:
        return ""
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    said, mark = errors.strip().splitlines() or [f"exit status {status}"], "headway: error: "
    ours = next((line.removeprefix(mark) for line in said if line.startswith(mark)), "")
    return ours or ("out of memory" if re.search(r"out of memory|OutOfMemory", errors) else said[-1])


def measured(args, length):
    """Repetitions and decode steps of a context."""
    return (1, min(args.tokens, LONG_TOKENS)) if length > LONG else (args.repeats, args.tokens)


def empty_row(length, engine):
    return {"length": length, "engine": engine, "prefill": None, "decode": None, "gpu_bytes": None, "errors": {}}


def headway(args, cells, length, engine, options):
    repeats, tokens = measured(args, length)
    model = [args.model] if os.path.isdir(args.model) else ["--random-weights", args.model]
    row = empty_row(length, engine)
    for phase, more in (("prefill", []), ("decode", ["--synthetic-kv", "-n", str(tokens)])):
        done = cells.run([args.headway, "bench", phase, *model, "--device", "cuda", "-c", str(length), "-r", str(repeats), *more,
                          *options, *args.options, "--json", "--no-progress"])
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
    repeats, tokens = measured(args, length)
    chunk = ["--chunk", str(args.peer_chunk)] if args.peer_chunk else []
    done = cells.run([args.python, os.path.join(HERE, "run_transformers_gpu.py"), args.model, "--lengths", str(length), *options,
                      *chunk, "--tokens", str(tokens), "--repeats", str(repeats)])
    row = empty_row(length, engine) | {"gpu_bytes": done["gpu_bytes"]}
    for phase in ("prefill", "decode"):
        line = next((line for line in done["lines"] if line["phase"] == phase), {})
        row[phase] = line.get("tokens_per_second")
        if line:
            row[phase + "_result"] = line
        if row[phase] is None:
            row["errors"][phase] = line.get("error") or done["error"] or "no result"
    return row


def offloaded(args):
    return ["--placement", "host-only", "--gpu-memory", args.gpu_memory]


def rows_of(args, cells, length):
    """The rows of a context, the peers' first."""
    engines = {"peer": ("Transformers", transformers, []),
               "peer-offloaded": ("Transformers offloaded", transformers, ["--offloaded"]),
               "headway": ("Headway", headway, []),
               "headway-offloaded": ("Headway offloaded", headway, offloaded(args))}
    peers = {}
    for key, (engine, run, options) in engines.items():
        if key not in args.engines.split(","):
            continue
        row = run(args, cells, length, engine, options)
        if run is transformers:
            peers[key] = row
        else:
            against = [peers[p] for p in peers if key == "headway" or p == "peer-offloaded"]
            for phase in ("prefill", "decode"):
                best = max((peer[phase] for peer in against if peer[phase]), default=None)
                row[phase + "_ratio"] = row[phase] / best if row[phase] and best else None
        yield row


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
        for row in rows_of(args, cells, length):
            text = f"{length:>9}  {row['engine']:<24}"
            for phase in ("prefill", "decode"):
                share, ratio = row.get(phase + "_roofline"), row.get(phase + "_ratio")
                text += (f"{number(row[phase]):>14}{'' if share is None else f'{100 * share:.0f} %':>12}"
                         f"{'' if ratio is None else number(ratio):>8}")
            say(f"{text}{gigabytes(row['gpu_bytes']):>8}  {errors(row)}")
            rows.append(row)
    return rows


def paper(phase, group, length):
    """The paper's figure, or None; 2^20 counts as its 1M."""
    rounded = length / 1.048576 if length % (1 << 20) == 0 else length
    figures = PAPER[phase].get(group, [])
    at = PAPER_LENGTHS.index(rounded) if rounded in PAPER_LENGTHS else len(figures)
    return figures[at] if at < len(figures) else None


def headinfer(args, cells, say):
    """Rows of HeadInfer's tables with Headway's figures, printed at the end; a line of progress for each cell."""
    rows = []
    for length in args.lengths:
        for group in args.groups.split(","):
            options = ["--head-group", "0" if group == "auto" else group, *offloaded(args)]
            row = headway(args, cells, length, f"group {group}", options) | {"group": group}
            row |= {f"{phase}_paper": paper(phase, group, length) for phase in ("prefill", "decode")}
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
            theirs = paper(phase, group, length)
            return f"{number(at.get((group, length), {}).get(phase))} / {'-' if theirs is None else f'{theirs:,}'}"
        block(f"{phase} tok/s, ours / paper", [*args.groups.split(","), "vLLM"], cell)
    block("GPU GB, ours (paper: 17 at 1M)", args.groups.split(","),
          lambda group, length: gigabytes(at[group, length]["gpu_bytes"]))
    for row in rows:
        if row["errors"]:
            say(f"{row['length']} tokens, group {row['group']}, {errors(row)}")
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--headway", default="build-cuda/src/cli/headway")
    parser.add_argument("--python", default=sys.executable, help="the interpreter that has torch and transformers")
    parser.add_argument("--lengths", type=lambda text: [int(length) for length in text.split(",")], help="contexts")
    parser.add_argument("--engines", default="peer,peer-offloaded,headway,headway-offloaded")
    parser.add_argument("--gpu-memory", default="17GiB", help="budget of Headway's offloaded rows")
    parser.add_argument("--peer-chunk", type=int, default=0, help="tokens of the peers' prefill steps; 0: all at once")
    parser.add_argument("--tokens", type=int, default=32, help=f"decode steps; over {LONG} tokens of context {LONG_TOKENS}")
    parser.add_argument("--repeats", type=int, default=3, help="at most; the peers' runs begin none after 20 seconds")
    parser.add_argument("--limit", type=float, default=600, help="seconds that a process may take")
    parser.add_argument("--gpu", default=os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0],
                        help="index as nvidia-smi counts, or UUID")
    parser.add_argument("--headinfer", action="store_true")
    parser.add_argument("--groups", default="1,2,4,8,auto", help="head groups of --headinfer")
    parser.add_argument("--cells", default="", help="file of what was measured, read and added to")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    args = parser.parse_args(sys.argv[1:cut])
    args.options = sys.argv[cut + 1:]
    args.lengths = args.lengths or (PAPER_LENGTHS[:7] if args.headinfer else [1024, 8192, 32768, 131072])

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the process at work, too
    cells = Cells(args)
    say = (lambda text: None) if args.json else (lambda text: print(text.rstrip(), flush=True))
    say(f"{cells.gpu.name or 'no NVML: GPU memory is not known'}; Headway offloaded: --placement host-only"
        f" --gpu-memory {args.gpu_memory}")
    rows = headinfer(args, cells, say) if args.headinfer else compare(args, cells, say)
    if args.json:
        print(json.dumps({"gpu": cells.gpu.name, "options": args.options, "gpu_memory": args.gpu_memory, "rows": rows}))


if __name__ == "__main__":
    main()
