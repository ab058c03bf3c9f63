"""Templates find what they were written for, and can look into protected text. Cases 16, 17, E5."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.exceptions import SecurityError, TemplateRuntimeError
from jinja2.sandbox import ImmutableSandboxedEnvironment

import turbospark_chat
from turbospark_chat.chat.control_guard import ControlGuard
from turbospark_chat.chat.rendered_prompt import Control
from turbospark_chat.chat.template_environment import TemplateEnvironment

SPELLINGS = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<s>", '<|"|>', "<\\n>", "<7>")
GUARD = ControlGuard(SPELLINGS)
ENVIRONMENT = TemplateEnvironment(GUARD)
FRAGMENTS = sorted({part for s in SPELLINGS for n in range(1, len(s)) for part in (s[:n], s[n:], s)})
TEXTS = st.lists(st.sampled_from([*FRAGMENTS, " ", "\n", "a", "Z", "é", "😀", "{{", "7", ", ", "\U000f0000"]))
CONTENTS = TEXTS.map("".join)


def render(source: str, **variables: Any) -> str:
    return ENVIRONMENT.compile_template(source).render(variables)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ {'b': '<é>', 'a': 1} | tojson }}", '{"b": "<é>", "a": 1}'),
        ("{{ {'b': 'é', 'a': 1} | tojson(ensure_ascii=true) }}", '{"b": "\\u00e9", "a": 1}'),
        ("{{ {'b': 'é', 'a': 1} | tojson(sort_keys=true) }}", '{"a": 1, "b": "é"}'),
        ("{{ {'a': [1]} | tojson(indent=1) }}", '{\n "a": [\n  1\n ]\n}'),
        ("{{ {'a': 1, 'b': 2} | tojson(separators=(',', ':')) }}", '{"a":1,"b":2}'),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        ("{% for i in [1, 2, 3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "13"),
        (
            "{% set n = namespace(x=1) %}{% for i in [1, 2] %}{% set n.x = n.x + i %}{% endfor %}{{ n.x }}",
            "4",
        ),
        ("{% generation %}x{% endgeneration %}", "x"),
        ("{{ 'tools' if tools else 'none' }}", "none"),
        ("A\n{% if true %}\nB\n{% endif %}\nC\n", "A\nB\nC"),
        ("  {% if true %}\nB\n  {% endif %}", "B\n"),
    ],
)
def test_templates_find_what_they_were_written_for(source: str, expected: str) -> None:  # 17
    assert render(source) == expected


def test_raise_exception_raises_with_its_words() -> None:  # 17
    with pytest.raises(TemplateRuntimeError, match="^m$"):
        render("{{ raise_exception('m') }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ lipsum.__globals__ }}",
        "{{ ''.__class__ }}",
        "{{ messages.append(1) }}",
        "{{ ''['__class__'] }}",
        "{{ '{0.__class__}'.format('') }}",
        "{{ 'a'.join.__self__ }}",
        "{{ strftime_now.__self__ }}",
    ],
)
def test_a_template_cannot_reach_out_of_its_sandbox(source: str) -> None:  # E5
    with pytest.raises(SecurityError):
        render(source, messages=[], strftime_now="".format)


def test_only_the_sandbox_renders_templates() -> None:  # E5
    unsafe = re.compile(r"jinja2\.Template\(|(?<!\w)Environment\(|from_string\(|(?<!\w)Template\(")
    files = list(Path(turbospark_chat.__file__).parent.rglob("*.py"))
    assert files
    assert [file.name for file in files if unsafe.search(file.read_text("utf-8"))] == []


LOOKS_AT_CHARACTERS = [  # each line one case, of expressions on the text c
    "c; c.split('</think>')[-1].lstrip('\\n'); c.split('</think>')[0].rstrip('\\n').split('<think>')[-1]",
    "'</think>' in c; '<' not in c; c == '<s>'; c < '<t'; c in ['<s>', 'a']; bos in c; c == c + 'a'",
    "c.startswith('<think>'); c.startswith(bos); c.endswith(('>', 'a')); c.find('|'); c.isalpha()",
    "c is eq '<s>'; c is in ['<s>']; c is lower; c is string; c is none; c is defined",
    "c | replace('<', '(') | replace('</think>', ''); c.replace('|', '-', 1); c.removeprefix('<|')",
    "c | upper; c.lower(); c.title(); c | capitalize; c | trim; c.strip('<>'); c | trim('>')",
    "c.partition('|')[2]; c.rsplit('>', 1); c.splitlines(); c | list | join('.')",
    "bos.join([c, c]); c.join([c, 'a']); c.join([c, c] | map('upper'))",
    "c | length; c[1:3]; c[::-1]; c * 2; c ~ '|'; c + '<'; '%s' % c; '{}'.format(c); c | wordcount",
    "c | int; c | float(0.5); c | first; c | default('x'); c or 'x'; c | string; c is eq c",
    "c | tojson; {'<k>': [c, {c: c}]} | tojson(indent=1); c | tojson(ensure_ascii=true)",
    "[c]; {'k': c}; (c, 1); [c, '<', 'z'] | sort; {c: 1, '<': 2} | dictsort; {'<s>': 1, 'a': 2, '<': 3}[c]",
    "[c, c + 'a'] | select('eq', '<s>') | list; [{'k': c}] | map(attribute='k') | map('upper') | list",
]


@pytest.mark.parametrize("expressions", LOOKS_AT_CHARACTERS)
@given(content=CONTENTS)
@settings(max_examples=60, deadline=None)
def test_looking_at_protected_text_gives_what_the_text_itself_gives(expressions: str, content: str) -> None:
    source = "".join(f"{{{{ {part} }}}};" for part in expressions.split("; "))
    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    plain.filters["tojson"] = lambda value, **options: json.dumps(value, **{"ensure_ascii": False, **options})
    prompt = GUARD.segments(render(source, c=GUARD.protect(content), bos="<s>"))
    assert prompt.text == plain.from_string(source).render(c=content, bos="<s>")


@pytest.mark.parametrize(
    "source",
    [
        "{{ '<' + c + '>' }}",
        "{{ '<|' + c + '|>' }}",
        "{{ '<|im_' ~ c }}",
        "{{ c ~ '>' }}",
        "{{ c[::-1] }}{{ c | upper | lower }}{{ c.split('a') | join }}",
        "{{ c | replace('a', '') }}{{ c.replace(' ', '') }}{{ c | reverse }}",
        "{% for x in c %}{{ x }}{% endfor %}{{ c | list | join }}{{ c | tojson }}{{ [c] }}",
        "{{ c }}{{ d }}{{ c ~ d }}{{ [c, d] | join }}{{ (c ~ d) | trim }}",
        "{{ '%s%s' % (c, d) }}{{ '<{}>'.format(c) }}{{ c | string }}{{ c.title().lower() }}",
    ],
)
@given(c=CONTENTS, d=CONTENTS)
@settings(max_examples=60, deadline=None)
def test_whatever_a_template_does_to_text_no_control_token_comes_of_it(source: str, c: str, d: str) -> None:
    rendered = render(source, c=GUARD.protect(c), d=GUARD.protect(d))
    assert [segment for segment in GUARD.segments(rendered).segments if isinstance(segment, Control)] == []
