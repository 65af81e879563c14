"""Trains the demo model's tokenizer on a folder of texts and writes the texts as token ids.

    prepare_corpus.py TEXTS OUT [--vocab 8192] [--seed 1]

TEXTS is searched for *.txt. OUT gets tokenizer.json, train.bin and val.bin (token ids, uint16), and val_files.txt: the
files, one of a hundred, that val.bin holds out of training.
"""
import argparse
import pathlib
import random

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

SPECIAL_TOKENS = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
                  "<|finetune_right_pad_id|>"]
# Llama 3's pattern, with every digit a token of its own so that numbers are copied digit by digit.
SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)"
         r"|\s+")
SAMPLED_CHARACTERS = 40_000_000
FEW_FILES = 20
PIECE = 1 << 20  # characters tokenized at once


def read(path):
    """The text, with any kind of line end as \\n."""
    return path.read_text(encoding="utf-8", errors="replace")


def samples(files, rng):
    """Passages from all over the corpus, as BPE needs only a sample. Of few files, more of each."""
    total = 0
    for path in files:
        text = read(path)
        for start in range(0, len(text), 200_000):
            if rng.random() < 0.25 or len(files) < FEW_FILES:
                passage = text[start:start + 20_000]
                total += len(passage)
                yield passage
        if total > SAMPLED_CHARACTERS:
            return


def train_tokenizer(files, vocab, rng):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(SPLIT), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab - len(SPECIAL_TOKENS), show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(samples(files, rng), trainer)
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    begin = SPECIAL_TOKENS[0]
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single=f"{begin} $A", pair=f"{begin} $A {begin}:1 $B:1",
                                      special_tokens=[(begin, tokenizer.token_to_id(begin))]),
    ])
    return tokenizer


def encode(tokenizer, path):
    """A text between the tokens for its begin and end."""
    text = read(path)
    pieces = [text[start:start + PIECE] for start in range(0, len(text), PIECE)]
    ids = [tokenizer.token_to_id("<|begin_of_text|>")]
    for encoding in tokenizer.encode_batch(pieces, add_special_tokens=False):
        ids += encoding.ids
    return np.array(ids + [tokenizer.token_to_id("<|end_of_text|>")], dtype=np.uint16)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--vocab", type=int, default=8192, help="tokens, special ones included")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    if args.vocab > 1 << 16:
        parser.error("--vocab: token ids are stored in 16 bits, so at most 65536")
    args.out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(args.seed)
    files = sorted(args.texts.rglob("*.txt"))
    if len(files) < 2:
        raise SystemExit(f"{args.texts}: at least two *.txt files are needed, one of them for validation")
    rng.shuffle(files)
    tokenizer = train_tokenizer(files, args.vocab, rng)
    tokenizer.save(str(args.out / "tokenizer.json"))
    documents = [encode(tokenizer, path) for path in files]
    held_out = max(1, len(documents) // 100)
    np.concatenate(documents[:held_out]).tofile(args.out / "val.bin")
    np.concatenate(documents[held_out:]).tofile(args.out / "train.bin")
    (args.out / "val_files.txt").write_text("".join(f"{path}\n" for path in files[:held_out]))
    print(f"{len(files)} files, vocabulary {tokenizer.get_vocab_size()}, {sum(map(len, documents)):,} tokens")


if __name__ == "__main__":
    main()
