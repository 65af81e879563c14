"""Random templates for check_template.py: mostly of fitting types, with odd pieces mixed in."""

import random

from template_golden_snippets import CONTEXT

# How often a piece of another type than the wanted one is taken: most such templates are errors,
# and errors must agree too.
ODD = 0.03

TEXTS = ["", " ", "text ", "\n", "  \n  ", "a\n", "\n b", "é", "{ }", "%", "\t", "# x"]
BEGIN = ["{%", "{%", "{%", "{%-", "{%+"]
END = ["%}", "%}", "%}", "-%}", "+%}"]

ATOMS = {
    "str": ["name", "text", "uni", "multi", "empty", "html", "quote", "''", "'a'", "'Hello World'",
            "'é世🌍'", "' pad '", "'a,b,,c'", "'x\\ny'", "'<b>&'", "'12'", "'3.5'", "\"it's\"", "'aXbX'",
            "'-7'", "'\\t'", "'Ünï'", "'ß'", "'0x1f'", "users[0].name", "words[0]"],
    "num": ["n", "pi", "neg", "zero", "0", "1", "2", "3", "7", "10", "1.5", "0.1", "100000", "2.0",
            "n", "d.a", "users[1].age", "1e16", "2.5", "true", "9007199254740993"],
    "list": ["nums", "words", "mixed", "nested", "[]", "[1, 2, 3]", "['b', 'a', 'C']", "(1, 'x')",
             "range(4)", "none_list", "d|list", "d.items()|list", "[1, 1.0, true, 2]", "d.values()",
             "nums|map('string')|list"],
    "dict": ["d", "deep", "none_dict", "{'a': 1, 'b': [2]}", "{}", "users[0]", "dict(d, q=1)",
             "{1: 2, 'k': none}"],
    "users": ["users", "users[:2]", "users|reverse|list", "users|selectattr('admin')|list"],
    "bool": ["yes", "no", "true", "false", "loop_flag is defined", "missing is defined"],
    "odd": ["none", "nothing", "missing", "namespace()", "range", "missing.x", "d.nope", "nums[9]",
            "name.upper", "5 if no", "()", "loop", "ns", "-0.0"],
}

