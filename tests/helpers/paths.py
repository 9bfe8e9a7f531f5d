"""Where the repository and the corpora are."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REAL = ROOT.parent / "shared" / "data"
"""Real corpora; tests that read them skip where they are absent."""
