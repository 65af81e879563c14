#!/usr/bin/env python3
"""same_bits.py OLD NEW [--device cpu|cuda]: whether two builds of headway give the same bits.

Runs `eval perplexity --json` and greedy `run` of both programs on the demo model under settings
that take every path (resident, stream, disk, host, recompute, streaming heads, streamed weights)
and compares all numbers that do not tell time, and the text. Ends with 1 at a difference. For
changes that move code and nothing else; takes some minutes. With --sessions, OLD saves sessions
under these settings, and both programs continue copies of them."""
import argparse
import concurrent.futures
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
MODEL = str(ROOT / "models/demo")
DOCUMENT = str(ROOT / "examples/document.txt")
# Of results that are not those of a computation: what takes time, what was read of it and from
# where, and plans, which say what a build takes.
VOLATILE = ("second", "time", "tok_s", "per_s", "peak", "lanes", "busy", "rss", "ms", "predicted",
            "plan", "page_cache")

# What does not fit 3 MiB of keys and values goes to host memory, or further down.
SMALL = ["--kv-memory", "3MiB"]
SETTINGS = {
    "resident": [],
    "chunk": ["--chunk", "100"],
    "stream": SMALL,
    "stream, a head at a time": SMALL + ["--head-group", "1"],
    "stream, short segments": SMALL + ["--segment", "128", "--chunk", "256"],
    "stream, lru": SMALL + ["--placement", "lru"],
    "stream, host only": ["--placement", "host-only"],
    "small pages": ["--page", "32", "--placement", "host-only", "--segment", "96"],
    "disk": SMALL + ["--host-memory", "4MiB", "--disk-memory", "1GiB"],
    "disk only": ["--placement", "disk-only", "--disk-memory", "1GiB"],
    "headinfer": SMALL + ["--policy", "headinfer"],
    "layerwise": ["--kv-memory", "12MiB", "--policy", "layerwise"],
    "recompute": ["--placement", "host-only", "--recompute", "1"],
    "recompute some": ["--kv-memory", "5MiB", "--recompute", "0.5"],
    "host": ["--placement", "host-only", "--host-attention", "1"],
    "host some": SMALL + ["--host-attention", "0.5"],
    "int8": ["--kv-encoding", "int8"] + SMALL,
    "fp8": ["--kv-encoding", "fp8", "--placement", "host-only"],
    "int4": ["--kv-encoding", "int4"],
    "streaming heads": ["--head-pattern", "PATTERN", "--sink-tokens", "70", "--recent-tokens",
                        "200"],
    "streaming heads, stream": ["--kv-memory", "5MiB", "--head-pattern", "PATTERN"],
    "streamed weights": ["--gpu-layers", "2"] + SMALL,
    "one thread": ["--threads", "1"],
}


def run(program, arguments):
    done = subprocess.run([program] + arguments, capture_output=True, text=True)
    if done.returncode != 0:
        return {"status": done.returncode, "error": done.stderr.strip()}
    return json.loads(done.stdout)


def lasting(value):
    """The value without what tells time."""
    if isinstance(value, dict):
        return {
            key: lasting(item)
            for key, item in value.items() if not any(word in key for word in VOLATILE)
        }
    if isinstance(value, list):
        return [lasting(item) for item in value]
    return value


def continue_session(options, flags, file, prompts):
    """What each program makes of the session in `file` that OLD saves with the first prompt."""
    save, go_on = [["run", MODEL, "--file", str(prompt), "-n", "24", "--temp", "0", "--ignore-eos",
                    "--json", "--session", str(file)] + flags for prompt in prompts]
    saved = run(options.old, save)
    if "status" in saved:
        return saved, saved
    copy = file.with_suffix(".copy")
    shutil.copy(file, copy)
    results = []
    for program in (options.old, options.new):
        shutil.copy(copy, file)
        result = run(program, go_on)
        # What is read again says nothing of the file.
        if result.get("reused_tokens") == 0:
            result = {"status": 0, "error": "the session was not continued"}
        results.append(lasting(result))
    for left in (file, copy):
        left.unlink()
    return results


def differences(old, new, path=""):
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(set(old) | set(new)):
            yield from differences(old.get(key), new.get(key), f"{path}.{key}")
    elif old != new:
        yield f"{path}: {str(old)[:200]} != {str(new)[:200]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--context", type=int, default=3000, help="tokens of a window")
    parser.add_argument("--sessions", action="store_true", help="compare continued sessions")
    parser.add_argument("--only", help="the setting of this name")
    parser.add_argument("--jobs", type=int, default=1, help="runs at the same time")
    options = parser.parse_args()
    failed = 0
    ran = 0
    with tempfile.TemporaryDirectory() as folder:
        config = json.loads((ROOT / "models/demo/config.json").read_text())
        layers, heads = config["num_hidden_layers"], config["num_key_value_heads"]
        pattern = pathlib.Path(folder) / "pattern.tsv"
        pattern.write_text("".join(
            "\t".join("1.0" if (layer + head) % 2 else "0.0" for head in range(heads)) + "\n"
            for layer in range(layers)))
        prompt = pathlib.Path(folder) / "prompt.txt"
        text = pathlib.Path(DOCUMENT).read_text()
        prompt.write_text(text[:12000])
        longer = pathlib.Path(folder) / "longer.txt"
        longer.write_text(text[:14000])
        document = pathlib.Path(folder) / "document.txt"
        document.write_text(text[:30000])
        pairs = []
        for name, flags in SETTINGS.items():
            if options.only not in (None, name):
                continue
            flags = [str(pattern) if flag == "PATTERN" else flag for flag in flags]
            # A share of the cores that follows the clock would change the order of additions.
            flags += ["--device", options.device, "--freeze-plan"]
            if options.sessions:
                if not {"--policy", "--recompute", "--head-pattern"} & set(flags):  # no sessions
                    file = pathlib.Path(folder) / f"{len(pairs)}.session"
                    pairs.append((f"{name}, session", (flags, file, (prompt, longer))))
                continue
            pairs.append((f"{name}, eval", [
                "eval", "perplexity", MODEL, "--file", str(document), "--context",
                str(options.context), "--json"] + flags))
            pairs.append((f"{name}, run", [
                "run", MODEL, "--file", str(prompt), "-n", "48", "--temp", "0", "--ignore-eos",
                "--json"] + flags))

        def both(pair):
            if options.sessions:
                return continue_session(options, *pair[1])
            return [lasting(run(program, pair[1])) for program in (options.old, options.new)]

        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            for (name, _), (old, new) in zip(pairs, pool.map(both, pairs)):
                ran += 1
                found = list(differences(old, new))
                works = "status" not in old
                print(f"{'DIFFERS' if found else 'same' if works else 'same refusal'}: {name}" +
                      ("" if works else f": {old['error'][:150]}"), flush=True)
                for line in found:
                    print("   ", line)
                failed += bool(found) or not works
    print(f"{ran - failed} of {ran} the same")
    return 1 if failed or ran == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
