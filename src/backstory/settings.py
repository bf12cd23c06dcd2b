"""Settings from options, the environment and `backstory.toml`: the warehouse, its catalogs, and Spark."""

import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

from backstory.errors import UsageError

CATALOG = "backstory"
CATALOG_FILE = "catalog.db"  # of an embedded warehouse
DEFAULT_FILE = "backstory.toml"  # in the working folder
VARIABLE = "BACKSTORY_WAREHOUSE"
SECTIONS = {"catalog", "catalogs", "delivery", "odf", "serve", "spark", "tables"}
FORMAT_VERSIONS = (2, 3)
MAY_CONTAIN = {
    "catalogs": "a section for each further catalog, such as [catalogs.lake]",
    "tables": "format-version = 2 or 3",
    "delivery": 'driver-memory, such as "2g" or "512m"',
    "odf": 'allow-commands = true or false, and unpacked-limit, such as "4g" or "512m"',
    "serve": 'batch-folder, such as "/data"',
}
Value = TypeVar("Value")
# An address, and the address of a local folder. In a `Path`, the two slashes have become one.
_ADDRESS = re.compile(r"[A-Za-z][\w+.-]+:/")
_FILE_ADDRESS = re.compile(r"(?is)file:(?://(?:localhost)?)?(/(?!/).*)")
# The memory limit of a container, in the two versions of Linux's control groups.
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def _quarter_of_memory() -> int:
    """A quarter of the machine's or container's memory, in bytes, but at least 1 GiB."""
    limits = (Path(file).read_text().strip() for file in _LIMITS if Path(file).exists())
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1 << 30, min([machine, *(int(limit) for limit in limits if limit.isdigit())]) // 4)


DRIVER_MEMORY = _quarter_of_memory()


@dataclass(frozen=True, slots=True)
class Rights:
    """The rights of manifests, from the section `[odf]`.

    If `allow_commands` is true, manifests may run the programs that they name. `unpacked_limit` is the
    largest size of an unpacked file, in bytes, or None for the limit of all doors.
    """

    allow_commands: bool = False
    unpacked_limit: int | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """The warehouse folder, the Iceberg catalogs by name, Spark properties and table properties.

    The first catalog is `backstory`. If there is no `[catalog]` section, it is the embedded catalog, which
    has no properties here. `driver_memory` is the driver's memory for all deliveries together, in bytes.
    `batch_folder` is the folder of Fivetran's batch files, or None if any folder is allowed. `origin` is the
    option, variable or file that named the warehouse.
    """

    warehouse: Path
    catalogs: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: {CATALOG: {}})
    spark: Mapping[str, str] = field(default_factory=dict)
    format_version: int = 3
    driver_memory: int = DRIVER_MEMORY
    rights: Rights = field(default_factory=Rights)
    batch_folder: Path | None = None
    origin: str = ""

    @property
    def location(self) -> str:
        """The warehouse and its origin, for messages, because the user may have meant another warehouse."""
        what = f"the catalog {CATALOG}" if self.catalogs[CATALOG] else f"the warehouse {self.warehouse}"
        return f"{what} ({self.origin})" if self.origin else what

    def with_choices(self, driver_memory: str | None, format_version: int | None) -> "Settings":
        """These settings, with the caller's values that are not None.

        Raises UsageError for an invalid value.
        """
        settings = self
        try:
            if driver_memory is not None:
                settings = replace(settings, driver_memory=_bytes(driver_memory))
            if format_version is not None:
                version = _format_version({"format-version": format_version})
                settings = replace(settings, format_version=version)
        except ValueError:
            raise UsageError(
                "bad-option",
                "`driver_memory=` or `format_version=` has an unexpected value.",
                'Give a size such as `driver_memory="512m"`, and `format_version=2` or 3.',
            ) from None
        return settings


def load_for_session(config: str | Path | None) -> Settings:
    """The settings for the caller's session.

    The settings are read from the file that `config` or BACKSTORY_CONFIG names. Without a file, they are the
    defaults.
    """
    file = config or os.environ.get("BACKSTORY_CONFIG")
    return load(config=file) if file else Settings(Path())


def load(warehouse: str | Path | None = None, config: str | Path | None = None) -> Settings:
    """The settings of this process. Options override the environment, which overrides the file.

    The file is `config`, else `BACKSTORY_CONFIG`, else `backstory.toml` in the working folder if it exists.
    `${NAME}` in a value is replaced with an environment variable, so that the file needs no secrets. Raises
    UsageError for a missing file, an unknown section or a missing variable.
    """
    path = config or os.environ.get("BACKSTORY_CONFIG")
    where = Path(path or DEFAULT_FILE)
    document = _read(where) if path or where.exists() else {}
    unknown = sorted(
        name for name, section in document.items() if name not in SECTIONS or not isinstance(section, dict)
    )
    if unknown:
        raise UsageError(
            "unknown-setting",
            f"{where}: `{unknown[0]}` is not one of its sections.",
            f"Use one of [{'], ['.join(sorted(SECTIONS))}].",
        )
    named = warehouse or os.environ.get(VARIABLE) or "warehouse"
    folder = _warehouse_folder(named, configured="catalog" in document)
    # In the catalog's address, a question mark would begin options.
    wrong = "has a question mark in its path" if "?" in str(folder) else "is a file, not a folder"
    if "?" in str(folder) or folder.is_file():
        raise UsageError(
            "no-warehouse",
            f"The warehouse {folder} {wrong}.",
            "Name another folder with `warehouse=FOLDER` or BACKSTORY_WAREHOUSE.",
        )
    return Settings(
        warehouse=folder,
        catalogs={
            CATALOG: _texts(document.get("catalog", {})),
            **_section(where, document, "catalogs", _catalogs),
        },
        spark=_texts(document.get("spark", {})),
        format_version=_section(where, document, "tables", _format_version),
        driver_memory=_section(where, document, "delivery", _driver_memory),
        batch_folder=_section(where, document, "serve", _batch_folder),
        rights=_section(where, document, "odf", _rights),
        origin=_origin(warehouse, path, configured="catalog" in document),
    )


