"""The tutorial, the how-to pages that use its table, and the notebook are followed as by a new user."""

import subprocess
import sys

import java
import pytest
from documented import ROOT

pytestmark = pytest.mark.process

PAGES = ("tutorial.md", "how-to/reading.md", "how-to/changes.md", "how-to/keeping.md", "how-to/operate.md")


def test_the_pages_do_what_they_show(tmp_path):
    """Every command succeeds, and the pictures exist."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "backstory.toml").write_text(f"[spark]\n{java.in_toml(java.PLANS)}")
    pages = [*(str(ROOT / "docs" / page) for page in PAGES), str(ROOT / "examples" / "countries.ipynb")]
    program = [sys.executable, str(ROOT / "tests" / "support" / "following.py"), *pages]
    done = subprocess.run(program, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert (tmp_path / "kazakhstan.svg").read_text("utf-8").startswith("<svg")
    assert "Astana → Nur-Sultan" in done.stdout or '"capital": "Nur-Sultan"' in done.stdout
