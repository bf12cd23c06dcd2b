"""Options that are declared once, for Python calls and commands."""

from inspect import signature
from typing import Literal, TypedDict, Unpack

import pytest
from attrs import field, frozen

from backstory.cli import changes, fivetran, pull, read, snapshot, upkeep
from backstory.model.options import with_options, with_request
from backstory.table import Table
from backstory.warehouse import Warehouse


class Spices(TypedDict, total=False):
    """Options of a dish.

    Attributes:
        hot: Whether it
            burns.
        herb: The herb.
        salt: Grams of salt.
    """

    hot: bool
    herb: Literal["basil", "mint"]
    salt: int | None


class Cook:
    @with_options(Spices)
    def dish(self, name: str, *, plate: str = "deep", **spices: Unpack[Spices]) -> object:
        """A dish."""
        return name, plate, spices


def test_a_method_shows_its_declared_options():
    """The signature has the defaults, as in `help` and notebooks, and so does the docstring."""
    assert str(signature(Cook.dish)) == (
        "(self, name: str, *, plate: str = 'deep', hot: bool = False, "
        "herb: Literal['basil', 'mint'] = 'basil', salt: int | None = None) -> object"
    )
    assert Cook.dish.__doc__ == (
        "A dish.\n\n* `hot`: Whether it burns.\n* `herb`: The herb.\n* `salt`: Grams of salt."
    )


def test_an_undeclared_option_is_a_type_error():
    """Declared options are passed unchanged, as in any other function."""
    assert Cook().dish("soup", plate="flat", herb="mint") == ("soup", "flat", {"herb": "mint"})
    with pytest.raises(TypeError, match=r"dish\(\) got an unexpected keyword argument 'sweet'"):
        Cook().dish("soup", sweet=True)


def _grams(text: str | None) -> int | None:
    return None if text is None else int(text.removesuffix("g"))


@frozen(kw_only=True)
class Bill:
    """The bill of a guest.

    Attributes:
        table: The table.
        tip: Grams of gold.
    """

    table: int
    tip: int | None = field(default=None, converter=_grams)
    day: str = "today"


@frozen(kw_only=True)
class SharedBill(Bill):
    """The bill of two guests."""

    first: str = field(kw_only=False)
    second: str = field(default="nobody", kw_only=False)


class Waiter:
    @with_request(Bill)
    def pay(self, guest: str, request: Bill) -> object:
        """Pay the bill."""
        return guest, request

    @with_request(SharedBill)
    def share(self, request: SharedBill) -> object:
        """Share the bill."""
        return request


def test_a_request_declares_the_options_of_a_method():
    """A caller writes the argument of the converter, and the method gets its result."""
    assert str(signature(Waiter.pay)) == "(self, guest: str, *, table: int, tip: str | None = None) -> object"
    assert Waiter.pay.__doc__ == "Pay the bill.\n\n* `table`: The table.\n* `tip`: Grams of gold."
    assert Waiter().pay("Ann", table=3, tip="5g") == ("Ann", Bill(table=3, tip="5g"))
    assert Waiter().pay(guest="Ann", table=3)[1].tip is None
    for word in ("sum", "day"):
        with pytest.raises(TypeError, match=rf"pay\(\) got an unexpected keyword argument '{word}'"):
            Waiter().pay("Ann", table=3, **{word: 1})


def test_a_request_declares_the_arguments_of_a_method():
    """A field that is not keyword-only is an argument by position or by name, and needs no text."""
    form = "(self, first: str, second: str = 'nobody', *, table: int, tip: str | None = None) -> object"
    assert str(signature(Waiter.share)) == form
    both = SharedBill("Ann", "Bob", table=3)
    assert Waiter().share("Ann", "Bob", table=3) == both == Waiter().share(second="Bob", first="Ann", table=3)
    with pytest.raises(TypeError, match="positional"):
        Waiter().share("Ann", "Bob", "Cid", table=3)


@pytest.mark.parametrize(
    ("command", "method"),
    [
        (snapshot.snapshot, Warehouse.snapshot),
        (snapshot.apply, Warehouse.apply),
        (read.current, Table.current),
        (read.as_of, Table.as_of),
        (read.timeline, Table.timeline),
        (read.export, Table.export),
        (changes.diff, Table.diff),
        (changes.changes, Table.changes),
        (read.views, Table.views),
        (upkeep.repair, Table.repair),
        (upkeep.check, Warehouse.check),
        (upkeep.adopt, Warehouse.adopt),
        (upkeep.rewind, Table.rewind),
        (upkeep.forget, Table.forget),
        (upkeep.maintain, Table.maintain),
        (upkeep.maintain, Warehouse.maintain),
        (upkeep.drop, Table.drop),
        (snapshot.historize, Warehouse.historize),
        (pull.add, Warehouse.add),
        (pull.pull, Warehouse.pull),
        (pull.ingest, Warehouse.ingest),
        (fivetran.serve, Warehouse.serve),
    ],
)
def test_a_command_has_the_options_of_its_call(command, method):
    """The defaults are the same, except that an empty list of words means no list."""
    flags = {name: each.default or None for name, each in signature(command).parameters.items()}
    options = {
        name: each.default or None
        for name, each in signature(method).parameters.items()
        if each.kind is each.KEYWORD_ONLY and name != "watcher"
    }
    assert {name: flags[name] for name in options} == options
