"""vtrr-queue 0.1.0: its source distribution, fetched once, with its README; and the environment it is installed in."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

from servers import ROOT

SDIST = ROOT / "target/reference-sdist"
PYTHON = ROOT / "target/reference/bin/python"
NAME = "vtrr_queue-0.1.0"


@cache
def folder() -> Path:
    """The unpacked source distribution."""
    archive = SDIST / f"{NAME}.tar.gz"
    if not archive.exists():
        words = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--no-deps"]
        words += ["--no-binary", ":all:", "--ignore-requires-python", "--dest", str(SDIST), "vtrr-queue==0.1.0"]
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
    if not (SDIST / NAME / "README.md").exists():
        shutil.unpack_archive(archive, SDIST)
    return SDIST / NAME


def python() -> str:
    """The interpreter that has 0.1.0."""
    assert PYTHON.exists(), "0.1.0 is not installed: run `make servers`"
    return str(PYTHON)


def readme() -> str:
    return (folder() / "README.md").read_text()


@cache
def sections() -> dict[str, str]:
    """The README by headings; code blocks may hold lines that look like some."""
    found: dict[str, str] = {}
    heading, fenced = "", False
    for line in readme().splitlines(keepends=True):
        fenced ^= line.startswith("```")
        if line.startswith("#") and not fenced:
            heading = line.strip("#` \n")
        found[heading] = found.get(heading, "") + line
    return found


def blocks(heading: str, language: str = "python") -> list[str]:
    """The code blocks of a section."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", sections()[heading], re.DOTALL | re.MULTILINE)
    return [block for of, block in found if of == language]


def files(*headings: str) -> dict[str, str]:
    """The code blocks that say which file they are, by its path."""
    found = {}
    for heading in headings:
        for block in blocks(heading):
            path = re.match(r"# (\S+\.py)", block)
            if path:
                found[path[1]] = block
    return found


def table(heading: str) -> list[list[str]]:
    """The rows of a section's table, the head aside."""
    lines = [line for line in sections()[heading].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
