import ast
import difflib
import itertools

import pytest

from generator import kernels, sources
from generator.ops import OPS
from generator.ops.base import Bug, Op, Variant
from generator.sources import SourceError

VARIANTS = [(op, v) for op in OPS for v in op.variants]
IDS = [f"{op.name}-{v.name}" for op, v in VARIANTS]

CUDA = """// op/one: adds
// ---- problem ----------------------------------------------------------------
constexpr int COLS = 4096;  // row length
// ---- tuning parameters ------------------------------------------------------
constexpr int THREADS = 256; // threads
constexpr int VEC = 8;
// -----------------------------------------------------------------------------
int x = THREADS * COLS;
"""


def renders(op: Op, variant: Variant):
    template = kernels.template(op.name, variant.name, op.impl)
    return template, [(s, p, sources.render(template, op.constants(s), p)) for s in (*op.shapes, op.heldout) for p in variant.points]


def test_render_replaces_constants_and_keeps_comments_aligned():
    text = sources.render(CUDA, {"COLS": 64, "OTHER": 1}, {"threads": 32, "vec": 16})
    assert "constexpr int COLS = 64;    // row length" in text
    assert "constexpr int THREADS = 32;  // threads" in text
    assert "constexpr int VEC = 16;\n" in text
    assert sources.render(text, {"COLS": 4096}, {"threads": 256, "vec": 8}) == CUDA


@pytest.mark.parametrize("params", [{"threads": 1}, {"threads": 1, "vec": 2, "rows": 3}, {}])
def test_render_refuses_other_params(params: dict[str, int]):
    with pytest.raises(SourceError, match="tuning block has"):
        sources.render(CUDA, {"COLS": 1}, params)


def test_a_bug_must_apply_once():
    bug = Bug(name="b", old="THREADS", new="1", slip="", symptom="")
    assert "int x = 1 * COLS" in sources.render(CUDA, {"COLS": 1}, {"threads": 1, "vec": 1}, bug)
    with pytest.raises(SourceError, match="0 times"):
        sources.render(CUDA, {"COLS": 1}, {"threads": 1, "vec": 1}, Bug(name="b", old="absent", new="", slip="", symptom=""))


def test_a_long_line_of_dashes_is_refused_at_once():
    with pytest.raises(SourceError, match="needs a rule"):
        sources.render("// " + "-" * 200_000 + "x\n", {}, {})


def test_rules_must_be_there():
    with pytest.raises(SourceError, match="needs a rule"):
        sources.render("// op/one: adds\n", {}, {})


@pytest.mark.parametrize(("op", "variant"), VARIANTS, ids=IDS)
def test_every_candidate_renders_and_reads_back(op: Op, variant: Variant):
    _, rendered = renders(op, variant)
    for shape, params, text in rendered:
        name, read_variant, constants, read = sources.identify(text)
        assert (name, read_variant, read) == (op.name, variant.name, dict(params))
        assert constants.items() <= dict(op.constants(shape)).items()
        assert all(line.rstrip() == line for line in text.splitlines())


@pytest.mark.parametrize(("op", "variant"), VARIANTS, ids=IDS)
def test_parse_gives_back_every_candidate_with_its_bug(op: Op, variant: Variant):
    template = kernels.template(op.name, variant.name, op.impl)
    for shape in (op.shapes[0], op.heldout):
        for params in (*variant.points, *(bad.params for bad in variant.illegal)):
            for bug in (None, *variant.bugs):
                found = sources.parse(sources.render(template, op.constants(shape), params, bug))
                assert (found.op, found.variant, found.params, found.bug) == (op.name, variant.name, params, bug)


def test_a_text_that_is_no_candidate_is_refused():
    op, variant = VARIANTS[0]
    text = sources.render(kernels.template(op.name, variant.name, op.impl), op.constants(op.shapes[0]), variant.start)
    for bad in (text + " ", text.replace("float", "double", 1), text.replace(f"// {op.name}/", "// nothing/", 1), ""):
        with pytest.raises(SourceError):
            sources.parse(bad)


@pytest.mark.parametrize(("op", "variant"), VARIANTS, ids=IDS)
def test_no_two_points_give_the_same_source(op: Op, variant: Variant):
    _, rendered = renders(op, variant)
    for shape in op.shapes:
        texts = [text for s, _, text in rendered if s is shape]
        assert len(set(texts)) == len(texts) == len(variant.points)


@pytest.mark.parametrize(("op", "variant"), VARIANTS, ids=IDS)
def test_a_bug_differs_from_the_honest_source_by_one_line(op: Op, variant: Variant):
    template, rendered = renders(op, variant)
    for bug in variant.bugs:
        for shape, params, honest in rendered:
            buggy = sources.render(template, op.constants(shape), params, bug)
            diff = difflib.unified_diff(honest.splitlines(), buggy.splitlines(), n=0)
            moves = [line[0] for line in itertools.islice(diff, 2, None)]
            assert (moves.count("-"), moves.count("+")) in {(1, 1), (1, 0), (0, 1)}, bug.name


@pytest.mark.parametrize(("op", "variant"), VARIANTS, ids=IDS)
def test_a_rule_of_an_illegal_point_is_in_the_source(op: Op, variant: Variant):
    template = kernels.template(op.name, variant.name, op.impl)
    for illegal in variant.illegal:
        text = sources.render(template, op.constants(op.shapes[0]), illegal.params)
        lines = [line for line in text.splitlines() if illegal.rule in line]
        assert len(lines) == 1
        assert "static_assert" in lines[0], "the compiler names the line of the assertion"


@pytest.mark.parametrize(("op", "variant"), VARIANTS, ids=IDS)
def test_sources_read_like_code(op: Op, variant: Variant):
    text = kernels.template(op.name, variant.name, op.impl)
    lines = text.splitlines()
    assert 40 <= len(lines) <= 150, len(lines)
    assert max(map(len, lines)) <= 140
    assert "Needs:" in text
    assert not any(word in text for word in ("TODO", "FIXME", "XXX", "placeholder"))
    if op.impl == "triton":
        ast.parse(text)
        assert any(isinstance(node, ast.FunctionDef) and node.name == "launch" for node in ast.parse(text).body)
    else:
        assert "__global__" in text
        assert "Launch:" in text
    body = text[text.rindex("----\n") :]
    unused = [name for name in map(str.upper, variant.start) if name not in body]
    assert not unused, f"dead parameters {unused}"
