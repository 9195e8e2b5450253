"""Faults of real life, injected into real workers on real servers, and a check that nothing was lost, stuck or settled
twice. ``make chaos`` runs all of it; ``python -m chaos --help`` says more."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The servers and the proxy are those of the tests.
sys.path.insert(0, str(ROOT / "python/tests"))
