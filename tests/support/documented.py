"""The contents of Markdown pages: blocks of code, commands, links and headings."""

import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for place in ("*.md", "docs/**/*.md", "examples/**/*.md", "benchmarks/*.md")
    for path in ROOT.glob(place)
)
FENCE = re.compile(r'^( *)```(\w*)(?: title="([^"\n]+)")?[^\n]*\n(.*?)^\1```', re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
SETTING = re.compile(r"^(\w+=\S+\s+)+")


@dataclass(frozen=True)
class Block:
    """A block of code on a page, its first line, and its file name if its fence has a title."""

    language: str
    text: str
    line: int
    title: str = ""

    @property
    def commands(self):
        """The words of each command line of ours, without the programs that it is piped into."""
        if self.language == "python":
            return []
        joined = self.text.replace("\\\n", " ")
        lines = [line.strip() for line in joined.splitlines()]
        typed = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        lines = [SETTING.sub("", line) for line in typed or lines]  # after a prompt, or without any prompt
        commands = (
            shlex.split(re.split(r" [|&]", line)[0], comments=True)
            for line in lines
            if line.startswith(("backstory ", "make "))
        )
        return [words for words in commands if words]


def blocks(page):
    """Every fenced block of a page, or every cell of a notebook."""
    text = page.read_text("utf-8")
    if page.suffix == ".ipynb":
        cells = enumerate(json.loads(text)["cells"], 1)
        return [
            Block("python", cell["source"], number) for number, cell in cells if cell["cell_type"] == "code"
        ]
    return [
        Block(fence[2], fence[4], text.count("\n", 0, fence.start()) + 1, fence[3] or "")
        for fence in FENCE.finditer(text)
    ]


def links(page):
    """The targets in this repository that a page links to."""
    text = FENCE.sub("", page.read_text("utf-8"))
    return [target for target in LINK.findall(text) if not re.match(r"\w+:", target)]


def anchors(page):
    """The anchors of the headings of a page."""
    text = FENCE.sub("", page.read_text("utf-8"))
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
