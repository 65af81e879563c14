#!/usr/bin/env python3
"""Writes tests/golden/tokenizer: small tokenizer.json files built like those of published model
families, and what PyPI's tokenizers makes of texts with them.

    python3 scripts/make_tokenizer_golden.py      (needs: pip install tokenizers)

For each family NAME.json is the tokenizer and NAME.cases.json the texts with their tokens; demo.cases.json
belongs to the demo model's tokenizer. The vocabularies are trained on text made by mixed_text.py.
tokenizer_golden_test.cc compares.
"""

import itertools
import json
import pathlib

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from mixed_text import MixedText

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "tests" / "golden" / "tokenizer"

# The split patterns of the families, as their tokenizer.json files have them.
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK_WORDS = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
                  r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"
KIMI = (r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+")

BYTES = [f"<0x{b:02X}>" for b in range(256)]


def train(pre_tokenizer, alphabet, size, normalizer=None, first=()):
    """Vocabulary and merges of a BPE model trained on made-up text; `first` are the first tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, limit_alphabet=max(160, len(alphabet)),
                                  show_progress=False, special_tokens=list(first))
    text = MixedText(7)
    corpus = ([text.prose(60, ["latin"]) for _ in range(500)] + [text.prose(60) for _ in range(300)]
              + [text.mixed(40) for _ in range(100)])
    tokenizer.train_from_iterator(corpus, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(pair) for pair in model["merges"]]


def byte_level(split, size=900, normalizer=None, **options):
    """A tokenizer over bytes; `split` are the pre-tokenizers before the bytes are spelled."""
    pre_tokenizer = pre_tokenizers.Sequence(split + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    vocab, merges = train(pre_tokenizer, pre_tokenizers.ByteLevel.alphabet(), size, normalizer)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, **options))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return tokenizer


def byte_fallback(first=("<unk>", "<s>", "</s>"), size=1000):
    vocab, merges = train(pre_tokenizers.Metaspace(), [], size, first=list(first) + BYTES)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.add_special_tokens(list(first))
    return tokenizer


def isolated(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


def begin_with(tokenizer, token):
    return processors.TemplateProcessing(single=f"{token} $A", pair=f"{token} $A {token}:1 $B:1",
                                         special_tokens=[(token, tokenizer.token_to_id(token))])


def gpt2():
    vocab, merges = train(pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.ByteLevel.alphabet(), 900)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, continuing_subword_prefix="", end_of_word_suffix=""))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


def opt():
    """GPT-2's way with </s> put before the text, as Transformers saves OPT's tokenizer."""
    vocab, merges = train(pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.ByteLevel.alphabet(), 700,
                          first=("<s>", "<pad>", "</s>", "<unk>"))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, continuing_subword_prefix="", end_of_word_suffix=""))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<pad>", normalized=True), AddedToken("</s>", normalized=True)])
    tokenizer.post_processor = begin_with(tokenizer, "</s>")
    return tokenizer


def roberta():
    vocab, merges = train(pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.ByteLevel.alphabet(), 500,
                          first=("<s>", "<pad>", "</s>", "<unk>"))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, continuing_subword_prefix="", end_of_word_suffix=""))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<s>", "</s>", AddedToken("<mask>", lstrip=True)])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True,
                                                            add_prefix_space=False)
    return tokenizer


def llama3():
    tokenizer = byte_level([isolated(LLAMA3)], ignore_merges=True)
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    tokenizer.add_special_tokens(names + [f"<|reserved_special_token_{i}|>" for i in range(12)])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False),
                                                    begin_with(tokenizer, "<|begin_of_text|>")])
    return tokenizer


def qwen2():
    tokenizer = byte_level([isolated(QWEN2)], normalizer=normalizers.NFC())
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("</tool_call>", normalized=False)])
    return tokenizer


def o200k():
    tokenizer = byte_level([isolated(O200K)])
    tokenizer.add_special_tokens(["<|endoftext|>", "<|endofprompt|>"])
    return tokenizer


def kimi():
    return byte_level([isolated(KIMI)], size=700)


def bloom():
    return byte_level([isolated(BLOOM)], size=700)


def starcoder():
    tokenizer = byte_level([pre_tokenizers.Digits(individual_digits=True), isolated(r"\p{L}+|\s+$|\s+")], size=700)
    tokenizer.add_special_tokens(["<fim_prefix>", "<fim_suffix>", "<jupyter_code>"])
    return tokenizer


def deepseek_v3():
    tokenizer = byte_level([isolated(r"\p{N}{1,3}"), isolated("[一-龥぀-ゟ゠-ヿ]+"), isolated(DEEPSEEK_WORDS)])
    tokenizer.add_special_tokens(["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"])
    tokenizer.add_tokens([AddedToken("<｜User｜>", normalized=False), AddedToken("<｜fim▁hole｜>", normalized=True)])
    tokenizer.post_processor = begin_with(tokenizer, "<｜begin▁of▁sentence｜>")
    return tokenizer


def deepseek_llm():
    return byte_level([isolated(r"[\r\n]"), isolated(r"\s?\p{L}+"), isolated(r"\s?\p{P}+"),
                       isolated("[一-龥ࠀ-一가-퟿]+"), pre_tokenizers.Digits(individual_digits=True)], size=700)


def falcon():
    split = [pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=False),
             pre_tokenizers.Digits(individual_digits=False), isolated("[0-9][0-9][0-9]")]
    vocab, merges = train(pre_tokenizers.Sequence(split), pre_tokenizers.ByteLevel.alphabet(), 700)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([">>TITLE<<", ">>QUESTION<<"])
    return tokenizer


def llama2():
    tokenizer = byte_fallback()
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = begin_with(tokenizer, "<s>")
    return tokenizer


def mistral():
    tokenizer = byte_fallback()
    tokenizer.add_special_tokens(["[INST]", "[/INST]"])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                           decoders.Strip(" ", 1, 0)])
    tokenizer.post_processor = begin_with(tokenizer, "<s>")
    return tokenizer


def gemma():
    tokenizer = byte_fallback(("<pad>", "<eos>", "<bos>", "<unk>"))
    tokenizer.add_tokens([AddedToken("\n\n", normalized=False), AddedToken("▁▁", normalized=False)])
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.post_processor = begin_with(tokenizer, "<bos>")
    return tokenizer


def old_metaspace():
    """Without byte fallback: unknown characters; white space stripped; the Metaspace decoder."""
    vocab, merges = train(pre_tokenizers.Metaspace(), [], 500, first=["<unk>"])
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=False))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " "),
                                                 normalizers.Strip(left=False, right=True)])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(),
                                                       pre_tokenizers.Metaspace(prepend_scheme="always")])
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def unknown_words():
    vocab, merges = train(pre_tokenizers.Whitespace(), [], 500, normalizers.Lowercase(), first=["<unk>"])
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def added_tokens():
    """Added tokens with every combination of flags, under a normalizer that changes them."""
    tokenizer = byte_level([isolated(r"\s+|\S+")], size=500)
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    for flags in itertools.product((False, True), repeat=5):
        name = "".join(letter if flag else "" for letter, flag in zip("WLRNS", flags))
        tokenizer.add_tokens([AddedToken(f"Tok{name}", single_word=flags[0], lstrip=flags[1], rstrip=flags[2],
                                         normalized=flags[3], special=flags[4]),
                              AddedToken(f"[{name}²]", single_word=flags[0], lstrip=flags[1], rstrip=flags[2],
                                         normalized=flags[3], special=flags[4])])
    tokenizer.add_tokens([AddedToken("\n", normalized=False), AddedToken("  ", normalized=False, rstrip=True),
                          AddedToken("the", normalized=True, single_word=True), AddedToken("ﬁ", normalized=False)])
    return tokenizer


def neox():
    """GPT-2's way behind NFC, with runs of spaces as added tokens, as GPT-NeoX-20B and Pythia have it."""
    vocab, merges = train(pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.ByteLevel.alphabet(), 700,
                          normalizers.NFC())
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<|endoftext|>", "<|padding|>"])
    tokenizer.add_tokens([AddedToken(" " * count, normalized=True) for count in range(24, 1, -1)])
    return tokenizer


FAMILIES = {f.__name__: f for f in (gpt2, llama3, qwen2, o200k, kimi, bloom, starcoder, deepseek_v3, deepseek_llm, falcon,
                                    llama2, mistral, gemma, old_metaspace, unknown_words, added_tokens, opt,
                                    roberta, neox)}
# Files of early versions have merges as texts, and Metaspace with other fields.
LEGACY = ("gpt2", "llama2", "old_metaspace")


def to_json(name, tokenizer):
    data = json.loads(tokenizer.to_str())
    if name in LEGACY:
        data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
    if name == "old_metaspace":
        old = {"type": "Metaspace", "replacement": "▁", "add_prefix_space": True, "str_rep": "▁"}
        data["pre_tokenizer"]["pretokenizers"][1] = old
        data["decoder"] = old
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"))


def added_texts(tokenizer):
    return [token.content for token in tokenizer.get_added_tokens_decoder().values()]


def encode(tokenizer, text, add_special, parse_special):
    tokenizer.encode_special_tokens = not parse_special
    return tokenizer.encode(text, add_special_tokens=add_special).ids


FIXED = ["", " ", "  ", "\n", "a", " a", "a ", "Hello world", " Hello  world ", "\u0301", "e\u0301", "\x00",
         "1234567", "I'll've don't CAN'T", "\t x\n\n y", "👨‍👩‍👧‍👦👍🏽", "각각", "¹²³ ½", "ſſ ﬁ ﬀ", "a" * 70]


def cases(tokenizer, seed, count):
    text = MixedText(seed)
    extra = added_texts(tokenizer)
    texts = FIXED + extra[:4] + [text.text(text.random.randint(1, 30), extra) for _ in range(count)]
    result = []
    for item in texts:
        full = encode(tokenizer, item, True, True)
        result.append({"text": item, "plain": encode(tokenizer, item, False, False), "full": full,
                       "decoded": tokenizer.decode(full, skip_special_tokens=False),
                       "skipped": tokenizer.decode(full, skip_special_tokens=True)})
    return result


def decodes(tokenizer, seed, count):
    """Tokens that no text gives: characters begun and never ended, runs of bytes, unknown ids."""
    text = MixedText(seed)
    size = tokenizer.get_vocab_size()
    bytes_ = [i for i in (tokenizer.token_to_id(b) for b in BYTES) if i is not None] or list(range(min(256, size)))
    result = []
    for _ in range(count):
        r = text.random
        ids = [r.choice(bytes_) if r.random() < 0.5 else r.randrange(size + 2) for _ in range(r.randint(0, 24))]
        result.append({"ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False),
                       "skipped": tokenizer.decode(ids, skip_special_tokens=True)})
    return result


def write_cases(name, text, number):
    tokenizer = Tokenizer.from_str(text)
    data = {"cases": cases(tokenizer, 1000 + number, 60), "decodes": decodes(tokenizer, 2000 + number, 40)}
    (OUTPUT / f"{name}.cases.json").write_text(json.dumps(data, ensure_ascii=False, separators=(",", ":")))
    print(f"{name}: {tokenizer.get_vocab_size()} tokens, {len(data['cases'])} texts")


def main():
    OUTPUT.mkdir(parents=True, exist_ok=True)
    for number, (name, build) in enumerate(FAMILIES.items()):
        text = to_json(name, build())
        (OUTPUT / f"{name}.json").write_text(text)
        write_cases(name, text, number)
    write_cases("demo", (ROOT / "models/demo/tokenizer.json").read_text(), 17)


if __name__ == "__main__":
    main()
