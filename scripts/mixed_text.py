"""Random text in many scripts, for training and comparing tokenizers. Every run with one seed gives
the same text."""

import random

# Words of several languages, in scripts that split patterns and normalizers treat differently.
WORDS = {
    "latin": "the of and to in is that it was for with as his on be at by had not are but from have an "
             "they which one you were all her she there would their we him been has when who will no "
             "more if out so up said what its about than into them can only other time new some could "
             "these two may first then do any like my now over such our man me even most made after "
             "also well river stone letter winter garden engine memory context window tokens page "
             "I'm don't we'll they've it's you'd she's HE'S CAN'T WE'RE naïve café über façade "
             "Straße Ærø œuvre Łódź smørrebrød İstanbul ſtill Ⅷ ﬁnal eﬀect Kelvin Å ÅÄÖ".split(),
    "cyrillic": "в и не на я быть он с что а по это она этот к но они мы весь который из у мой за "
                "большой город письмо река зима ёлка йод Україна їжак ѢѲ".split(),
    "greek": "και το της των σε που από για με είναι δεν ήταν αλλά όπως Ελλάδα λόγος σοφός ΟΔΟΣ".split(),
    "hebrew": "את של על לא הוא זה עם כי אם גם היה אני בְּרֵאשִׁית שָׁלוֹם ספר עיר".split(),
    "arabic": "في من على أن إلى التي كان هذا مع لا ما كتاب مدينة بِسْمِ ٱللَّٰهِ السلام ١٢٣ ۴۵۶".split(),
    "devanagari": "के में है की से को और का नहीं यह हिन्दी किताब शहर क्षेत्र ज़िंदगी १२३ ॐ".split(),
    "thai": "และ ที่ ใน ของ เป็น การ ได้ ไม่ น้ำ ภาษาไทย เมืองไทย ๑๒๓".split(),
    "cjk": "的 是 不 了 在 人 有 我 他 这 中文 你好 世界 漢字 日本語 これは テスト です カタカナ ｶﾀｶﾅ 東京 "
           "。 、 「 」 ！ ？ 〇 一二三 ㈱ ㍿ ゔ が が".split(),
    "hangul": "그리고 나는 당신 한국어 세계 안녕 하세요 도서관 각 한".split(),
    "other": "ქართული հայերեն አማርኛ தமிழ் తెలుగు বাংলা ភាសា ລາວ བོད་ မြန်မာ ᏣᎳᎩ ⵜⴰⵎ 𐐷𐐲 𝔘𝔫𝔦 𠀋𪛖 ĸŉǆ".split(),
}

EMOJI = ["😀", "👍🏽", "👨‍👩‍👧‍👦", "🏳️‍🌈", "❤️", "🇫🇷", "🧑🏿‍🚀", "☃", "™", "©", "1️⃣", "🫠", "🪿"]
SPACES = [" ", " ", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "\u00a0", "\u2003", "\u3000", "\u200b",
          "\u202f", "\u2028", "\u0085", "\u180e", "\ufeff", "\v", "\f", " \n ", "\t\t", "      \n"]
CONTROLS = ["\x00", "\x01", "\x07", "\x1b[0m", "\x7f", "\x80", "\x9f", "\u00ad", "\u200d", "\u200c",
            "\u202e", "\ufffd", "\uffff", "\U0010ffff", "\ue000", "\U000e0041"]
PUNCTUATION = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + ["...", "--", "—", "–", "…", "“", "”", "‘", "’", "«",
               "»", "¿", "¡", "§", "°", "±", "×", "€", "£", "¥", "₿", "∑", "∞", "≠", "→", "│", "█", "、", "؟", "।"]
MARKS = ["\u0301", "\u0300", "\u0308", "\u0323", "\u0327", "\u0345", "\u05b0", "\u064b", "\u0e38", "\u0f71",
         "\u0f72", "\u1dce", "\u20d2", "\u3099", "\u0334", "\U0001d165", "\u1ab0", "\u0e48"]
CODE = ["def f(x):\n    return x + 1\n", "for (int i = 0; i < n; ++i) {\n\tsum += a[i];\n}\n", "#include <vector>\n",
        "SELECT * FROM t WHERE id='7';", "https://example.org/a?b=c&d=%20", "<div class=\"x\">&nbsp;</div>",
        "{\"key\": [1, 2.5e-3, null]}", "x = y if z else {**a, 'b': 0xFF}", "git commit -m \"fix\"", "a_b__c->d::e()",
        "\\frac{1}{2} \\sum_{i=0}^{n} x_i", "$ ls -la | grep '^d' > /dev/null 2>&1", "    if not ok:\r\n        pass"]

