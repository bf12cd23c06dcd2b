"""Days of changes to customers and their accounts, and the versions that must result.

The data is derived from TPC-DI's customer and account dimensions, and is not comparable with TPC-DI. It has
the same kinds of actions in similar numbers, made by this code from a scale factor and a seed. A change
contains only the columns that it changes. An account's version refers to its customer's version in
`customer_from`. So every new version of a customer makes one new version of each of its accounts.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

FIRST_DAY: Final = datetime(2026, 1, 1, tzinfo=UTC)
BEFORE: Final = timedelta(days=30)  # the time before the first day that the first load covers
CUSTOMER: Final = ("customer_id", "tier", "name", "street", "city", "email", "credit")
ACCOUNT: Final = ("account_id", "customer_id", "customer_from", "name", "status", "tax")
KEYS: Final = {"customer": "customer_id", "account": "account_id"}
# Shares of the first load's actions: a new customer with an account, a new account, and changes to both.
FIRST: Final = {"new": 0.30, "account": 0.45, "account changes": 0.19, "customer changes": 0.06}
# The number of actions in a day, at scale factor 1.
DAILY: Final = {"new": 3.5, "account": 7.0, "account changes": 4.0, "customer changes": 1.2}
FIRST_ACTIONS: Final = 5_000

Row = dict[str, Any]


@dataclass
class Batch:
    """One table's data of one day: whole new records, and sparse changes, each with its `start`."""

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
    """Customers and accounts at present, and every version that they have had."""

    def __init__(self, scale: float, seed: int = 1) -> None:
        self.scale, self.random = scale, random.Random(seed)
        self.versions: dict[str, dict[int, list[tuple[datetime, Row]]]] = {"customer": {}, "account": {}}
        self.accounts_of: dict[int, list[int]] = {}

    def days(self, count: int) -> Iterator[Day]:
        """The first load and then this number of days."""
        actions = {kind: max(1, round(share * FIRST_ACTIONS * self.scale)) for kind, share in FIRST.items()}
        yield self._day(0, FIRST_DAY - BEFORE, FIRST_DAY, actions)
        for number in range(1, count + 1):
            begins = FIRST_DAY + timedelta(days=number - 1)
            yield self._day(number, begins, begins + timedelta(days=1), self._daily())

    def _daily(self) -> dict[str, int]:
        """The rates times the scale factor, rounded up or down at random."""
        return {kind: int(rate * self.scale + self.random.random()) for kind, rate in DAILY.items()}

    def _day(self, number: int, begins: datetime, ends: datetime, actions: Mapping[str, int]) -> Day:
        day = Day(number, begins, ends)
        kinds = [kind for kind, count in actions.items() for _ in range(count)]
        self.random.shuffle(kinds)
        if not self.versions["customer"]:
            kinds.remove("new")
            kinds.insert(0, "new")  # the first action must create a customer to change
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
        """One to three of the values, because a change is sparse."""
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
