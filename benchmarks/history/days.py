"""Days of changes of customers and their accounts, and the versions that they must give.

Derived from TPC-DI's customer and account dimensions, and not comparable with TPC-DI: the same kinds of actions in
about the same numbers, made by this code from a scale factor and a seed. A change names only what it changes; an
account's version says in `customer_from` which version of its customer it belongs to, so that every new version of
a customer makes one of each of its accounts.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

FIRST_DAY: Final = datetime(2026, 1, 1, tzinfo=UTC)
BEFORE: Final = timedelta(days=30)  # the first load brings this long a past
CUSTOMER: Final = ("customer_id", "tier", "name", "street", "city", "email", "credit")
ACCOUNT: Final = ("account_id", "customer_id", "customer_from", "name", "status", "tax")
KEYS: Final = {"customer": "customer_id", "account": "account_id"}
# Of the first load's actions: a customer with an account, an account, changes of accounts and customers.
FIRST: Final = {"new": 0.30, "account": 0.45, "account changes": 0.19, "customer changes": 0.06}
# Actions of a day for each scale factor.
DAILY: Final = {"new": 3.5, "account": 7.0, "account changes": 4.0, "customer changes": 1.2}
FIRST_ACTIONS: Final = 5_000

Row = dict[str, Any]


@dataclass
class Batch:
    """What one table gets on one day: whole new records, and sparse changes, each with its `start`."""

    new: list[Row] = field(default_factory=list)
    changes: list[Row] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.new) + len(self.changes)


@dataclass
class Day:
    """A batch for each table; the first load is day 0."""

    number: int
    begins: datetime
    ends: datetime
    customer: Batch = field(default_factory=Batch)
    account: Batch = field(default_factory=Batch)


class World:
    """Customers and accounts as they are, and every version that they ever had."""

    def __init__(self, scale: float, seed: int = 1) -> None:
        self.scale, self.random = scale, random.Random(seed)
        self.versions: dict[str, dict[int, list[tuple[datetime, Row]]]] = {"customer": {}, "account": {}}
        self.accounts_of: dict[int, list[int]] = {}

    def days(self, count: int) -> Iterator[Day]:
        """The first load and then so many days."""
        actions = {kind: max(1, round(share * FIRST_ACTIONS * self.scale)) for kind, share in FIRST.items()}
        yield self._day(0, FIRST_DAY - BEFORE, FIRST_DAY, actions)
        for number in range(1, count + 1):
            begins = FIRST_DAY + timedelta(days=number - 1)
            yield self._day(number, begins, begins + timedelta(days=1), self._daily())

    def _daily(self) -> dict[str, int]:
        """About as many as the scale factor asks for: the part of one by chance."""
        return {kind: int(rate * self.scale + self.random.random()) for kind, rate in DAILY.items()}

    def _day(self, number: int, begins: datetime, ends: datetime, actions: Mapping[str, int]) -> Day:
        day = Day(number, begins, ends)
        kinds = [kind for kind, count in actions.items() for _ in range(count)]
        self.random.shuffle(kinds)
        if not self.versions["customer"]:
            kinds.remove("new")
            kinds.insert(0, "new")  # there is nothing to change before
        seconds = sorted(self.random.sample(range(int((ends - begins).total_seconds())), len(kinds)))
        for kind, second in zip(kinds, seconds, strict=True):
            self._act(kind, begins + timedelta(seconds=second), day)
        return day

    def _act(self, kind: str, start: datetime, day: Day) -> None:
        if kind == "new":
            self._open_account(self._new_customer(start, day), start, day)
        elif kind == "account":
            self._open_account(self._any("customer"), start, day)
        elif kind == "account changes":
            self._change("account", self._any("account"), self._some(self._account_values()), start, day)
        else:
            customer = self._any("customer")
            self._change("customer", customer, self._some(self._customer_values()), start, day)
            for account in self.accounts_of[customer]:
                self._change("account", account, {"customer_from": start}, start, day)

    def _any(self, table: str) -> int:
        return self.random.randint(1, len(self.versions[table]))

    def _new_customer(self, start: datetime, day: Day) -> int:
        customer = len(self.versions["customer"]) + 1
        self.accounts_of[customer] = []
        self._begin("customer", {"customer_id": customer, **self._customer_values()}, start, day)
        return customer

    def _open_account(self, customer: int, start: datetime, day: Day) -> None:
        account = len(self.versions["account"]) + 1
        self.accounts_of[customer].append(account)
        whose = {"customer_id": customer, "customer_from": self.versions["customer"][customer][-1][0]}
        self._begin("account", {"account_id": account, **whose, **self._account_values()}, start, day)

    def _begin(self, table: str, row: Row, start: datetime, day: Day) -> None:
        self.versions[table][row[KEYS[table]]] = [(start, row)]
        getattr(day, table).new.append({**row, "start": start})

    def _change(self, table: str, key: int, changed: Row, start: datetime, day: Day) -> None:
        life = self.versions[table][key]
        life.append((start, {**life[-1][1], **changed}))
        getattr(day, table).changes.append({KEYS[table]: key, **changed, "start": start})

    def _some(self, values: Row) -> Row:
        """One to three of the values: a change is sparse."""
        return {name: values[name] for name in self.random.sample(list(values), self.random.randint(1, 3))}

    def _customer_values(self) -> Row:
        number = self.random.randrange
        return {
            "tier": number(1, 4),
            "name": f"customer {number(10**6)}",
            "street": f"{number(1, 999)} street {number(5_000)}",
            "city": f"city {number(300)}",
            "email": f"user{number(10**9)}@example.com",
            "credit": f"{number(10**6)}.{number(10, 99)}",
        }

    def _account_values(self) -> Row:
        return {
            "name": f"account {self.random.randrange(10**9)}",
            "status": self.random.choice(["active", "closed", "pending"]),
            "tax": self.random.randrange(3),
        }

    def lives(self, table: str) -> Iterator[tuple[datetime, datetime | None, Row]]:
        """Every version that the table must hold: start, end (None for open) and values."""
        for life in self.versions[table].values():
            ends = [start for start, _ in life[1:]] + [None]
            for (start, row), end in zip(life, ends, strict=True):
                yield start, end, row
