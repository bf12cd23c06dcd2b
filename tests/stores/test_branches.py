"""Branches of deliveries by SQL, in the metadata of a table."""

import json

import pytest

from backstory.errors import Refused
from backstory.model.table import TableName
from backstory.stores.branches import BRANCH, DELIVERY, PENDING, finished_deliveries, in_effect, pending_in


def metadata(main, *snapshots, **branches):
    """Snapshots `id:parent`, or `id:parent:name` for a delivery's commit, and the heads of branches by name."""
    parts = [text.split(":") for text in snapshots]
    pending = json.dumps({"p": "new"})
    return {
        "location": "s3://lake/t",
        "current-snapshot-id": main,
        "properties": {"p": "old"},
        "refs": {
            f"{DELIVERY}{name}": {"snapshot-id": head, "type": "branch"} for name, head in branches.items()
        },
        "snapshots": [
            {
                "snapshot-id": int(number),
                "summary": {BRANCH: f"{DELIVERY}{name[0]}", PENDING: pending} if name else {},
                **({"parent-snapshot-id": int(parent)} if parent else {}),
            }
            for number, parent, *name in parts
        ],
    }


@pytest.mark.parametrize(
    ("state", "pending", "finished"),
    [
        (metadata(1, "1:", a=1), False, False),  # begun
        (metadata(1, "1:", "2:1:a", a=2), False, False),  # written
        (metadata(2, "1:", "2:1:a", a=2), True, True),  # published
        (metadata(3, "1:", "2:1:a", "3:2", a=2), True, True),  # and another commit after it
        (metadata(2, "1:", "2:1:a"), False, False),  # completed
        (metadata(3, "1:", "2:1:a", "3:1", a=2), False, True),  # another writer was faster
        (metadata(3, "1:", "3:1", a=1), False, True),
        (metadata(2, "1:", "2:1:a", a=2, b=2), True, True),  # the next one begins on it
        (metadata(3, "3:2", "2:1:a", a=2), True, True),  # its beginning has expired
    ],
)
def test_properties_are_pending_from_publication_to_completion(state, pending, finished):
    assert in_effect(state, TableName("a", "b"))["properties"] == {"p": "new" if pending else "old"}
    assert (f"{DELIVERY}a" in finished_deliveries(state)) is finished
    assert f"{DELIVERY}b" not in finished_deliveries(state)


def test_an_unclear_delivery_is_refused():
    """The commits between the branch and the table have expired."""
    with pytest.raises(Refused, match="unclear whether the delivery") as caught:
        pending_in(metadata(9, "9:8", "2:1:a", a=2))
    assert caught.value.code == "delivery-unclear"
