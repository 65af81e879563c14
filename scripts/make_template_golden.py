#!/usr/bin/env python3
"""Writes tests/golden/template/{families,snippets}.json: templates, contexts, and what jinja2 gives.

The families are templates in the manner of published model families, written for this test; the
snippets go through the language construct by construct. They are in
template_golden_{families,snippets,statements}.py beside this file.
"""

import json
import pathlib

import template_golden_families
import template_golden_snippets
import template_oracle

OUT = pathlib.Path(__file__).parent.parent / "tests/golden/template"


def place(item, items):
    """The index of `item` in `items`, where it is put when it is not there yet."""
    if item not in items:
        items.append(item)
    return items.index(item)


def write(name, cases):
    templates, contexts, results = [], [], []
    for template, context in cases:
        result = template_oracle.render(template, context)
        result.pop("why", None)
        results.append({"template": place(template, templates),
                        "context": place(context, contexts), **result})
    parts = []
    for key, items in [("templates", templates), ("contexts", contexts), ("cases", results)]:
        lines = ",\n".join(json.dumps(x, ensure_ascii=False) for x in items)
        parts.append(f'"{key}": [\n{lines}\n]')
    (OUT / name).write_text("{" + ",\n".join(parts) + "}\n", encoding="utf-8")
    errors = sum("error" in r for r in results)
    print(f"{name}: {len(results)} cases, {errors} of them errors")


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    write("families.json", template_golden_families.cases())
    write("snippets.json", template_golden_snippets.cases())


if __name__ == "__main__":
    main()
