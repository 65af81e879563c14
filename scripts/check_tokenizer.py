#!/usr/bin/env python3
"""Compares Headway's tokenizer with PyPI's tokenizers on random text and on given files.

    python3 scripts/check_tokenizer.py --tool BUILD/src/text/tokenizer/tokenize_tool [--megabytes 4] [--seed 1]
        [--text FILE ...] [TOKENIZER_JSON ...]

Without TOKENIZER_JSON: the demo model's and all of tests/golden/tokenizer. Exits with 1 at the first difference,
which it makes as short as it can.
"""

import argparse
import json
import pathlib
import random
import subprocess
import sys

from tokenizers import Tokenizer

from mixed_text import MixedText

ROOT = pathlib.Path(__file__).resolve().parent.parent


class Tool:
    def __init__(self, program, tokenizer_json):
        self.process = subprocess.Popen([program, str(tokenizer_json)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def encode(self, text, flags):
        data = text.encode()
        self.process.stdin.write(b"e %d %d\n" % (flags, len(data)) + data)
        # The request's last byte may be a newline of the text: the tool reads by length.
        self.process.stdin.flush()
        line = self.process.stdout.readline().decode()
        return line.strip() if line.startswith("error") else [int(x) for x in line.split()]

    def decode(self, ids, skip_special):
        self.process.stdin.write(f"d {int(skip_special)} {' '.join(map(str, ids))}\n".encode())
        self.process.stdin.flush()
        size = int(self.process.stdout.readline())
        return self.process.stdout.read(size).decode()


def expected(tokenizer, text, flags):
    tokenizer.encode_special_tokens = not flags & 2
    return tokenizer.encode(text, add_special_tokens=bool(flags & 1)).ids


def shorten(text, differs):
    """Cuts pieces out of `text` as long as it still differs."""
    step = max(1, len(text) // 2)
    while step >= 1:
        at = 0
        while at < len(text):
            shorter = text[:at] + text[at + step:]
            if differs(shorter):
                text = shorter
            else:
                at += step
        step //= 2
    return text


def check_text(path, tokenizer, tool, text, flags):
    ids = expected(tokenizer, text, flags)
    if tool.encode(text, flags) != ids:
        short = shorten(text, lambda t: tool.encode(t, flags) != expected(tokenizer, t, flags)) if len(text) < 20000 else text[:200]
        print(f"{path}: encoding differs, flags {flags}: {short!r} = {[hex(ord(c)) for c in short[:20]]}\n"
              f"  tokenizers: {expected(tokenizer, short, flags)[:60]}\n  headway:    {str(tool.encode(short, flags))[:400]}")
        return False
    return True


def check_decode(path, tokenizer, tool, ids):
    for skip_special in (False, True):
        want = tokenizer.decode(ids, skip_special_tokens=skip_special)
        got = tool.decode(ids, skip_special)
        if got != want:
            print(f"{path}: decoding differs, skip {skip_special}: {ids[:60]}\n  tokenizers: {want[:200]!r}\n  headway:    {got[:200]!r}")
            return False
    return True


def check(path, program, megabytes, seed, files):
    text_json = pathlib.Path(path).read_text()
    tokenizer = Tokenizer.from_str(text_json)
    extra = [t["content"] for t in json.loads(text_json)["added_tokens"]]
    tool = Tool(program, path)
    for file in files:
        text = pathlib.Path(file).read_text()
        if not check_text(path, tokenizer, tool, text, 1) or not check_decode(path, tokenizer, tool, expected(tokenizer, text, 1)):
            return False
    source = MixedText(seed)
    size = tokenizer.get_vocab_size()
    done = texts = 0
    while done < megabytes * 1e6:
        length = source.random.choice([1, 3, 10, 30, 100, 300] + [3000] * (source.random.random() < 0.1))
        text = source.text(length, extra)
        flags = source.random.randrange(4)
        if not check_text(path, tokenizer, tool, text, flags):
            return False
        ids = expected(tokenizer, text, flags)
        if source.random.random() < 0.3:
            ids = [source.random.randrange(size + 3) for _ in range(min(length, 100))]
        if not check_decode(path, tokenizer, tool, ids):
            return False
        done += len(text.encode())
        texts += 1
    print(f"{path}: {texts} random texts, {done / 1e6:.1f} MB, {len(files)} files: no difference", flush=True)
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tool", required=True)
    parser.add_argument("--megabytes", type=float, default=4)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    parser.add_argument("--text", action="append", default=[])
    parser.add_argument("tokenizers", nargs="*")
    args = parser.parse_args()
    print(f"seed {args.seed}")
    paths = args.tokenizers or [ROOT / "models/demo/tokenizer.json"] + sorted(
        p for p in (ROOT / "tests/golden/tokenizer").glob("*.json") if not p.name.endswith(".cases.json"))
    results = [check(path, args.tool, args.megabytes, args.seed + i, args.text) for i, path in enumerate(paths)]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
