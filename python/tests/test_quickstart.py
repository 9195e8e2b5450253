"""The README's quickstart, word for word, where nothing is installed but the package."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from docs import block
from servers import PATIENCE, ROOT, RedisServer, wait_for


@pytest.fixture(scope="module")
def fresh_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with our wheel, and what that asks for itself."""
    (wheel,) = (ROOT / "target/wheels").glob("*.whl")
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    pip = [str(folder / "bin/python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", str(wheel)], check=True)
    listed = subprocess.run([*pip, "list"], check=True, capture_output=True, text=True).stdout.lower()
    assert "pytest" not in listed
    assert "fakeredis" not in listed
    return folder / "bin"


def test_the_readme_runs_where_only_the_package_is_installed(
    fresh_python: Path, redis_server: RedisServer, tmp_path: Path
) -> None:
    for name in ("myapp.py", "produce.py"):
        code = block("README.md", f"# {name}\n")
        (tmp_path / name).write_text(code.replace("localhost:6379", f"127.0.0.1:{redis_server.port}"))
    (command,) = block("README.md", "celery ").splitlines()
    log = tmp_path / "worker.log"
    with log.open("wb") as out:
        worker = subprocess.Popen(
            [str(fresh_python / "celery"), *command.split()[1:]],
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
    try:
        wait_for(lambda: "Connected to redis" in log.read_text())
        done = subprocess.run(
            [str(fresh_python / "python"), "produce.py"],
            cwd=tmp_path,
            env={},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0, done.stderr + log.read_text()
        assert re.fullmatch(r"\['a.pdf done by [0-9a-f-]{36}', 'b.pdf done by [0-9a-f-]{36}'\]\n", done.stdout)
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE) == 0
