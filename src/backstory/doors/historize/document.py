"""Read a model's YAML; errors name path and line."""

from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from backstory import documents
from backstory.documents import DocumentKind, validate
from backstory.doors.historize.model import HistState, Model

MODEL: Final = DocumentKind("model", absent_code="no-model", wrong_code="wrong-model")


class ModelDocument(documents.Document):
    """A model's YAML, and on which line each of its parts stands."""

    def __init__(self, name: str, tree: Any) -> None:
        super().__init__(name, tree, MODEL)


def read_model(path: Path) -> tuple[Model, ModelDocument]:
    """The model that a file holds, as written, and its document."""
    document = _read(path)
    return validate(Model, document), document


def read_state(path: Path) -> HistState | None:
    """The history's metadata in a lock file, None if there is no such file."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError:
        text = b""
    return _state(path, text)


@lru_cache(maxsize=256)
def _state(path: Path, _text: bytes) -> HistState:
    """Read anew only when the text is another: a load asks twice, and YAML with its lines takes long."""
    return validate(HistState, _read(path))


def _read(path: Path) -> ModelDocument:
    found = documents.read_document(path, MODEL)
    return ModelDocument(found.name, found.tree)
