"""Verify that a dataset agrees with its commits: chain, log, offsets, rows and columns (section 6.5)."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from backstory.errors import BackstoryError, UsageError, Violated
from backstory.journal import chain
from backstory.journal.arrow_hash import Slice, SmallRows
from backstory.journal.chain import NUMBER, SEQUENCE, Block
from backstory.model.instant import iso, parse_instant
from backstory.model.table import TableName
from backstory.stores.iceberg.faults import translate_faults
from backstory.stores.iceberg.store import IcebergStore, existing
from backstory.stores.metadata.table_metadata import TableMetadata
from backstory.stores.metadata.table_metadata import existing as described
from backstory.stores.metadata.table_rows import TableReader
from backstory.stores.port import TableLike

if TYPE_CHECKING:
    from backstory.journal.row_hash import SparkRows

Defect = Literal["rows", "schema", "chain", "log", "offsets"]
# A function that maps renamed system columns to their names in a manifest, or None for an unreadable
# manifest.
Renamings = Callable[[TableLike, Mapping[str, Any]], Mapping[str, str] | None]


@dataclass(frozen=True, slots=True)
class Problem:
    """A defect of a block, with its offsets. Rows that belong to no block have no `sequence`."""

    sequence: int | None
    offsets: tuple[int, int] | None
    what: Defect
    message: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The numbers of blocks and rows of a dataset, and its problems, sorted by block.

    If the dataset cannot be read, only `error` is set.
    """

    dataset: TableName
    blocks: int
    rows: int
    problems: list[Problem] = field(default_factory=list)
    error: BackstoryError | None = None

    @property
    def valid(self) -> bool:
        """Whether there is no problem."""
        return not self.problems and self.error is None


def verdict_of(dataset: TableName, result: Verdict | BackstoryError) -> Verdict:
    """The verdict on a dataset, or a verdict with the error that prevented reading it."""
    return result if isinstance(result, Verdict) else Verdict(dataset, 0, 0, error=result)


def verify(store: IcebergStore, table: TableName, renamings: Renamings) -> Verdict:
    """Compute the chain and the hashes of all rows again, and compare both with the commits.

    Compaction, expired snapshots (if the log has their blocks) and added columns do not affect the result.
    `renamings` returns the renamed system columns of a manifest in a block. Raises UsageError if the table
    does not exist.
    """
    from backstory.journal.row_hash import SparkRows

    with translate_faults(table):
        rows = chain.log_rows(store, table)  # first, so that the table loaded next has every block of it
        stored = existing(store, table)
        history = read_history(rows, chain.snapshots(stored))
        return _verdict(stored, history, SparkRows(store, stored), renamings)


def verify_small(files: TableReader, renamings: Renamings) -> Verdict:
    """Verify a small dataset from its files. Raises Unreadable if only Spark can read or hash them."""
    rows = chain.log_rows_in_files(files)
    stored = replace(files, table=described(files.catalog, files.table.shape.table))
    history = read_history(rows, chain.snapshots(stored.table))
    return _verdict(stored.table, history, SmallRows(stored), renamings)


def _verdict(
    table: TableMetadata,
    history: tuple[list[Block], list[Problem]],
    rows: "SparkRows | SmallRows",
    renamings: Renamings,
) -> Verdict:
    """The verdict, from the blocks with their problems and from the rows and columns of the dataset."""
    blocks, problems = history
    namings = _namings(table, blocks, renamings)
    slices = _slices(rows, blocks, namings)
    wrong = [block for block in blocks if block.offsets and _differs(block, slices[block.sequence])]
    name = table.shape.table
    problems = [
        *problems,
        *_column_problems(table, blocks, namings),
        *_row_problems(rows, wrong, slices),
    ]
    return Verdict(name, len(blocks), sum(each.rows for each in slices.values()), _in_order(problems))


def _slices(
    rows: "SparkRows | SmallRows", blocks: Sequence[Block], namings: Mapping[int, Mapping[str, str]]
) -> dict[int | None, Slice]:
    """The rows of each block and, under None, the rows of no block. There is one pass for each naming."""
    slices: dict[int | None, Slice] = {block.sequence: Slice() for block in blocks}
    spans = [(block.sequence, *block.offsets) for block in blocks if block.offsets]
    passes = [namings[number] for number, _, _ in spans] or [{}]
    for names in {tuple(naming.items()): naming for naming in passes}.values():
        built = rows.slices(spans, names).items()
        slices |= {number: part for number, part in built if number is None or namings[number] == names}
    return slices


