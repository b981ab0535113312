"""The export and the test Hub, loaded by every version of datasets that people use: the same rows everywhere.

Each version lives in an environment of its own, made here with pip; the table of versions and checks is printed.
"""

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import hub_client
import huggingface_hub
import pytest
from hub_server import Hub

from generator import hub, manifest
from generator.publication import Request

ROOT = Path(__file__).parents[1]
REPO = "user/kernelswarm"
VERSIONS = ("3.6.0", "4.0.0", "newest")
SCRIPTS = ("3.6.0",)
"""Versions that still take a loading script."""
TABLE: dict[str, dict[str, str]] = {}

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:Use 'content=")]


@pytest.fixture(scope="module", params=VERSIONS)
def python(request, tmp_path_factory):
    """The interpreter of an environment with one version of datasets; KERNELSWARM_VENVS keeps them for the next time."""
    kept = os.environ.get("KERNELSWARM_VENVS")
    folder = (Path(kept) if kept else tmp_path_factory.mktemp("venvs")) / f"datasets-{request.param}"
    interpreter = folder / "bin" / "python"
    if not interpreter.exists():
        venv.create(folder, with_pip=True)
        wanted = "datasets" if request.param == "newest" else f"datasets=={request.param}"
        command = [interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wanted, "pyarrow>=21", "numpy"]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
        if made.returncode:
            shutil.rmtree(folder)
            pytest.skip(f"pip cannot install {wanted}: {made.stderr.strip().splitlines()[-1]}")
    found = subprocess.run([interpreter, "-c", "import datasets; print(datasets.__version__)"], capture_output=True, text=True, check=True)
    TABLE[request.param] = {"datasets": found.stdout.strip()}
    return request.param, interpreter


@pytest.fixture(scope="module")
def server(export):
    """A test Hub that holds the export."""
    with pytest.MonkeyPatch.context() as patch, Hub() as found:
        patch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        patch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
        hub.push(Request(folder=export), api=huggingface_hub.HfApi(endpoint=found.url, token="hf_test_write_token"))
        yield found


def ask(interpreter, what, where, home, endpoint=None, cwd=None):
    environment = hub_client.environment(home, endpoint) | {"PYTHONPATH": str(ROOT)}
    command = [interpreter, ROOT / "tests/hub_client.py", what, where]
    found = subprocess.run(command, env=environment, cwd=cwd or home, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-3000:]
    return json.loads(found.stdout.splitlines()[-1])


def stated(folder):
    return {
        f"{config}/{split}": [found["rows"], found["digest"]]
        for config, splits in manifest.read(folder)["configs"].items()
        for split, found in splits.items()
    }


@pytest.mark.parametrize("what", ["load", "stream", "resume"])
@pytest.mark.parametrize("source", ["folder", "hub"])
def test_the_rows_are_the_same(python, export, server, tmp_path, source, what):
    version, interpreter = python
    TABLE[version][f"{source} {what}"] = "FAILED"
    where, endpoint = (REPO, server.url) if source == "hub" else (str(export), None)
    found = ask(interpreter, what, where, tmp_path, endpoint)
    expected = stated(export)
    assert found == ({name: expected[name] for name in found} if what == "resume" else expected)
    TABLE[version][f"{source} {what}"] = "ok"


def test_the_script_gives_the_same_rows(python, export, tmp_path):
    version, interpreter = python
    if version not in SCRIPTS:
        TABLE[version]["script"] = "refused"
        with pytest.raises(AssertionError, match=r"script|trust_remote_code"):
            ask(interpreter, "script", "./kernelswarm.py", tmp_path, cwd=ROOT)
        return
    TABLE[version]["script"] = "FAILED"
    assert ask(interpreter, "script", "./kernelswarm.py", tmp_path, cwd=ROOT) == stated(export)
    TABLE[version]["script"] = "ok"


def test_every_version_was_tried(capsys):
    """Prints the table: version x check."""
    checks = list(dict.fromkeys(check for row in TABLE.values() for check in row))
    rows = [["version", *checks], *([version, *(row.get(check, "-") for check in checks)] for version, row in TABLE.items())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    with capsys.disabled():
        sys.stdout.write("\n".join(["", *lines, ""]))
    if not TABLE:
        pytest.skip("no version could be installed")
    assert all(cell not in ("FAILED", "-") for row in TABLE.values() for cell in row.values())
