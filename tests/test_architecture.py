"""The structure of the code."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import backstory

SOURCE = Path(backstory.__file__).parent
SPECIFICATION = Path(__file__).with_name("specification")
DRAWERS = {"utils", "util", "helpers", "helper", "common", "misc", "base"}
# A column of a layout, by itself or in an expression, but not the words of a sentence.
OWN = re.compile(r"(?<![\w`.])(_fivetran_\w*|version_(started_at|ended_at|state)|valid_(from|to))\b")
MODULES = sorted(path for path in SOURCE.rglob("*.py") if "_pb2" not in path.name)
# These words describe the origin of a thing, not the thing.
NO_NAMES = {
    "anew",
    "asked",
    "brought",
    "found",
    "given",
    "known",
    "looked",
    "meant",
    "said",
    "seen",
    "sought",
    "spoken",
    "standing",
    "told",
    "wanted",
}
# Verbs, a public name, and a count of repairs.
VERBS_AND_NOUNS = {"feed", "need", "seed", "labeled", "mended"}


def shown(path: Path) -> str:
    return str(path.relative_to(SOURCE))


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    """Every node of a module's code."""
    return [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]


def test_modules_are_readable():
    """No module has more than 600 lines or a vague name, and each has a docstring."""
    texts = {shown(path): path.read_text(encoding="utf-8") for path in MODULES}

    assert [name for name, text in texts.items() if len(text.splitlines()) > 600] == []
    assert [shown(path) for path in MODULES if path.stem in DRAWERS] == []
    assert [name for name, text in texts.items() if not text.startswith('"""')] == []


def named_by_participles(path: Path) -> list[str]:
    """The names of a module and its functions that begin or end with a word of `NO_NAMES`."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = [path.stem, *(each.name for each in nodes_of(path) if isinstance(each, functions))]
    return [name for name in names if NO_NAMES & {(words := name.strip("_").split("_"))[0], words[-1]}]


def test_function_and_module_names_use_no_vague_words():
    """A name is a verb with its object, or the returned noun, never `told`, `found` or `asked_here`."""
    misnamed = {shown(path): names for path in MODULES if (names := named_by_participles(path))}

    assert misnamed == {}


def test_function_names_are_no_bare_participles():
    """`joined` and `_staged` are `join_sides` and `_stage_rows`."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = (node for path in MODULES for node in nodes_of(path))
    names = {node.name.strip("_") for node in nodes if isinstance(node, functions)}

    assert {
        name for name in names if re.fullmatch(r"[a-z]+(ed|wn|ught|ept)", name)
    } - VERBS_AND_NOUNS == set()


def names_of_columns(path: Path) -> list[str]:
    """The strings of a module that name a column of a layout, without docstrings."""
    documented = {id(node.value) for node in nodes_of(path) if isinstance(node, ast.Expr)}
    texts = (
        each for each in nodes_of(path) if isinstance(each, ast.Constant) and isinstance(each.value, str)
    )
    return [each.value for each in texts if id(each) not in documented and OWN.search(each.value)]


def test_columns_of_layouts_are_named_in_one_place():
    """Only `model/layout.py` contains `_fivetran_…`, `version_…` and `valid_…`."""
    named = {shown(path): names for path in MODULES if (names := names_of_columns(path))}

    assert list(named) == ["model/layout.py"], named


def test_importing_the_package_loads_no_heavy_modules():
    """`import backstory` and `--help` import neither pyspark nor grpc nor pyarrow."""
    heavy = (
        "pyspark",
        "grpc",
        "pyarrow",
        "numpy",
        "cryptography",
        "structlog",
        "markdown_it",
        "prometheus_client",
    )
    probe = (
        f"import sys, backstory; print([m for m in ({heavy}) + ('rich',) if m in sys.modules])\n"
        "from backstory.cli.app import run\n"
        "assert run(['--help']) == 0\n"
        f"print([m for m in {heavy} if m in sys.modules])"
    )

    process = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)

    lines = process.stdout.splitlines()
    assert ("[]", "[]") == (lines[0], lines[-1])


def test_a_warehouse_without_spark_is_refused_with_a_remedy(tmp_path):
    """A plain installation lacks Spark."""
    probe = (
        "import sys, backstory; sys.modules['pyspark'] = None\n"
        f"try: backstory.open({str(tmp_path)!r})\n"
        "except backstory.UsageError as stop: print(stop.code, stop.remedy)"
    )

    process = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)

    assert process.stdout.strip() == 'no-pyspark Install it: pip install "backstory[spark]".'


def test_readers_of_files_import_no_spark():
    """Readers of metadata and files do not import pyspark, which a plain installation lacks."""
    modules = (
        "explorer.server",
        "upkeep.checking",
        "reading.exports",
        "doors.odf.polling",
        "journal.verify",
    )
    names = ", ".join(f"backstory.{module}" for module in modules)
    probe = f"import sys, {names}; print('pyspark' in sys.modules)"

    process = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)

    assert process.stdout.strip() == "False"


def test_public_objects_have_their_exported_names():
    """The package exports exactly the names in `__all__`, and each exists."""
    imported = {
        name
        for name, value in vars(backstory).items()
        if not name.startswith("_") and getattr(value, "__module__", "").startswith("backstory")
    }

    assert imported | backstory._LAZY.keys() == set(backstory.__all__)
    for name in backstory.__all__:
        assert getattr(backstory, name).__name__ == name


def test_every_plan_has_its_specification():
    """Each strategy's plan has a module in plain Python, which a test imports to compare the two."""
    strategies = SOURCE / "strategies"
    plans = {path.parent.name for path in strategies.glob("*/plan.py")}
    plans |= {
        path.stem for path in strategies.glob("*.py") if "\ndef plan_" in path.read_text(encoding="utf-8")
    }

    imports = [
        line
        for path in SPECIFICATION.parent.rglob("test_*.py")
        for line in re.findall(r"^from (specification.* import .*)", path.read_text("utf-8"), re.MULTILINE)
    ]
    compared = {word for line in imports for word in re.findall(r"\w+", line)}

    assert plans <= {path.stem for path in SPECIFICATION.iterdir()}
    assert plans <= compared


def test_the_specification_is_plain_python():
    """It imports none of numpy, pyarrow, Spark and DuckDB."""
    heavy = {"numpy", "pyarrow", "pyspark", "duckdb"}

    for path in SPECIFICATION.rglob("*.py"):
        imports = nodes_of(path)
        names = {each.module for each in imports if isinstance(each, ast.ImportFrom)}
        names |= {name.name for each in imports if isinstance(each, ast.Import) for name in each.names}
        assert not heavy & {str(name).split(".")[0] for name in names}, path


def test_the_lock_file_contains_no_registry_address():
    """Locked packages have name, version and hash."""
    lock = SOURCE.parents[1] / "requirements.lock"
    text = lock.read_text(encoding="utf-8")
    lines = re.sub(r"(?m)^ *#.*\n", "", text).replace("\\\n", "").splitlines()
    package = re.compile(r"[\w.-]+==[\w.+]+( ; [^#]*?)?( +--hash=sha256:[0-9a-f]{64})+")

    assert "://" not in text
    assert [line for line in lines if not package.fullmatch(line.strip())] == []
