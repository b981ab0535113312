import ast
import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from generator import cli
from generator.kernels import SUFFIX
from generator.ops import OPS
from schema.version import DATASET_VERSION

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CARD = (ROOT / "dataset_card.md").read_text(encoding="utf-8")
CORE = (
    *("calibration", "ops", "gpus", "rng", "costmodel", "facts", "task", "sources"),
    *("environment", "team", "log", "phrases", "stage", "scenarios"),
)


@pytest.fixture(scope="module")
def setup():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg", encoding="utf-8")
    return parser


@pytest.fixture
def beside(export, tmp_path, monkeypatch):
    """A working folder with a build called `kernelswarm`, as after `make build`."""
    shutil.copytree(export, tmp_path / "kernelswarm")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def words(setup, section, key):
    return setup.get(section, key).split()


def test_readme_starts_with_the_two_commands():
    assert blocks(README, "sh")[0].splitlines() == ["make build", "make test"]
    assert README.index("```sh") < 30


def test_the_load_command_runs(beside, capsys):
    program = shlex.split(blocks(README, "sh")[1])[2]
    exec(compile(program, "README.md", "exec"), {})
    assert "num_rows: 68" in capsys.readouterr().out


@pytest.mark.parametrize("number", range(len(blocks(README, "python"))))
def test_readme_snippets_run(beside, capsys, number):
    exec(compile(blocks(README, "python")[number], "README.md", "exec"), {})
    assert capsys.readouterr().out


@pytest.mark.parametrize("number", range(len(blocks(CARD, "python"))))
def test_card_snippets_run(beside, number):
    exec(compile(blocks(CARD, "python")[number], "dataset_card.md", "exec"), {})


COMMANDS = [line for block in blocks(README, "sh") for line in block.splitlines() if line.startswith("python -m generator")]


@pytest.mark.parametrize("line", COMMANDS)
def test_readme_commands_run(tmp_path, monkeypatch, capsys, line):
    monkeypatch.chdir(tmp_path)
    assert cli.main(shlex.split(line)[3:]) == 0, capsys.readouterr().err


def test_readme_lists_every_command():
    table = set(re.findall(r"^\| `(\w+)", README, re.MULTILINE))
    assert table == {command.name or command.callback.__name__ for command in cli.app.registered_commands}


@pytest.mark.parametrize("target", ["build", "test", "verify", "lint", "sample", "bench"])
def test_make_knows_the_target(target):
    found = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert f"make {target}" in README + (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8") or target == "lint"


def test_ci_runs_what_make_runs():
    lines = (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()
    assert lines[-2:] == ["make test", "make verify"]
    assert (ROOT / ".ci/run").stat().st_mode & 0o111


def test_five_packages_to_run(setup):
    names = [re.split(r"[<>=]", line)[0] for line in words(setup, "options", "install_requires")]
    assert names == ["datasets", "pyarrow", "numpy", "huggingface_hub", "typer"]
    assert setup.get("options", "python_requires") == ">=3.11"


def test_every_module_has_a_layer(setup):
    layers = set(re.findall(r"[\w.]+", setup.get("importlinter:contract:layers", "layers")))
    modules = {f"generator.{path.stem}" for path in (ROOT / "generator").iterdir() if path.suffix == ".py" and path.stem != "__init__"}
    folders = {f"generator.{path.parent.name}" for path in (ROOT / "generator").glob("*/__init__.py")}
    assert layers >= modules | folders | {"schema"}


def test_the_core_is_named_whole(setup):
    named = words(setup, "importlinter:contract:core", "source_modules")
    assert named == [f"generator.{name}" for name in CORE]


def test_every_kernel_is_packaged(setup):
    patterns = words(setup, "options.package_data", "generator.kernels")
    folder = ROOT / "generator/kernels"
    packaged = {path for pattern in patterns for path in folder.glob(pattern)}
    assert packaged >= {folder / op.name / f"{variant.name}{SUFFIX[op.impl]}" for op in OPS for variant in op.variants}
    assert packaged == {path for path in folder.glob("*/*") if path.is_file() and path.parent.name != "__pycache__"}


def test_only_our_packages_are_installed(setup):
    assert words(setup, "options.packages.find", "include") == ["schema", "schema.*", "generator", "generator.*"]
    assert not list(ROOT.glob("data/**/__init__.py"))


def core_files():
    for name in CORE:
        path = ROOT / "generator" / name
        yield from sorted(path.glob("*.py")) if path.is_dir() else [path.with_suffix(".py")]


@pytest.mark.parametrize("path", list(core_files()), ids=lambda path: path.stem)
def test_the_core_opens_no_file(path):
    methods = {"read_text", "read_bytes", "write_text", "write_bytes", "fromfile", "loadtxt"}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            assert node.func.attr not in methods, f"{path.name}:{node.lineno}"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "open", f"{path.name}:{node.lineno}"


def imported(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def test_nothing_imports_the_builder():
    for path in [*(ROOT / "generator").rglob("*.py"), *(ROOT / "schema").glob("*.py")]:
        assert not any(name.split(".")[0] == "kernelswarm" for name in imported(path)), path


def test_changelog_has_two_headings_and_the_version():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Data", "Code"]
    assert f"### {DATASET_VERSION}" in text.split("## Code")[0]


def test_modules_and_functions_are_short():
    for path in [*(ROOT / "generator").glob("*.py"), *(ROOT / "schema").glob("*.py"), ROOT / "kernelswarm.py"]:
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") < 400, path
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                assert (node.end_lineno or 0) - node.lineno < 50, f"{path.name}:{node.name}"
