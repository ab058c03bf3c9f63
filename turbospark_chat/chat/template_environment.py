"""The jinja2 sandbox that chat templates were written for, made blind to the guard's placeholders.

Templates look into messages: `'</think>' in content`, `content.split(...)`, `content | replace(...)`. So
comparisons, string methods, and the filters and tests that look at characters go by the literal text. What
is not listed here sees placeholders: that may change the text, but never makes a control token.
"""

import json
from typing import Any, NoReturn

from jinja2 import Template, Undefined, nodes
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from turbospark_chat.chat.control_guard import ControlGuard

_FILTERS_OF_CHARACTERS = (
    "capitalize", "dictsort", "float", "int", "lower", "replace", "sort", "string", "title", "tojson", "trim",
    "upper", "wordcount",
)  # fmt: skip
_TESTS_OF_CHARACTERS = (
    "==", "eq", "equalto", "!=", "ne", "<", "lt", "lessthan", "<=", "le", ">", "gt", "greaterthan", ">=",
    "ge", "in", "lower", "upper",
)  # fmt: skip


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox with what Hugging Face gives templates: `tojson`, `raise_exception`, loop controls."""

    def __init__(self, guard: ControlGuard) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[LoopControlExtension, _GenerationBlock],
            finalize=self._printed,
        )  # fmt: skip
        self._guard = guard
        self._as_text = guard.literally(str)
        self.literal_text = guard.restore  # read by the compiled comparisons
        self.globals["raise_exception"] = _raise_exception
        self.filters["tojson"] = _tojson
        tests: dict[str, Any] = self.tests  # jinja2 does not say what calls them
        for name in _FILTERS_OF_CHARACTERS:
            self.filters[name] = guard.literally(self.filters[name])
        for name in _TESTS_OF_CHARACTERS:
            tests[name] = guard.literally(tests[name])

    def compile_template(self, source: str) -> Template:
        """Parse and compile a template. Raises what jinja2 and the Python compiler raise."""
        tree = _LiteralComparisons().visit(self.parse(source))
        code = self.compile(tree, filename="<chat template>")
        return Template.from_code(self, code, self.make_globals(None))

    def call(  # noqa: B902
        __self, __context: Context, __obj: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Call from a template; methods of strings see the literal text."""
        text = getattr(__obj, "__self__", None)
        # `join` only places text, and may be given an iterator, which can be read but once.
        if isinstance(text, str) and __obj.__name__ != "join":
            method = __self._guard.literally(getattr(type(text), __obj.__name__))
            return super().call(__context, method, text, *args, **kwargs)
        return super().call(__context, __obj, *args, **kwargs)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """Subscribe from a template; text from a message finds the key it spells."""
        found = super().getitem(obj, argument)
        if isinstance(found, Undefined) and isinstance(argument, str):
            return super().getitem(obj, self._guard.restore(argument))
        return found

    def unsafe_undefined(self, obj: Any, attribute: str) -> NoReturn:
        """Refuse at once; jinja2 itself would print an unsafe attribute as nothing."""
        raise SecurityError(f"access to `{attribute}` of a {type(obj).__name__} is unsafe")

    def _printed(self, value: Any) -> Any:
        """Return what `{{ value }}` prints: Python prints lists and dicts, and would escape placeholders."""
        return value if isinstance(value, str) else self._as_text(value)


class _LiteralComparisons(NodeTransformer):
    """Makes every comparison one of literal text, where no placeholder differs from its character."""

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:
        self.generic_visit(node)
        node.expr = _literal(node.expr)
        for operand in node.ops:
            operand.expr = _literal(operand.expr)
        return node


def _literal(expression: nodes.Expr) -> nodes.Expr:
    if isinstance(expression, nodes.Const):
        return expression
    restore = nodes.EnvironmentAttribute("literal_text")
    return nodes.Call(restore, [expression], [], None, None, lineno=expression.lineno)


class _GenerationBlock(Extension):
    """`{% generation %}` marks the model's own text for training; a prompt takes the text as it is."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the body of the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateRuntimeError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON as a model reads it: keys in order, and nothing escaped that JSON does not demand."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
