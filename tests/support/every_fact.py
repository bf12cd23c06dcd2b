"""A table that keeps every fact and folds all of them for each question, which is slow but right.

It stores no versions, reads nothing from a table and shares no code with the rule. It is the oracle of the
rule.
"""

from dataclasses import dataclass, field, replace

from hypothesis import strategies as st
from specification.copies import Copy
from specification.feeds.rule import Event

from backstory.model.versions_layout import FactKind

COLUMNS = ("v", "w")
KEYS, CELLS = "kmn", (None, "e", "u")
SCOPES = ((("w", "e"),), (("w", "u"),))


@dataclass
class EveryFact:
    """All events, and all copies with their scopes."""

    events: list = field(default_factory=list)
    copies: list = field(default_factory=list)

    def take(self, delivery):
        if isinstance(delivery, Scoped):
            self.copies.append(delivery)
        else:
            self.events += delivery

    def versions(self):
        """The content of the table: key, start, end and values."""
        return sorted(version for key in KEYS for version in self._life(key))

    def _life(self, key):
        mine = [each for each in self.events if each.key in {key, None}]
        facts = [(at, 0, each.logged, each.sequence, each) for at, each in _instants(mine)]
        facts += [(each.copy.at, 1, False, each.scope or (), each) for each in self.copies]
        facts.sort(key=lambda each: each[:4])
        state, life = None, []
        for place, (at, *_, fact) in enumerate(facts):
            state = _after(state, fact, key)
            if place + 1 < len(facts) and facts[place + 1][0] == at:
                continue
            before = life[-1][2] if life and life[-1][1] == 0 else None
            if state != before:
                if before is not None:
                    life[-1] = (life[-1][0], at, before)
                if state is not None:
                    life.append((at, 0, state))
        return [(key, start, end, repr(values)) for start, end, values in life]


def _instants(events):
    """The instant of each event, for a log computed with the definition of V131, one event at a time."""
    log = [each for each in events if each.logged]
    for one in events:
        if not one.logged:
            yield one.at, one
            continue
        until = [each for each in log if each.sequence <= one.sequence]
        yield max(_time(each, log) for each in until), one


def _time(event, log):
    """The own time of a change.

    For a read, this is the time of the first change after it, if that is later.
    """
    later = [each for each in log if each.sequence > event.sequence and each.sequence[-1]]
    if event.sequence[-1] or not later:
        return event.at
    return min(event.at, min(later, key=lambda each: each.sequence).at)


@dataclass(frozen=True)
class Scoped:
    """A copy of all records, or of a scope."""

    copy: Copy
    scope: tuple | None = None


def _after(state, fact, key):
    if isinstance(fact, Event):
        if fact.kind is not FactKind.UPSERT:
            return None
        return {**(state or dict.fromkeys(COLUMNS)), **{name: fact.values[name] for name in fact.columns}}
    listed = fact.copy.rows.get(key)
    if listed is None:
        outside = state is not None and fact.scope and state[fact.scope[0][0]] != fact.scope[0][1]
        return state if outside else None
    if state is not None and all(state[name] == listed[name] for name in fact.copy.columns):
        return state
    return {name: listed.get(name) for name in COLUMNS}


INSTANTS = st.integers(1, 9)
ROWS = st.fixed_dictionaries({name: st.sampled_from(CELLS) for name in COLUMNS})
ASSERTED = st.sampled_from([COLUMNS, COLUMNS, ("v",), ("w",), ()])
SEQUENCES = st.integers(1, 3).map(lambda number: (number,))


@st.composite
def events(draw, instants=INSTANTS):
    key, at, sequence = draw(st.sampled_from(KEYS)), draw(instants), draw(SEQUENCES)
    kind = draw(st.sampled_from([FactKind.UPSERT] * 6 + [FactKind.DELETE] * 2 + [FactKind.TRUNCATE]))
    if kind is FactKind.TRUNCATE:  # with its own sequence, which no event may share
        return Event(None, at, kind, sequence=(sequence[0] + 0.5,))
    if kind is FactKind.DELETE:
        return Event(key, at, kind, sequence=sequence)
    columns, row = draw(ASSERTED), draw(ROWS)
    return Event(key, at, kind, {name: row[name] for name in columns}, columns, sequence)


@st.composite
def copies(draw):
    """The copies of one instant: one copy of all records, perhaps with fewer columns, or the parts of a copy."""
    at, rows = draw(INSTANTS), draw(st.dictionaries(st.sampled_from(KEYS), ROWS))
    if draw(st.booleans()):
        columns = draw(st.sampled_from([COLUMNS, COLUMNS, ("v",), ()]))
        rows = {key: {name: row[name] for name in columns} for key, row in rows.items()}
        return [Scoped(Copy(at, rows, columns), None)]
    scopes = draw(st.lists(st.sampled_from(SCOPES), min_size=1, max_size=2, unique=True))
    return [
        Scoped(Copy(at, {key: row for key, row in rows.items() if row["w"] == scope[0][1]}, COLUMNS), scope)
        for scope in scopes
    ]


@st.composite
def logged(draw, instants=INSTANTS):
    """A message of a log whose clock may jump. Sometimes it is a read, and some reads have no position."""
    one = replace(draw(events(instants)), sequence=())
    read = one.kind is FactKind.UPSERT and draw(st.integers(0, 2)) == 0
    if read and draw(st.integers(0, 3)) == 0:
        return one
    number = draw(st.integers(1, 9)) + (0.5 if one.kind is FactKind.TRUNCATE else 0)
    return replace(one, sequence=(number, not read), logged=True)


def _identity(event):
    return (event.key, event.logged or event.at, event.sequence)


ORDERED = st.lists(events(), max_size=14, unique_by=lambda each: (each.key, each.at, each.sequence))
LOGS = st.lists(logged(), max_size=14, unique_by=_identity)
EVENTS = ORDERED | LOGS
COPIES = st.lists(copies(), max_size=3, unique_by=lambda each: each[0].copy.at)


@st.composite
def arrivals(draw):
    """The same facts twice, each time in other deliveries and in another order."""
    all_events, parts = draw(EVENTS), [each for group in draw(COPIES) for each in group]
    return tuple(draw(_split(all_events, parts)) for _ in range(2))


@st.composite
def _split(draw, all_events, parts):
    places = draw(st.lists(st.integers(0, 4), min_size=len(all_events), max_size=len(all_events)))
    split = [[each for each, of in zip(all_events, places, strict=True) if of == place] for place in range(5)]
    return draw(st.permutations([*(each for each in split if each), *parts]))
