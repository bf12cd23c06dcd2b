"""The results of a run as JSON and as a Markdown page, with machine, versions and date of measurement."""

import json
import os
import platform
import re
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from backstory.spark.jars import ICEBERG
from benchmarks.asked import Asked


def machine() -> dict[str, Any]:
    """Cores, memory, system, Java, and how busy the machine is."""
    memory = Path("/proc/meminfo")
    kib = re.search(r"MemTotal:\s+(\d+)", memory.read_text()) if memory.exists() else None
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr
    told = re.search(r'version "([^"]+)"', java)
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(int(kib[1]) / 2**20) if kib else None,
        "system": f"{platform.system()} {platform.machine()}",
        "java": told[1] if told else None,
        "load_at_start": round(os.getloadavg()[0], 2),
    }


def versions() -> dict[str, str]:
    """The versions of the product and its platform."""
    found = {"python": platform.python_version(), "iceberg": ICEBERG}
    for name in ("backstory", "pyspark", "pyarrow"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def spread(values: Sequence[float]) -> str:
    """The median with the least and greatest value; a dash without values."""
    if not values:
        return "–"
    if len(values) == 1:
        return f"{values[0]:.2f} s"
    return f"{statistics.median(values):.2f} s ({min(values):.2f} to {max(values):.2f})"


@dataclass
class Report:
    """Sections of tables and sentences; `write` may be called after each new result."""

    name: str
    title: str
    asked: Asked
    versions: dict[str, str] = field(default_factory=versions)
    machine: dict[str, Any] = field(default_factory=machine)
    sections: dict[str, list[str]] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    measured: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="minutes"))

    def say(self, section: str, *lines: str) -> None:
        """Set the sentences of a section, and replace its earlier ones."""
        self.sections[section] = list(lines)

    def table(self, section: str, head: Sequence[str], rows: Sequence[Sequence[object]], *notes: str) -> None:
        """Set a section to a table, with sentences below it."""
        lines = [_line(head), _line(["---"] * len(head)), *map(_line, rows)]
        self.sections[section] = [*lines, *(line for note in notes for line in ("", note))]

    def write(self) -> None:
        """Write `<name>.json` and `<name>.md` with the results so far."""
        self.asked.results.mkdir(parents=True, exist_ok=True)
        told = {
            "name": self.name,
            "measured": self.measured,
            "machine": self.machine,
            "versions": self.versions,
            "scale": self.asked.scale,
            "rounds": self.asked.rounds,
            "full": self.asked.full,
            **self.data,
        }
        place = self.asked.results / self.name
        place.with_suffix(".json").write_text(json.dumps(told, indent=1, default=str) + "\n", "utf-8")
        place.with_suffix(".md").write_text(self.page(), "utf-8")

    def page(self) -> str:
        """The whole report as Markdown."""
        lines = [f"# {self.title}", "", self.measured_line(), ""]
        for section, told in self.sections.items():
            lines += [f"## {section}", "", *told, ""]
        return "\n".join(lines)

    def measured_line(self) -> str:
        """The date, the machine and the versions of the measurement."""
        found = self.machine
        on = f"{found['cores']} cores, {found['memory_gib']} GiB, {found['system']}, Java {found['java']}"
        with_ = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        size = "" if self.asked.scale == 1 else f" At {self.asked.scale:g} of the published size."
        return f"Measured {self.measured[:10]} on {on} (load {found['load_at_start']} at the start). {with_}.{size}"


def _line(cells: Sequence[object]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """The median of theirs over the median of ours: how many times faster ours is."""
    return statistics.median(theirs) / statistics.median(ours) if ours and theirs else None


def counted(found: Mapping[str, int]) -> str:
    """Counts in a sentence."""
    return ", ".join(f"{count} {name}" for name, count in found.items()) or "nothing"