def read_history(
    rows: Sequence[Mapping[str, Any]], snapshots_properties: Iterable[Mapping[str, str]]
) -> tuple[list[Block], list[Problem]]:
    """The blocks in the rows of a log and in snapshots, oldest first, and their problems."""
    committed, problems = _blocks_of_commits(snapshots_properties)
    logged, log_problems = _blocks_of_log(rows, committed)
    blocks = [block for _, block in sorted((logged | committed).items())]
    return blocks, _in_order([*problems, *log_problems, *_chain_problems(blocks)])


def _in_order(problems: Iterable[Problem]) -> list[Problem]:
    return sorted(problems, key=lambda each: (each.sequence is None, each.sequence))


def _problem(block: Block, what: Defect, message: str) -> Problem:
    return Problem(block.sequence, block.offsets, what, message)


def _blocks_of_commits(
    snapshots_properties: Iterable[Mapping[str, str]],
) -> tuple[dict[int, Block], list[Problem]]:
    """The blocks of the snapshots, and a problem for each property that differs from its block."""
    blocks: dict[int, Block] = {}
    problems = []
    for properties in snapshots_properties:
        try:
            block = chain.from_properties(properties)
        except Violated as stop:
            number = properties[SEQUENCE]
            sequence = int(number) if number.isdecimal() else None
            problems.append(Problem(sequence, None, "chain", stop.message))
            continue
        assert block is not None
        blocks[block.sequence] = block
        differ = [name for name, value in block.properties().items() if properties.get(name) != value]
        if differ:
            why = f"The commit of block {block.sequence} was changed: {_differing_names(differ)}."
            problems.append(_problem(block, "chain", why))
    return blocks, problems


def _blocks_of_log(
    rows: Sequence[Mapping[str, Any]], committed: Mapping[int, Block]
) -> tuple[dict[int, Block], list[Problem]]:
    """The blocks of the log, and a problem for each row that differs from its commit or its own hash."""
    blocks: dict[int, Block] = {}
    problems = list(_log_problems([row[NUMBER] for row in rows], committed))
    for row in rows:
        try:
            block = chain.block_of(row)
        except Violated as stop:
            problems.append(Problem(row[NUMBER], None, "log", stop.message))
            continue
        truth = committed.get(block.sequence, block)
        differ = [name for name, value in chain.row_of(truth).items() if row[name] != value]
        if differ:
            why = f"Row {block.sequence} of the log was changed: {_differing_names(differ)}."
            problems.append(_problem(truth, "log", why))
        if not committed or block.sequence < max(committed):
            blocks[block.sequence] = block
    return blocks, problems


def _differing_names(names: Sequence[str]) -> str:
    return f"{', '.join(names)} {'differs' if len(names) == 1 else 'differ'}"


def _log_problems(logged: Sequence[int], committed: Mapping[int, Block]) -> Iterator[Problem]:
    """Problems of the log: repeated rows, missing rows, and rows of blocks that no longer exist."""
    for number, count in Counter(logged).items():
        if count > 1:
            yield Problem(number, None, "log", f"The log has {count} rows for block {number}.")
    newest = max(filter(None, logged), default=0)
    for number in sorted(committed.keys() - set(logged)):
        if number < newest:
            yield _problem(committed[number], "log", f"The log lacks the row of block {number}.")
    if committed and newest > max(committed):
        why = (
            f"The log continues to block {newest}, but the dataset ends before it: it was rolled back "
            "or created again."
        )
        yield Problem(max(committed) + 1, None, "log", why)


