"""Files as pyiceberg asks for them, opened where all are."""

from collections.abc import Mapping
from typing import IO, Any, NoReturn
from weakref import WeakValueDictionary

import pyarrow as pa
from pyiceberg.io import PY_IO_IMPL, FileIO, InputFile, load_file_io

from backstory.stores.table_files import TableFiles

# A table that is loaded again, while it is there, opens its files no second time.
_SHARED: WeakValueDictionary[frozenset[tuple[str, str]], TableFiles] = WeakValueDictionary()


class FilesOfPyiceberg(FileIO):
    """The files of a table, by the properties of its catalog and those that a REST catalog hands out with it.

    pyiceberg's own classes open what is neither of this machine nor of S3; they take a second to load.
    """

    def __init__(self, properties: Mapping[str, Any] = {}) -> None:
        super().__init__(dict(properties))
        same = frozenset(self._texts().items())
        self.files = _SHARED.get(same) or TableFiles(self._texts, self._open)
        _SHARED[same] = self.files

    def new_input(self, location: str) -> InputFile:
        """A file to read."""
        return _Input(location, self.files)

    def new_output(self, location: str) -> NoReturn:
        """Nothing is written so."""
        raise NotImplementedError(location)

    def delete(self, location: object) -> NoReturn:
        """Nothing is deleted so."""
        raise NotImplementedError(location)

    def _texts(self) -> dict[str, str]:
        return {name: value for name, value in self.properties.items() if isinstance(value, str)}

    def _open(self, location: str) -> pa.NativeFile:
        own = {name: value for name, value in self.properties.items() if name != PY_IO_IMPL}
        file = load_file_io(own, location).new_input(location).open()
        return file if isinstance(file, pa.NativeFile) else pa.PythonFile(file, mode="r")


class _Input(InputFile):
    def __init__(self, location: str, files: TableFiles) -> None:
        super().__init__(location)
        self._files = files

    def __len__(self) -> int:
        with self.open() as file:
            return file.seek(0, 2)

    def exists(self) -> bool:
        try:
            self.open().close()
        except FileNotFoundError:
            return False
        return True

    def open(self, seekable: bool = True) -> IO[bytes]:  # noqa: FBT001, FBT002, ARG002 - pyiceberg's
        return self._files(self.location)
