"""Types: users' code keeps its own, wrong calls are seen, and the package agrees with its extension."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bed import PACKAGE, SOURCES

SAMPLE = Path(__file__).parent / "typing/user_code.py"
pytest.importorskip("mypy")


def run(*words: str, folder: Path) -> tuple[int, str]:
    # An installed package is found without.
    path = str(SOURCES) if PACKAGE == SOURCES else ""
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=folder,
        env={**os.environ, "MYPYPATH": path, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_users_code_keeps_its_types_and_wrong_calls_are_errors(tmp_path: Path) -> None:
    # Only Celery has no types of its own.
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = True\n[mypy-celery.*]\nignore_missing_imports = True\n")
    _, text = run("mypy", "--config-file", "mypy.ini", "--no-error-summary", str(SAMPLE), folder=tmp_path)
    found = {(int(line), code) for line, code in re.findall(r"user_code\.py:(\d+): error: .*\[([a-z-]+)\]$", text, re.M)}
    expected = {
        (number, code)
        for number, line in enumerate(SAMPLE.read_text().splitlines(), 1)
        for code in re.findall(r"# E: (\S+)$", line)
    }
    assert len(expected) == 16
    assert found == expected, text
    assert len(re.findall("error:", text)) == len(expected), text


def test_the_package_is_strictly_typed(tmp_path: Path) -> None:
    code, text = run("mypy", "--strict", "--cache-dir", str(tmp_path), "vtrr_queue", folder=SOURCES)
    assert code == 0, text


def test_the_stub_of_the_extension_is_what_it_has(tmp_path: Path) -> None:
    code, text = run("mypy.stubtest", "vtrr_queue._core", folder=tmp_path)
    assert code == 0, text