def _chain_problems(blocks: Sequence[Block]) -> Iterator[Problem]:
    """Problems in the chain: wrong hashes of the previous block, gaps in offsets, and decreasing times."""
    before: Block | None = None
    offset = 0
    for block in blocks:
        number = before.sequence + 1 if before else 0
        if block.sequence != number:
            # The offset at which the rows of a block begin, or would begin.
            previous = block.event.get("prev_offset")
            start = block.offsets[0] if block.offsets else 0 if previous is None else int(previous) + 1
            lost = (offset, start - 1) if start > offset else None
            why = f"Nothing is known of blocks {number} to {block.sequence - 1}: "
            yield Problem(
                number, lost, "chain", why + "their snapshots have expired, and the log lacks them."
            )
            offset = start
        elif block.previous != (before.hash if before else None):
            why = f"Block {number} does not follow the block before it: the hashes differ."
            yield _problem(block, "chain", why)
        if before is not None:
            yield from _time_problems(before, block)
        if not _continues(block, offset):
            why = f"The offsets of block {number} do not begin at {offset}."
            yield _problem(block, "offsets", why)
        offset = block.offsets[1] + 1 if block.offsets else offset
        before = block


def _continues(block: Block, offset: int) -> bool:
    """Whether a block continues at `offset`: its previous offset is one less, and any rows begin there."""
    start, end, previous = (block.event.get(name) for name in ("start", "end", "prev_offset"))
    follows = previous == (offset - 1 if offset else None)
    return follows and (
        (start is None and end is None) or (start == offset and end is not None and end >= start)
    )


def _time_problems(before: Block, block: Block) -> Iterator[Problem]:
    if block.system_time < before.system_time:
        why = f"The system time decreases, from {iso(before.system_time)} to {iso(block.system_time)}."
        yield _problem(block, "chain", why)
    old, new = before.event.get("watermark"), block.event.get("watermark")
    try:
        back = old is not None and (new is None or parse_instant(new) < parse_instant(old))
    except (TypeError, UsageError):
        back = True
    if back:
        yield _problem(block, "chain", f"The watermark decreases, from {old} to {new}.")


def _namings(table: TableLike, blocks: Sequence[Block], renamings: Renamings) -> dict[int, dict[str, str]]:
    """For each block, the renamed system columns and their names in that block.

    A block contains a manifest only if the manifest had changed. A manifest may rename system columns.
    """
    namings: dict[int, dict[str, str]] = {}
    names: dict[str, str] = {}
    for block in blocks:
        document = block.event.get("manifest")
        then = None if document is None else renamings(table, document)
        names = names if then is None else dict(then)
        namings[block.sequence] = names
    return namings


def _column_problems(
    table: TableMetadata,
    blocks: Sequence[Block],
    namings: Mapping[int, Mapping[str, str]],
) -> Iterator[Problem]:
    """A problem if the columns do not begin with the newest block's columns. Added columns may follow."""
    if not any(block.offsets for block in blocks):
        return  # columns of an empty dataset may still change
    newest = blocks[-1]
    then = namings[newest.sequence]
    names = [(then.get(name, name), type_) for name, type_ in chain.column_types(table.fields)]
    hashes = {chain.schema_hash(names[:count]) for count in range(1, len(names) + 1)}
    if newest.event.get("schema_hash") not in hashes:
        why = f"The columns of {table.shape.table} differ from those of block {newest.sequence}."
        yield _problem(newest, "schema", why)


def _differs(block: Block, rows: Slice) -> bool:
    assert block.offsets is not None
    start, end = block.offsets
    return (rows.rows, rows.hash) != (end - start + 1, block.event.get("logical_hash"))


def _row_problems(
    stored: "SparkRows | SmallRows", wrong: Sequence[Block], slices: Mapping[int | None, Slice]
) -> Iterator[Problem]:
    """Problems in the rows of blocks, and in rows that belong to no block."""
    for block in wrong:
        assert block.offsets is not None
        rows, (start, end) = slices[block.sequence], block.offsets
        if rows.rows and (twice := stored.count_repeated(start, end)):
            why = f"{twice} offsets of block {block.sequence} appear twice."
            yield _problem(block, "offsets", why)
        elif rows.rows != end - start + 1:
            why = f"Block {block.sequence} wrote {end - start + 1} rows, but {rows.rows} are stored."
            yield _problem(block, "rows", why)
        else:
            yield _problem(
                block, "rows", f"The rows of block {block.sequence} differ from those that it wrote."
            )
    if None in slices:
        stray = slices[None]
        span = None if stray.first is None or stray.last is None else (stray.first, stray.last)
        yield Problem(None, span, "offsets", f"{stray.rows} rows belong to no block.")
