"""A sample model for the examination of a dialect, and the assertions for it (section 5.4)."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache

from backstory.doors.historize.hist_state import sync_hist
from backstory.doors.historize.model import HistState, Model, ModelDataset
from backstory.doors.historize.resolve import ModelDocument, resolve
from backstory.stores.sql.columns import Datatype

SCHEMA = "backstory_conformance"
NASTY_NAMES = (
    *("select", "Order", "1st", "two words", "tüür", "per.iod", ""),
    *('quo"te', "back`tick", "brac]ket", "'"),
)
NASTY_TEXTS = (
    "",
    " ",
    "it's",
    "''",
    'say "so"',
    "back\\slash",
    "\\",
    "\\'; --",
    "a\nb\tc\r\nd",
    "{x} {{ load_run_id }} %s %% :a ?",
    "a|b~c^d^0|^p",
    "null_replaced",
    "Köln 東京 🦆 e\u0301",
)

_KEY = {"system_role": "business_key", "nullable": False}
_MORE: Mapping[Datatype, Mapping[str, object]] = {
    Datatype.DECIMAL: {"decimal_precision": 20, "decimal_scale": 6},
    Datatype.FLOAT: {"hash_as": "DECIMAL(18,4)"},
    Datatype.STRING: {"max_length": 200},
}


def _column(name: str, datatype: str, **more: object) -> dict[str, object]:
    return {"target_column_name": name, "datatype": datatype, **more}


def _dataset(name: str, *columns: dict[str, object], **more: object) -> dict[str, object]:
    return {"target_schema": "rawcore", "target_dataset_name": name, "target_columns": columns, **more}


@cache
def sample_model(profile: str = "elevata_v1") -> Model:
    """Four datasets: for the scenarios, for the golden vectors, for all types, and for their parent keys."""
    types = [_column(datatype.lower(), datatype, **_MORE.get(datatype, {})) for datatype in Datatype]
    tree = {
        "format": "historize/1",
        "hash_profile": profile,
        "target_schemas": [{"short_name": "rawcore", "schema_name": SCHEMA}],
        "target_datasets": [
            _dataset(
                "rc_c",
                _column("cust_id", "STRING", **_KEY),
                _column("name", "STRING"),
                _column("city", "STRING"),
            ),
            _dataset(
                "rc_crm_customer",
                _column("customer_id", "BIGINT", system_role="business_key"),
                _column("mandant", "STRING", max_length=3, **_KEY),
                _column("name", "STRING"),
                _column("city", "STRING"),
                _column("active", "BOOLEAN"),
                _column("credit", "DECIMAL", decimal_precision=10, decimal_scale=2),
                _column("since", "DATE"),
                _column("note", "STRING"),
            ),
            _dataset("rc_region", _column("region", "STRING", **_KEY)),
            _dataset(
                "rc_types",
                _column("order", "BIGINT", **_KEY),
                *types,
                references=[
                    {
                        "id": 1,
                        "referenced_dataset": "rc_region",
                        "key_components": [{"from": "string", "to": "region"}],
                    }
                ],
            ),
        ],
    }
    return resolve(Model.model_validate(tree), ModelDocument("conformance", tree))


def dataset_of(model: Model, name: str) -> ModelDataset:
    """The dataset of the sample with this name."""
    return next(dataset for dataset in model.target_datasets if dataset.name == name)


def history_of(dataset: ModelDataset) -> HistState:
    """The metadata for the history of a sample dataset."""
    hist = sync_hist(dataset, None, datetime(2025, 1, 1, tzinfo=UTC))
    assert hist is not None
    return hist


@contextmanager
def examination(what: str) -> Iterator[None]:
    """Turn any exception within the block into an AssertionError that begins with the method or scenario."""
    try:
        yield
    except Exception as wrong:
        raise AssertionError(f"{what}: {wrong}") from wrong


def require(holds: object, message: object) -> None:
    """Raise AssertionError with the message unless `holds` is true, even with `python -O`."""
    if not holds:
        raise AssertionError(str(message))


def require_equal(actual: object, expected: object, of: object) -> None:
    """Raise AssertionError with both values unless they are equal."""
    require(actual == expected, f"{of} gives {actual!r} instead of {expected!r}")
