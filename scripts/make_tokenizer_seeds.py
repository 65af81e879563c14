#!/usr/bin/env python3
"""Writes fuzz/corpus/tokenizer: tiny tokenizer.json files, each with a text behind a zero byte, that together have
every part that Headway reads, and split patterns."""

import json
import pathlib

OUTPUT = pathlib.Path(__file__).resolve().parent.parent / "fuzz" / "corpus" / "tokenizer"


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def sequence(key, *items):
    return {"type": "Sequence", key: list(items)}


def model(vocab, merges, **options):
    return {"type": "BPE", "vocab": {token: i for i, token in enumerate(vocab)}, "merges": merges, **options}


def added(content, **flags):
    return {"id": 0, "content": content, **{key: flags.get(key, False) for key in
                                            ("single_word", "lstrip", "rstrip", "normalized", "special")}}


TEMPLATE = {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}}
LLAMA3 = (r"(?i:'s|'t)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

SEEDS = {
    "byte_level": ({
        "added_tokens": [added("<s>", special=True)],
        "pre_tokenizer": sequence("pretokenizers", split({"Regex": LLAMA3}),
                                  {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}),
        "post_processor": sequence("processors", {"type": "ByteLevel"}, TEMPLATE),
        "decoder": {"type": "ByteLevel"},
        "model": model(["<s>", "a", "b", "Ġ", "Ã", "©", "ab", "Ġab"], [["a", "b"], ["Ġ", "ab"]], ignore_merges=True),
    }, "ab ab é <s>"),
    "byte_fallback": ({
        "added_tokens": [added("<s>", special=True)],
        "normalizer": sequence("normalizers", {"type": "Prepend", "prepend": "▁"},
                               {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}),
        "post_processor": TEMPLATE,
        "decoder": sequence("decoders", {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                            {"type": "ByteFallback"}, {"type": "Fuse"},
                            {"type": "Strip", "content": " ", "start": 1, "stop": 1}),
        "model": model(["<s>", "▁", "a", "▁a", "<0xC3>", "<0xA9>"], ["▁ a"], unk_token="<s>", fuse_unk=True,
                       byte_fallback=True),
    }, "a é中"),
    "metaspace": ({
        "added_tokens": [],
        "normalizer": sequence("normalizers", {"type": "NFKC"}, {"type": "Lowercase"},
                               {"type": "Strip", "strip_left": True, "strip_right": True}),
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True},
        "decoder": {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True},
        "model": model(["?", "a", "▁"], [], unk_token="?"),
    }, " A ﬁ"),
    "splits": ({
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": sequence("pretokenizers", {"type": "Digits", "individual_digits": True},
                                  {"type": "Punctuation", "behavior": "Contiguous"}, {"type": "Whitespace"},
                                  split({"String": "a"}, "MergedWithPrevious"),
                                  split({"Regex": "[a-c&&[^b]]+?"}, "MergedWithNext", True), {"type": "WhitespaceSplit"}),
        "model": model(["a", "b", "1"], []),
    }, "ab 11, e\u0301"),
    "added": ({
        "added_tokens": [added("a", single_word=True, normalized=True), added(" b", lstrip=True, rstrip=True),
                         added("c", special=True, normalized=True)],
        "normalizer": {"type": "Lowercase"},
        "model": model(["a", "b"], []),
    }, "a A  b cC"),
}


PATTERNS = {
    "pattern_llama3": (LLAMA3, "Hello  wor's 1234\r\n\n x"),
    "pattern_classes": (r"[^(\s|[.,!?])]+|[\p{Lu}&&[^\p{Han}]]*+\w{2,}?|[\W\S]|\h\H", "Ab, 中 c1!"),
    "pattern_groups": (r"(?i:ab|[c-e])|(?>a+)b|(?<!x)(?=\d)\d{,3}|\bx\B|^\t$|\u00e9\x{1F600}|(?m:.)", "abX 123\n\té"),
}


def main():
    OUTPUT.mkdir(parents=True, exist_ok=True)
    for name, (tokenizer, text) in SEEDS.items():
        data = json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":")) + "\0" + text
        (OUTPUT / name).write_bytes(data.encode())
    for name, (pattern, text) in PATTERNS.items():
        (OUTPUT / name).write_bytes((pattern + "\0" + text).encode())


if __name__ == "__main__":
    main()
