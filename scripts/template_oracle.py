"""jinja2 set up as Transformers sets it up for chat templates: what Headway's templates must equal.

Used by make_template_golden.py and check_template.py. Needs PyPI `jinja2`, nothing else.
"""

import copy
import datetime
import functools
import json

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment

# 2024-07-04 05:06:07 UTC; the C++ side uses the same.
NOW = datetime.datetime(2024, 7, 4, 5, 6, 7)

# What Transformers passes when the caller does not.
DEFAULTS = {"tools": None, "documents": None, "add_generation_prompt": False}


class Raised(jinja2.exceptions.TemplateError):
    """raise_exception was called."""


class Generation(jinja2.ext.Extension):
    """{% generation %} marks what the model wrote; its text is unchanged."""

    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_support"), [], [], body).set_lineno(lineno)

    def _support(self, caller):
        return caller()


class DictFactory:
    """The global `dict`."""

    def __call__(self, *args, **kwargs):
        return dict(*args, **kwargs)


class ChatNamespace(jinja2.utils.Namespace):
    """Refuses names that begin with an underscore."""

    def __init__(*args, **kwargs):
        self, args = args[0], args[1:]
        attributes = dict(*args, **kwargs)
        for name in attributes:
            ChatNamespace._check(name)
        jinja2.utils.Namespace.__init__(self, attributes)

    def __setitem__(self, name, value):
        ChatNamespace._check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def _check(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"namespace cannot hold {name!r}")


def make_environment():
    def raise_exception(message):
        raise Raised(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                          sort_keys=sort_keys)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda format: NOW.strftime(format)
    env.globals["dict"] = DictFactory()
    env.globals["namespace"] = ChatNamespace
    return env


ENVIRONMENT = make_environment()


@functools.lru_cache(maxsize=64)
def compiled(template):
    return ENVIRONMENT.from_string(template)


def render(template, context):
    """One result: {"output": text}, or {"error": True} with "raised" when the template raised."""
    try:
        # A copy: some filters change a list that they are wrongly given (`nums|indent`).
        output = compiled(template).render(
            **{**DEFAULTS, **copy.deepcopy(context)})
        output.encode()
        return {"output": output}
    except Raised as error:
        return {"error": True, "raised": str(error.message)}
    except Exception as error:  # noqa: BLE001: whatever Python says, it is an error
        return {"error": True, "why": f"{type(error).__name__}: {error}"}