# Expressions of a type from expressions of others: each {type} is replaced.
RULES = {
    "str": ["{str}|upper", "{str}|lower", "{str}|title", "{str}|capitalize", "{str}|trim",
            "{str}|trim({str})", "{str}|replace({str}, {str})", "{str}|replace('a', {str}, {small})",
            "{any}|string", "{any} ~ {any}", "{str} + {str}", "{str} * {small}", "{list}|join({str})",
            "{users}|join(', ', attribute='name')", "{str}[{small}]", "{str}[{small}:]",
            "{str}[:{small}]", "{str}[::{step}]", "{str}[{small}:{small}:{step}]", "{json}|tojson",
            "{json}|tojson(indent={small})", "{json}|tojson(sort_keys=true)",
            "{json}|tojson(ensure_ascii={bool})", "{json}|tojson(separators=(',', ':'))",
            "{str}.strip()", "{str}.lstrip({str})", "{str}.rstrip('d ')", "{str}.upper()",
            "{str}.title()", "{str}.capitalize()", "{str}.replace({str}, {str})",
            "{str}.replace('l', '', {small})", "{str}.join(words)",
            "{str}.removeprefix({str})", "{str}.removesuffix({str})", "{str}|indent",
            "{str}|indent({small}, {bool})", "{str}|indent(1, blank={bool})", "{any}|e", "{any}|safe",
            "'%s-%s'|format({any}, {any})",
            "'%5.2f|%-4d|%x' % ({num}, {num}, {small})", "'%r' % {str}", "'{{}}:{{}}'.format({any}, {str})",
            "'{{:>6}}|{{:<4}}|{{:^5}}'.format({str}, {str}, {str})", "'{{:5}}|{{:.2f}}'.format({num}, {num})",
            "{str} if {bool} else {str}", "({str} if {bool})", "{str}|first", "{str}|last",
            "{str}|reverse", "{str}.split({str})|last", "{list}|first|string",
            "{str}|default({str}, {bool})", "missing|default({str})", "{any}|pick_none|string",
            "{users}|map(attribute='name')|join('/')", "({str}|e) + {str}", "{str}|e|upper",
            "'a' 'b' {str}", "strftime_now('%Y %b')", "loop.cycle({str}, 'q')"],
    "num": ["{num} + {num}", "{num} - {num}", "{num} * {num}", "{num} / {num}", "{num} // {num}",
            "{num} % {num}", "-{num}", "+{num}", "{str}|length", "{list}|length",
            "{list}|count", "{dict}|length", "{str}|int", "{num}|int", "{str}|int({small})",
            "{str}|float", "{num}|float", "{num}|abs", "{num}|round",
            "{num}|round({small})",
            "nums|sum", "nums|sum(start={num})", "{users}|sum(attribute='age')", "nums|min", "nums|max",
            "{str}.find({str})", "{str}.rfind('l')", "{str}.count({str})",
            "{list}.count({num})", "nums[{small}]", "{dict}.a", "{num} if {bool} else {num}",
            "loop.index", "loop.length", "loop.revindex0", "ns.v",
            "{num} and {num}", "{num} or {num}", "[{num}, {num}]|max", "{bool} + {num}"],
    "list": ["{list}|list", "{list}|sort", "nums|sort(reverse={bool})", "words|sort(case_sensitive={bool})",
             "{list}|reverse|list", "{list}|unique|list", "{list}[{small}:]", "{list}[::{step}]",
             "{list}[:{small}]", "{list} + {list}", "[{any}, {any}]", "[{num}] * {small}",
             "{str}.split()", "{str}.split({str})", "{str}.split(',', {small})", "{str}.rsplit(' ', 1)",
             "{str}.splitlines({bool})", "{str}|list", "{dict}|items|list", "{dict}|dictsort",
             "{dict}|dictsort(by='value')", "{list}|map('string')|list", "words|map('upper')|list",
             "{list}|map('int')|list", "{users}|map(attribute='name')|list",
             "{users}|map(attribute='admin', default={any})|list", "nums|select('odd')|list",
             "{list}|select|list", "{list}|reject('none')|list", "nums|select('gt', {num})|list",
             "nums|reject('divisibleby', 2)|list", "{list}|select('string')|list",
            "{list}|select('in', {list})|list", "{list}|map('tojson')|list", "{list}|map('default', {any})|list",
             "{dict}.values()|list", "range({small}, 7, 2)|list", "{list}|map('replace', 'a', 'A')|list",
             "nested|map('first')|list", "{list}|reject('in', {list})|list"],
    "users": ["{users}|sort(attribute='age')", "{users}|sort(attribute='name', reverse={bool})",
              "{users}|selectattr('age', 'gt', 26)|list", "{users}|rejectattr('admin', 'defined')|list",
              "{users}|selectattr('name', 'in', ['bob', 'Al'])|list", "{users}[{small}:]",
              "{users}|unique(attribute='age')|list", "{users}|sort(attribute='age,name')"],
    "dict": ["{dict}", "dict({dict})", "{{'k': {any}}}", "{users}|first", "{users}[0]",
             "{dict}.copy()", "deep.x", "{{'b': {num}, 'a': {str}}}"],
    "bool": ["{any} == {any}", "{num} < {num}", "{str} <= {str}", "{num} != {num}", "{str} in {str}",
             "{any} in {list}", "{str} not in {dict}", "{bool} and {bool}", "{bool} or {bool}",
             "not {any}", "{num} < {num} <= {num}", "{any} is defined", "{any} is none",
             "{any} is string", "{any} is number", "{any} is mapping", "{any} is iterable",
             "{any} is sequence", "{num} is odd", "{num} is even", "{num} is divisibleby({num})",
             "{any} is not undefined", "{any} is boolean", "{any} is integer", "{any} is float",
             "{any} is true", "{any} is callable", "{any} is eq {num}", "{num} is gt {num}",
             "{any} is in {list}", "{any} is sameas none",
             "{str}.startswith({str})", "{str}.endswith(('d', ' '))", "{str}.isdigit()",
             "{str}.isalpha()", "{str}.isspace()", "{str}.islower()",
            "loop.first", "loop.last", "{list} < {list}", "{dict} == {dict}"],
}
TYPES = ["str", "num", "list", "dict", "bool", "users", "odd"]


