"""What a model's files are refused for whatever its tables are, before Java and Spark start."""

import uuid
from typing import Final

from backstory.doors.historize.columns import user_columns
from backstory.doors.historize.door import Chosen
from backstory.doors.historize.load_request import LoadRequest
from backstory.doors.historize.model import ModelDataset
from backstory.doors.historize.pepper import find_pepper
from backstory.doors.historize.receipts import HistoryReceipt, refusal
from backstory.doors.historize.run import datasets_to_load
from backstory.doors.historize.stage import stage_of
from backstory.errors import Refused

# A file of so many bytes is read in a moment; a larger one is left to the load.
SMALL: Final = 4 << 20


def refuse_ahead(chosen: Chosen, asked: LoadRequest) -> list[HistoryReceipt]:
    """The receipts of the loads, where the file of each is refused; else none, and the loads are to be made.

    A run that ends here leaves nothing behind, and no row in the run log. Raises UsageError without a pepper.
    """
    find_pepper(chosen.model.environment)
    if asked.skip_base:
        return []
    run_id = asked.run_id or str(uuid.uuid4())
    receipts = []
    for dataset in datasets_to_load(chosen.model, asked.dataset):
        stop = _refused(chosen, dataset)
        if stop is None:
            return []
        receipts.append(refusal(dataset.name, run_id, None, stop))
    return receipts


def _refused(chosen: Chosen, dataset: ModelDataset) -> Refused | None:
    """What the file of a dataset is refused for, as far as it is looked at."""
    # pyarrow takes a third of a second to load, which a model without files need not wait for.
    from backstory.doors.historize.stage_rows import read_stage

    stage = stage_of(dataset, chosen.folder)
    if stage is None or stage.path is None or (stage.path.is_file() and stage.path.stat().st_size > SMALL):
        return None
    try:
        read_stage(stage, user_columns(dataset))
    except Refused as stop:
        return stop
    return None