def _warehouse_folder(named: str | Path, *, configured: bool) -> Path:
    """The folder that a path or a `file:` address names. `~` is the home folder.

    Raises UsageError for another address, unless the configuration names a catalog, which has the tables.
    """
    text = str(named)
    if of_file := _FILE_ADDRESS.fullmatch(text):
        return Path(unquote(of_file[1]))
    if _ADDRESS.match(text) and not configured:
        raise UsageError(
            "no-warehouse",
            f"The warehouse must be a folder, but {text.partition(':')[0]}: begins an address.",
            "Name a folder. For an object store, set the `type`, `uri` and `warehouse` of its catalog in "
            f"[catalog] of {DEFAULT_FILE}.",
        )
    return Path(os.path.expanduser(text)).absolute()  # noqa: PTH111 - unknown users are no error


def _origin(warehouse: str | Path | None, config: str | Path | None, *, configured: bool) -> str:
    """The option, variable or file that named the warehouse. Options are spelled as in errors."""
    if configured:
        return f"from [catalog] in {Path(config or DEFAULT_FILE).absolute()}"
    if warehouse:
        return "from `warehouse=`"
    if os.environ.get(VARIABLE):
        return f"from {VARIABLE}"
    return f"the default; name another with `warehouse=` or {VARIABLE}"


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError:
        raise UsageError(
            "no-configuration",
            f"The configuration file {path} cannot be read.",
            "Name another with `config=FILE` or BACKSTORY_CONFIG.",
        ) from None
    except UnicodeDecodeError:
        raise UsageError("broken-configuration", f"{path} is not UTF-8.", "Save the file as UTF-8.") from None
    except tomllib.TOMLDecodeError as broken:
        raise UsageError("broken-configuration", f"{path} is not TOML: {broken}.", "Fix the file.") from None


def _section(where: Path, document: Mapping[str, Any], name: str, parse: Callable[[Any], Value]) -> Value:
    """The parsed section. Raises UsageError if `parse` raises ValueError."""
    try:
        return parse(document.get(name, {}))
    except ValueError:
        raise UsageError(
            "unknown-setting",
            f"{where}: the section [{name}] may contain only {MAY_CONTAIN[name]}.",
            "Fix the section.",
        ) from None


def _require(holds: object) -> None:
    """Raise ValueError unless the condition holds. `_section` turns the ValueError into a UsageError."""
    if not holds:
        raise ValueError


def _catalogs(catalogs: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    _require(all(isinstance(properties, dict) for properties in catalogs.values()))
    return {name: _texts(properties) for name, properties in catalogs.items()}


def _format_version(tables: Mapping[str, Any]) -> int:
    version = tables.get("format-version", FORMAT_VERSIONS[-1])
    _require(set(tables) <= {"format-version"} and version in FORMAT_VERSIONS)
    return int(version)


def _driver_memory(delivery: Mapping[str, Any]) -> int:
    _require(set(delivery) <= {"driver-memory"})
    return _bytes(delivery["driver-memory"]) if delivery else DRIVER_MEMORY


def _rights(odf: Mapping[str, Any]) -> Rights:
    allowed, limit = odf.get("allow-commands", False), odf.get("unpacked-limit")
    _require(set(odf) <= {"allow-commands", "unpacked-limit"} and isinstance(allowed, bool))
    return Rights(allowed, None if limit is None else _bytes(limit))


def _bytes(size: object) -> int:
    """The number of bytes in a size like `512m` or `4g`. Raises ValueError for any other value."""
    match = re.fullmatch(r"(\d+)([mg])", str(size).lower())
    if match is None:
        raise ValueError
    return int(match[1]) << {"m": 20, "g": 30}[match[2]]


def _batch_folder(serve: Mapping[str, Any]) -> Path | None:
    folder = serve.get("batch-folder")
    if not serve:
        return None
    _require(set(serve) == {"batch-folder"} and isinstance(folder, str))
    return Path(_fill_in(str(folder))).resolve()


def _texts(section: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: _fill_in(str(value).lower() if isinstance(value, bool) else str(value))
        for name, value in section.items()
    }


def _fill_in(text: str) -> str:
    def read_variable(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in os.environ:
            raise UsageError(
                "missing-variable",
                f"The configuration names the environment variable {name}, which is not set.",
                f"Set {name}, or remove it from the configuration.",
            )
        return os.environ[name]

    return re.sub(r"\$\{(\w+)\}", read_variable, text)
