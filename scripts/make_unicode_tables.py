#!/usr/bin/env python3
"""Writes src/text/template/unicode_tables.cc from this Python's own Unicode database.

Chat templates are written for Python's str, so its methods are the definition: every table holds
what str.isalpha, str.upper and the like say of single characters.
"""

import pathlib
import sys
import unicodedata

OUT = pathlib.Path(__file__).parent.parent / "src/text/template/unicode_tables.cc"
CODES = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def runs(items, joins):
    """Cuts a list of tuples that begin with a code into (first, last, step) runs with equal rest."""
    result = []
    i = 0
    while i < len(items):
        best_end, best_step = i, 1
        for step in (1, 2):
            j = i
            while (j + 1 < len(items) and items[j + 1][0] - items[j][0] == step
                   and joins(items[j + 1], items[i])):
                j += 1
            if j > best_end and (step == 1 or j - i >= 2):
                best_end, best_step = j, step
        result.append((items[i], items[best_end], best_step))
        i = best_end + 1
    return result


def write_rows(out, rows):
    line = "  "
    for row in rows:
        if len(line) + len(row) > 100:
            out.append(line)
            line = "  "
        line += row
    out.append(line)


def code_table(out, name, predicate):
    items = [(c,) for c in CODES if predicate(chr(c))]
    rows = [f"{{{a[0]},{b[0]},{step}}}," for a, b, step in runs(items, lambda x, y: True)]
    out.append(f"constexpr CodeRange k{name}[] = {{")
    write_rows(out, rows)
    out.append("};\n")


def case_table(out, name, mapping):
    items = [(c, ord(mapping(chr(c))) - c) for c in CODES
             if len(mapping(chr(c))) == 1 and mapping(chr(c)) != chr(c)]
    rows = [f"{{{a[0]},{b[0]},{step},{a[1]}}},"
            for a, b, step in runs(items, lambda x, y: x[1] == y[1])]
    out.append(f"constexpr CaseRange k{name}[] = {{")
    write_rows(out, rows)
    out.append("};\n")


def literal(text):
    # One short literal a character, so that no escape swallows the character after it.
    if text is None:
        return "0"
    return '"' + '""'.join("".join(f"\\x{b:02X}" for b in c.encode()) for c in text) + '"'


def special_table(out):
    rows = []
    for c in CODES:
        char = chr(c)
        upper = char.upper() if len(char.upper()) > 1 else None
        lower = char.lower() if len(char.lower()) > 1 else None
        title = char.title() if char.title() != char.upper() else None
        if upper or lower or title:
            rows.append(f"{{{c},{literal(upper)},{literal(title)},{literal(lower)}}},")
    out.append("constexpr SpecialCase kSpecial[] = {")
    write_rows(out, rows)
    out.append("};\n")


def main():
    tables = [("Alpha", str.isalpha),
              ("Numeric", lambda c: c.isalnum() and not c.isalpha()), ("Decimal", str.isdecimal),
              ("Digit", str.isdigit), ("Lower", str.islower), ("Upper", str.isupper),
              ("Printable", str.isprintable)]
    out = ["// Written by scripts/make_unicode_tables.py from Unicode " + unicodedata.unidata_version
           + "; do not edit.", "// clang-format off",
           '#include "text/template/unicode_tables.h"', "", "namespace headway::jinja {",
           "namespace {", ""]
    for name, predicate in tables:
        code_table(out, name, predicate)
    case_table(out, "ToUpper", str.upper)
    case_table(out, "ToLower", str.lower)
    special_table(out)
    out += ["}  // namespace", ""]
    for name, _ in tables:
        out.append(f"const std::span<const CodeRange> k{name}Ranges = k{name};")
    out += ["const std::span<const CaseRange> kToUpperRanges = kToUpper;",
            "const std::span<const CaseRange> kToLowerRanges = kToLower;",
            "const std::span<const SpecialCase> kSpecialCases = kSpecial;", "",
            "}  // namespace headway::jinja"]
    OUT.write_text("\n".join(out) + "\n")
    print(f"{OUT}: {len(out)} lines", file=sys.stderr)


if __name__ == "__main__":
    main()