# Blocks to draw single characters from.
BLOCKS = [(0x20, 0x7E), (0xA0, 0xFF), (0x100, 0x24F), (0x250, 0x36F), (0x370, 0x3FF), (0x400, 0x52F), (0x530, 0x5FF),
          (0x600, 0x8FF), (0x900, 0xDFF), (0xE00, 0xFFF), (0x1000, 0x139F), (0x13A0, 0x1AFF), (0x1B00, 0x1DFF),
          (0x1E00, 0x1FFF), (0x2000, 0x20FF), (0x2100, 0x2BFF), (0x2C00, 0x2DFF), (0x2E00, 0x33FF), (0x3400, 0x9FFF),
          (0xA000, 0xABFF), (0xAC00, 0xD7A3), (0xF900, 0xFFFF), (0x10000, 0x11FFF), (0x12000, 0x1CFFF),
          (0x1D000, 0x1DFFF), (0x1E000, 0x1FBFF), (0x20000, 0x323AF), (0xE0000, 0xE01EF)]


class MixedText:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def character(self):
        first, last = self.random.choice(BLOCKS)
        return chr(self.random.randint(first, last))

    def number(self):
        r = self.random
        kind = r.randrange(5)
        if kind == 0:
            return str(r.randrange(10 ** r.randint(1, 12)))
        if kind == 1:
            return f"{r.uniform(-1000, 1000):.{r.randint(0, 5)}f}"
        if kind == 2:
            return f"{r.randrange(1, 13)}/{r.randrange(1, 32)}/{r.randrange(1800, 2100)}"
        if kind == 3:
            return f"{r.randrange(10 ** 7):,}"
        return r.choice(["½", "²", "³x", "①②", "Ⅳ", "٣٫١٤", "百", "१२३४", "1e9", "0x1F", "𝟙𝟚", "一〇〇"])

    def word(self, scripts=None):
        word = self.random.choice(WORDS[self.random.choice(scripts or list(WORDS))])
        kind = self.random.randrange(12)
        if kind == 0:
            word = word.upper()
        elif kind == 1:
            word = word.capitalize()
        elif kind == 2:
            word += self.random.choice(MARKS)
        return word

    def item(self):
        r = self.random
        kind = r.randrange(20)
        if kind < 10:
            return self.word()
        if kind == 10:
            return self.number()
        if kind == 11:
            return r.choice(EMOJI)
        if kind == 12:
            return r.choice(CONTROLS)
        if kind in (13, 14):
            return r.choice(PUNCTUATION) * r.choice([1, 1, 1, 2, 3])
        if kind == 15:
            return r.choice(CODE)
        if kind == 16:
            return self.character() * r.choice([1, 1, 2, 5])
        if kind == 17:
            return "".join(self.character() for _ in range(r.randint(1, 8)))
        if kind == 18:
            return "".join(r.choice(MARKS) for _ in range(r.randint(1, 4)))
        return r.choice(SPACES)

    def prose(self, words, scripts=None):
        """Words of one or two scripts with spaces and punctuation, as texts mostly are."""
        r = self.random
        scripts = scripts or r.sample(list(WORDS), r.randint(1, 2))
        parts = []
        for _ in range(words):
            parts.append(self.word(scripts) if r.random() < 0.93 else self.number())
            parts.append(r.choice([" ", " ", " ", " ", " ", ", ", ". ", "\n", "? ", "-", " — "]))
        return "".join(parts)

    def mixed(self, items, extra=()):
        """Everything next to everything; `extra` are further items, such as added tokens."""
        r = self.random
        parts = []
        for _ in range(items):
            parts.append(r.choice(extra) if extra and r.random() < 0.15 else self.item())
            if r.random() < 0.5:
                parts.append(r.choice(SPACES))
        return "".join(parts)

    def text(self, size, extra=()):
        """About `size` items of one kind of text or another."""
        r = self.random
        kind = r.randrange(8)
        if kind < 3:
            return self.prose(size)
        if kind < 6:
            return self.mixed(size, extra)
        if kind == 6:
            return "".join(self.character() for _ in range(size))
        return "".join(chr(r.randrange(0xD800)) if r.random() < 0.5 else chr(r.randrange(0xE000, 0x110000))
                       for _ in range(size))
