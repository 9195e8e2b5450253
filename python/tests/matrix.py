"""Runs the tests on several Pythons and Celeries, each in an environment of its own under target/matrix, with the wheel that
`make` has built.

Usage: python python/tests/matrix.py [--short] [NAME …] [-- PYTEST OPTIONS]
"""

from __future__ import annotations

import argparse
import glob
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "target/matrix"
# What depends on Celery's inside.
SHORT = [
    "test_first",
    "test_pools",
    "test_items",
    "test_limits",
    "test_newcomers",
    "test_dispatch",
    "test_rates",
    "test_flood",
    "test_consumers",
    "test_retries",
    "test_burst",
    "test_controls",
    "test_events",
    "test_health",
    "test_revoke",
    "test_embedded",
    "test_poison",
    "test_databases",
]
OLD = {"5.2": "celery[redis]==5.2.*", "5.4": "celery[redis]==5.4.*"}


def pythons() -> dict[str, str]:
    """The Pythons here, by version."""
    found = {}
    for minor in range(10, 15):
        version = f"3.{minor}"
        versions = sorted(glob.glob(str(Path.home() / f".pyenv/versions/{version}.*/bin/python")))
        program = versions[-1] if versions else shutil.which(f"python{version}")
        if program and subprocess.run([program, "-c", "import ensurepip"], capture_output=True, check=False).returncode == 0:
            found[version] = program
    return found


def combinations(short: bool) -> list[tuple[str, str, str]]:
    """Name, Python and what to install."""
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    all_pythons = {here: sys.executable} if short else pythons()
    rows = []
    for version, program in all_pythons.items():
        minor = int(version.split(".")[1])
        if not short:
            rows.append((f"py{version}-celery-newest", program, "celery[redis]"))
        for celery, spec in OLD.items():
            # 5.2 runs up to 3.11; one Python is enough for each.
            if short or (celery == "5.2" and minor in (10, 11)) or (celery == "5.4" and minor in (11, 12)):
                rows.append((f"py{version}-celery-{celery}", program, spec))
    return rows


def prepare(name: str, program: str, spec: str) -> Path:
    """An environment with the wheel in it."""
    folder = FOLDER / name
    pip = [str(folder / "bin/python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    (wheel,) = (ROOT / "target/wheels").glob("*.whl")
    requirements, done = ROOT / "python/tests/requirements.txt", folder / "done"
    if not done.exists() or done.stat().st_mtime < requirements.stat().st_mtime:
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([program, "-m", "venv", str(folder)], check=True)
        subprocess.run([*pip, "install", spec, "kombu[redis]", "-r", str(requirements)], check=True)
        done.touch()
    subprocess.run([*pip, "install", "--force-reinstall", "--no-deps", str(wheel)], check=True)
    return folder / "bin/python"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--short", action="store_true")
    parser.add_argument("names", nargs="*")
    arguments = sys.argv[1:]
    more = arguments[arguments.index("--") + 1 :] if "--" in arguments else []
    options = parser.parse_args(arguments[: arguments.index("--")] if "--" in arguments else arguments)
    tests = [str(ROOT / f"python/tests/{name}.py") for name in SHORT] if options.short else [str(ROOT / "python/tests")]
    rows = [row for row in combinations(options.short) if not options.names or row[0] in options.names]
    results = []
    for name, program, spec in rows:
        print(f"== {name}", flush=True)
        python = prepare(name, program, spec)
        start = time.monotonic()
        code = subprocess.run([str(python.parent / "pytest"), "-n", "3", *tests, *more], cwd=ROOT, check=False).returncode
        results.append((name, "passed" if code == 0 else f"FAILED ({code})", time.monotonic() - start))
    print()
    for name, result, seconds in results:
        print(f"{name:26} {result:12} {seconds:6.0f} s")
    return int(any(result != "passed" for _, result, _ in results))


if __name__ == "__main__":
    sys.exit(main())
