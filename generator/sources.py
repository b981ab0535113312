"""Candidate to full source text, and back.

A source carries its constants in two marked blocks near the top, one `NAME = value` a line:

    // ---- problem ------------------------------   sizes the compiler must know (left out where none are)
    // ---- tuning parameters --------------------   the candidate's params, in upper case
    // -------------------------------------------

Rendering replaces those values and nothing else (and, for a bug, one line of the body), so a file compiles as it lies. This module
reads no file: templates come from `generator.kernels`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from generator import kernels
from generator.ops import BY_NAME
from generator.ops.base import Bug, Params

_RULE = re.compile(r"^(?://|#) -{4,}+(?P<title>[^-\n]*+)-*+$", re.MULTILINE)
_CONSTANT = re.compile(r"^(?P<head>(?:constexpr int )?(?P<name>[A-Z][A-Z0-9_]*) = )(?P<value>-?\d+)(?P<end>;?)(?P<gap> *)", re.MULTILINE)
_TITLE = re.compile(r'^(?:// |""")(?P<op>\w+)/(?P<variant>\w+):')


class SourceError(ValueError):
    """A source or template is not of the form this module writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """What a source is: the candidate, and the constants of its problem block, that render to exactly it."""

    op: str
    variant: str
    constants: Mapping[str, int]
    params: Params
    bug: Bug | None


def parse(text: str) -> Parsed:
    """The candidate that a source is, bug included. Raises SourceError for a text that no candidate renders to."""
    name, variant_name, constants, params = identify(text)
    try:
        op = BY_NAME[name]
        variant = op.variant(variant_name)
    except KeyError as error:
        raise SourceError(f"no such source: {error.args[0]}") from None
    template = kernels.template(name, variant_name, op.impl)
    for bug in (None, *variant.bugs):
        if render(template, constants, params, bug) == text:
            return Parsed(op=name, variant=variant_name, constants=constants, params=params, bug=bug)
    raise SourceError("no rendering of its template gives this text")


def render(template: str, constants: Mapping[str, int], params: Mapping[str, int], bug: Bug | None = None) -> str:
    """The source of one candidate.

    `constants` fills the problem block, which may use some of them only; `params` (lower-case names) must name exactly the constants
    of the tuning block. Raises SourceError otherwise, or if the bug's line is not there exactly once.
    """
    head, problem, tuning, body = _parts(template)
    text_problem = _fill(problem, constants_of(template, constants), "problem")
    text_tuning = _fill(tuning, {name.upper(): value for name, value in params.items()}, "tuning")
    if bug is not None:
        if body.count(bug.old) != 1:
            raise SourceError(f"bug {bug.name}: its line must occur once in the body, it occurs {body.count(bug.old)} times")
        body = body.replace(bug.old, bug.new)
    return head + text_problem + text_tuning + body


def identify(text: str) -> tuple[str, str, dict[str, int], dict[str, int]]:
    """Op, variant, constants and params (lower-case names) that a source states."""
    title = _TITLE.match(text)
    if title is None:
        raise SourceError(f"first line must read '// op/variant: ...', it reads {text.splitlines()[:1]}")
    _, problem, tuning, _ = _split(text)
    params = {name.lower(): value for name, value in _values(tuning).items()}
    return title["op"], title["variant"], _values(problem), params


def label(variant: str, params: Params, constants: Mapping[str, int] | None = None, bug: str = "") -> str:
    """`vec COLS=4096 threads=256 vec=8 bug=sum_not_shared`: variant, constants and params in the order of the source, bug."""
    parts = [f"{k}={v}" for k, v in {**(constants or {}), **params}.items()] + [f"bug={bug}"] * bool(bug)
    return " ".join((variant, *parts))


def constants_of(template: str, constants: Mapping[str, int]) -> dict[str, int]:
    """Those of `constants` that the problem block of a template uses, in its order."""
    return {name: constants[name] for name in _values(_parts(template)[1]) if name in constants}


def _split(text: str) -> tuple[str, str, str, str]:
    """Head, problem block, tuning block and body; they join to `text` again."""
    rules = {m["title"].strip(): m.start() for m in _RULE.finditer(text)}
    if "tuning parameters" not in rules or "" not in rules:
        raise SourceError("a source needs a rule 'tuning parameters' and a closing one, and may have 'problem' before them")
    tuning, end = rules["tuning parameters"], rules[""]
    cuts = (rules.get("problem", tuning), tuning, end)
    return text[: cuts[0]], text[cuts[0] : cuts[1]], text[cuts[1] : cuts[2]], text[cuts[2] :]


@cache
def _parts(template: str) -> tuple[str, str, str, str]:
    """The parts of a template, which is rendered hundreds of times."""
    return _split(template)


def _values(block: str) -> dict[str, int]:
    return {m["name"]: int(m["value"]) for m in _CONSTANT.finditer(block)}


def _fill(block: str, values: Mapping[str, int], where: str) -> str:
    names = set(_values(block))
    if names != set(values):
        raise SourceError(f"{where} block has {sorted(names)}, values given for {sorted(values)}")

    def put(match: re.Match[str]) -> str:
        old, new = match["value"], str(values[match["name"]])
        gap = match["gap"] and " " * max(1, len(match["gap"]) + len(old) - len(new))
        return f"{match['head']}{new}{match['end']}{gap}"

    return _CONSTANT.sub(put, block)
