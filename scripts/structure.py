"""Print the size and shape of the source: files, lines, imports, and unclear names."""

import ast
import re
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "backstory"
SMALL = 60  # lines of a module
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
IMPORTS = (ast.Import, ast.ImportFrom)


def main() -> None:
    """Print one figure per line, without generated modules."""
    texts = [path.read_text("utf-8") for path in SOURCE.rglob("*.py") if "_pb2" not in path.name]
    nodes = [node for text in texts for node in ast.walk(ast.parse(text))]
    lines = sum(text.count("\n") for text in texts)
    functions = [node for node in nodes if isinstance(node, FUNCTIONS)]
    imports = sum(node.end_lineno - node.lineno + 1 for node in nodes if isinstance(node, IMPORTS))
    inside = {id(node) for each in functions for node in ast.walk(each) if isinstance(node, IMPORTS)}
    participles = [each.name for each in functions if re.fullmatch(r"_*[a-z]+(ed|wn|ught|ept)", each.name)]
    classes = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    small = sum(text.count("\n") < SMALL for text in texts)
    print(f"files: {len(texts)}, with fewer than {SMALL} lines: {small}")
    print(f"lines: {lines}")
    print(f"lines of imports: {imports} ({imports / lines:.1%}); imports inside functions: {len(inside)}")
    print(f"functions: {len(functions)}; with one participle as their name: {', '.join(participles)}")
    twice = [name for name, count in classes.items() if count > 1]
    print(f"names of two classes: {', '.join(twice) or 'none'}")


if __name__ == "__main__":
    main()