class Generator:
    def __init__(self, rng):
        self.rng = rng
        self.macros = []

    def pick(self, items):
        return self.rng.choice(items)

    def expr(self, kind, depth):
        if kind == "any":
            kind = self.pick(TYPES[:5])
        if self.rng.random() < ODD:
            kind = self.pick(TYPES)
        if kind == "odd" or depth <= 0 or self.rng.random() < 0.2:
            if kind == "num" and self.rng.random() < 0.15:
                return self.pick(["loop.index0", "ns.v", "x", "y"])
            return self.pick(ATOMS[kind])
        rule = self.pick(RULES[kind]).replace("|pick_none", "")
        return self.fill(rule, depth)

    def fill(self, rule, depth):
        out = ""
        i = 0
        while i < len(rule):
            if rule.startswith("{{", i) or rule.startswith("}}", i):
                out += rule[i]
                i += 2
            elif rule[i] == "{":
                end = rule.index("}", i)
                out += self.piece(rule[i + 1:end], depth)
                i = end + 1
            else:
                out += rule[i]
                i += 1
        return out

    def piece(self, kind, depth):
        if kind == "small":
            return self.pick(["0", "1", "2", "3", "-1", "-2"])
        if kind == "step":
            return self.pick(["1", "2", "-1", "-2", "3"])
        if kind == "json":
            kind = self.pick(["str", "num", "list", "dict", "bool", "users"])
        text = self.expr(kind, depth - 1)
        plain = text.isidentifier() or text[0] in "'[" and text.count(text[0]) <= 2 and text[-1] in "']"
        return text if plain or self.rng.random() < 0.1 else f"({text})"

    def tag(self, inside):
        return f"{self.pick(BEGIN)} {inside} {self.pick(END)}"

    def any(self, depth):
        return self.expr("any", depth)

    def body(self, depth, in_loop):
        return "".join(self.stmt(depth, in_loop) for _ in range(self.rng.randint(1, 3)))

    def stmt(self, depth, in_loop):
        choices = ["output"] * 6 + ["text"] * 2 + ["set"] * 4 + ["setblock", "filter", "misc"]
        if depth > 0:
            choices += ["if"] * 3 + ["for"] * 4 + ["macro", "call", "ns"]
        if in_loop:
            choices += ["control"]
        return getattr(self, "stmt_" + self.pick(choices))(depth, in_loop)

    def stmt_output(self, depth, in_loop):
        text = self.any(3)
        if self.macros and self.rng.random() < 0.15:
            text = f"{self.pick(self.macros)}({self.any(1)})"
        return (self.pick(TEXTS) + "{{" + self.pick(["", "", "-", "+"]) + " " + text + " "
                + self.pick(["", "", "-"]) + "}}" + self.pick(TEXTS))

    def stmt_text(self, depth, in_loop):
        return self.pick(TEXTS)

    def stmt_set(self, depth, in_loop):
        # Only names that the context lacks: jinja2 takes a name that is set anywhere in a scope for
        # undefined until then, Headway looks it up when it is read.
        target = self.pick(["x", "y", "z", "x, y"])
        value = f"{self.any(2)}, {self.any(1)}" if "," in target else self.any(2)
        return self.tag(f"set {target} = {value}")

    def stmt_ns(self, depth, in_loop):
        return self.tag(f"set ns.v = {self.pick(['ns.v + 1', 'ns.v ~ name', self.any(2)])}")

    def stmt_setblock(self, depth, in_loop):
        filters = self.pick(["", " | upper", " | trim", " | replace('a', 'b')", " | length"])
        return (self.tag(f"set {self.pick(['x', 'y', 'z'])}{filters}")
                + self.body(depth - 1, in_loop) + self.tag("endset"))

    def stmt_if(self, depth, in_loop):
        text = self.tag(f"if {self.expr('bool', 2)}") + self.body(depth - 1, in_loop)
        for _ in range(self.rng.randint(0, 1)):
            text += self.tag(f"elif {self.any(1)}") + self.body(depth - 1, in_loop)
        if self.rng.random() < 0.5:
            text += self.tag("else") + self.body(depth - 1, in_loop)
        return text + self.tag("endif")

    def stmt_for(self, depth, in_loop):
        test = self.pick(["", "", "", f" if {self.expr('bool', 1)}", " if x != ns.v"])
        if self.rng.random() < 0.2:
            head = f"for x, y in {self.pick(['d.items()', 'd|dictsort', 'd|items', '[(1, 2)]'])}"
        else:
            target = self.pick(["x", "y", "name", "n"])
            source = self.expr(self.pick(["list", "list", "users", "dict", "str"]), 2)
            lazy = self.pick(["", "", "", "|reverse", "|map('string')", "|select", "|unique"])
            head = f"for {target} in ({source}){lazy}"
        text = self.tag(head + test) + self.body(depth - 1, True)
        if self.rng.random() < 0.2:
            text += self.tag("else") + self.body(depth - 1, in_loop)
        return text + self.tag("endfor")

    def stmt_control(self, depth, in_loop):
        text = self.tag(self.pick(["break", "continue"]))
        if self.rng.random() < 0.7:
            text = self.tag(f"if {self.expr('bool', 1)}") + text + self.tag("endif")
        return text

    def stmt_macro(self, depth, in_loop):
        name = self.pick(["m1", "m2"])
        args = self.pick(["", "x", "x=1", "x, y='q'", "name", "x=n, y=x"])
        text = (self.tag(f"macro {name}({args})") + self.body(depth - 1, False)
                + self.pick(["", "", "{{ caller() }}"])
                + self.tag("endmacro"))
        self.macros.append(name)
        return text

    def stmt_call(self, depth, in_loop):
        if not self.macros:
            return ""
        args = self.pick(["", "", "(x)"])
        return (self.tag(f"call{args} {self.pick(self.macros)}({self.any(1)})")
                + self.body(depth - 1, False) + self.tag("endcall"))

    def stmt_filter(self, depth, in_loop):
        name = self.pick(["upper", "trim", "indent(2)", "replace('a', 'b')|title", "e"])
        return self.tag(f"filter {name}") + self.body(depth - 1, in_loop) + self.tag("endfilter")

    def stmt_misc(self, depth, in_loop):
        return self.pick(["{# c #}", "{#- c -#}", "{% raw %}{{ r }}{% endraw %}", "{# c +#}\n",
                          self.tag("generation") + self.stmt_output(0, False)
                          + self.tag("endgeneration"),
                          self.tag(f"if {self.expr('bool', 1)}") + "{{ raise_exception('no ' ~ n) }}"
                          + self.tag("endif")])


def cases(seed, count):
    rng = random.Random(seed)
    result = []
    for _ in range(count):
        generator = Generator(rng)
        text = "{% set ns = namespace(v=0) %}" if rng.random() < 0.7 else ""
        if rng.random() < 0.5:
            text += "{{ " + generator.any(4) + " }}"
        else:
            text += generator.body(3, False)
        result.append({"template": text, "context": CONTEXT})
    return result
