"""Checks of queries and expressions from users, based on the parsed plan, before Spark runs them.

Even the analysis of a plan opens files (``text.`/etc/passwd` ``), and running it may start programs.
Therefore every value in every node of the parser's plan is checked. Only the nodes and functions listed here,
which compute on rows, are accepted.
"""

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.errors import AnalysisException

from backstory.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Name = tuple[str, ...]

_CATALYST: Final = "org.apache.spark.sql.catalyst."
# Harmless values in a plan: types, values of literals, and tables of these.
_VALUES: Final = (
    "org.apache.spark.sql.types.",
    "org.apache.spark.unsafe.types.",
    f"{_CATALYST}plans.logical.LocalRelation",
    "scala.Enumeration$Val",
    "java.util.UUID",
)
# Prefixes of class names whose values are checked; `a IS UNKNOWN` has an anonymous class.
_OTHERS: Final = (
    "scala.Tuple",
    "scala.Some",
    "scala.None$",
    f"{_CATALYST}expressions.IsUnknown$$anon$",
    f"{_CATALYST}expressions.IsNotUnknown$$anon$",
)
_PLANS: Final = """
    Aggregate Distinct Except Filter Generate GlobalLimit Intersect Join JoinHint LateralJoin LimitAll$
    LocalLimit Offset OneRowRelation Pivot Project RepartitionByExpression Sample Sort SubqueryAlias Union
    Unpivot UnresolvedHint UnresolvedWith WithWindowDefinition
"""
_TO_RESOLVE: Final = """
    MultiAlias RelationTimeTravel UnresolvedAlias UnresolvedAttribute UnresolvedExtractValue
    UnresolvedFunction UnresolvedGenerator UnresolvedHaving UnresolvedInlineTable UnresolvedOrdinal
    UnresolvedPipeAggregateOrdinal UnresolvedRelation UnresolvedStar UnresolvedStarExceptOrReplace
    UnresolvedSubqueryColumnAliases UnresolvedTVFAliases UnresolvedTableValuedFunction
"""
_EXPRESSIONS: Final = """
    Add Alias And Ascending$ BitwiseAnd BitwiseNot BitwiseOr BitwiseXor CaseWhen Cast Coalesce Collate Concat
    CreateNamedStruct CreateStruct$ Cube CurrentDate CurrentRow$ CurrentTime CurrentTimestamp Descending$
    Divide EqualNullSafe EqualTo Exists ExprId GreaterThan GreaterThanOrEqual GroupingSets Hex ILike In
    InSubquery IntegralDivide IsNotNull IsNull LambdaFunction LateralSubquery LessThan LessThanOrEqual Like
    LikeAll LikeAny ListQuery Literal Lower Multiply NamePlaceholder$ NamedArgumentExpression Not NotLikeAll
    NotLikeAny NullsFirst$ NullsLast$ NumericEvalContext Or Overlay PipeExpression PipeOperator RLike
    RangeFrame$ Remainder Rollup RowFrame$ ScalarSubquery SemiStructuredExtract ShiftLeft ShiftRight
    ShiftRightUnsigned SortOrder SpecifiedWindowFrame StringLocate StringTrim StringTrimLeft StringTrimRight
    Substring Subtract TimestampAdd TimestampDiff UnaryMinus UnaryPositive UnboundedFollowing$
    UnboundedPreceding$ UnresolvedCollation UnresolvedNamedLambdaVariable UnresolvedWindowExpression
    UnspecifiedFrame$ WindowExpression WindowSpecDefinition WindowSpecReference aggregate.AggregateExpression
    aggregate.AnyValue aggregate.Complete$ aggregate.First aggregate.Last
"""
_JOINS: Final = "Cross$ FullOuter$ Inner$ LeftAnti$ LeftOuter$ LeftSemi$ NaturalJoin RightOuter$ UsingJoin"
_NODES: Final = frozenset(
    _CATALYST + room + name
    for room, names in {
        "plans.logical.": _PLANS,
        "analysis.": _TO_RESOLVE,
        "expressions.": _EXPRESSIONS,
        "plans.": _JOINS,
        "": "AliasIdentifier FunctionIdentifier",
    }.items()
    for name in names.split()
)
# Spark's groups of functions that only compute on their arguments. XML functions can read a file. Of
# `misc_funcs` only a few are listed: others run Java, or read the session or its files.
_GROUPS: Final = """
    agg array bitwise collection conditional conversion csv datetime generator hash json lambda map math
    predicate st string struct url variant window
"""
_MISC: Final = frozenset(
    {
        *("assert_true", "monotonically_increasing_id", "raise_error", "typeof", "uuid"),
        *("bitmap_bit_position", "bitmap_bucket_number", "bitmap_count", "hll_sketch_estimate", "hll_union"),
    }
)
_TABLE_FUNCTIONS: Final = """
    explode explode_outer inline inline_outer json_tuple posexplode posexplode_outer range stack
    variant_explode variant_explode_outer
"""
# Names that are not columns, which Spark's analysis takes for the user or a variable of the session.
_OF_THE_SESSION: Final = re.compile(r'"class":"[\w.]*\.(CurrentUser|VariableReference)"')


def tables_read(spark: "SparkSession", text: str, given: frozenset[str] = frozenset()) -> set[Name]:
    """The names of the tables that a query reads, except the names of its own WITH and the `given` names.

    Nothing is looked up. Raises UsageError if the text is not a query, or if it does more than compute on
    rows.
    """
    if "${" in text:  # Spark replaces them with settings and environment variables
        raise _refusal("a variable (${…})")
    try:
        plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(text)  # noqa: SLF001
    except AnalysisException as wrong:  # this includes parse errors
        raise UsageError("wrong-query", cause_of(wrong), "Fix the query.") from None
    # Maps equal names in a WITH to the same string.
    same = str if str(spark.conf.get("spark.sql.caseSensitive")).lower() == "true" else str.lower
    return set(_read(spark, plan, given, same=same))


def refuse_session_values(plan: Any) -> None:
    """Raise UsageError if an analyzed query uses the session's user or one of its variables."""
    if _OF_THE_SESSION.search(plan.toJSON()):
        raise _refusal("a value of the session (its user, or a variable)")


def cause_of(wrong: Exception) -> str:
    """Spark's message about a query, without its code and its plan."""
    text = str(wrong).partition("SQLSTATE")[0].strip()
    return text.splitlines()[0][:300] if text else type(wrong).__name__


def _read(
    spark: "SparkSession", plan: Any, given: frozenset[str], *, same: Callable[[str], str]
) -> Iterator[Name]:
    """Check all values of a plan, each with the names of its enclosing WITHs. Yields the tables."""
    todo: list[tuple[Any, frozenset[str]]] = [(plan, frozenset(map(same, given)))]
    while todo:
        value, scope = todo.pop()
        if not hasattr(value, "getClass"):  # a number, a text or null, which py4j converts
            continue
        kind = str(value.getClass().getName())
        if kind.startswith(_VALUES):
            continue
        if kind.startswith("scala.collection."):
            todo += [(part, scope) for part in _each(value.iterator())]
            continue
        if not kind.startswith(_OTHERS) and kind not in _NODES:
            raise _refusal(_words(kind))
        name = kind.rpartition(".")[2]
        if name == "UnresolvedRelation":
            table = _table(value)
            if len(table) > 1 or same(table[0]) not in scope:
                yield table
        elif name == "UnresolvedWith":
            todo += _with(value, scope, same)
        else:
            _refuse_functions(spark, name, value)
            todo += [(part, scope) for part in _each(value.productIterator())]


def _table(relation: Any) -> Name:
    if relation.isStreaming() or not relation.options().isEmpty():
        raise _refusal("a table with options, or a stream")
    return tuple(map(str, _each(relation.multipartIdentifier().iterator())))


def _with(
    node: Any, scope: frozenset[str], same: Callable[[str], str]
) -> Iterator[tuple[Any, frozenset[str]]]:
    """The queries in a WITH, each with the names defined before it, and the main query with all names."""
    recursive = any(value is True for value in _each(node.productIterator()))  # since Spark 4.1
    for relation in _each(node.cteRelations().iterator()):
        name = same(str(relation.productElement(0)))
        yield relation.productElement(1), scope | {name} if recursive else scope
        scope |= {name}
    yield node.child(), scope


def _refuse_functions(spark: "SparkSession", node: str, value: Any) -> None:
    """Raise UsageError for a function that is not known to be a pure computation."""
    if node == "UnresolvedTableValuedFunction":
        names = tuple(map(str, _each(value.name().iterator())))
        harmless = len(names) == 1 and names[0].lower() in _TABLE_FUNCTIONS.split()
    elif node == "UnresolvedFunction":
        names = tuple(map(str, _each(value.nameParts().iterator())))
        harmless = len(names) == 1 and _computes(spark, names[0])
    elif node == "UnresolvedGenerator":
        names = (str(value.name().unquotedString()),)
        harmless = _computes(spark, names[0])
    else:
        return
    if not harmless:
        raise _refusal(f"the function {'.'.join(names)}")


def _computes(spark: "SparkSession", name: str) -> bool:
    """Whether a function is one of Spark's pure computations. The session's owner may have replaced it."""
    jvm: Any = spark._jvm  # noqa: SLF001
    registry = spark._jsparkSession.sessionState().functionRegistry()  # noqa: SLF001
    info = registry.lookupFunction(jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(name))
    if not info.isDefined():
        return False
    group = str(info.get().getGroup() or "").removesuffix("_funcs")
    return group in _GROUPS.split() or (group == "misc" and name.lower() in _MISC)


def _each(iterator: Any) -> Iterator[Any]:
    while iterator.hasNext():
        yield iterator.next()


def _words(kind: str) -> str:
    """The name of a class in words, such as "a script transformation" for `ScriptTransformation`."""
    name = re.split(r"[.$]", kind.rstrip("$"))[-1].removeprefix("Unresolved").removesuffix("Command")
    if name.endswith("Identifier"):
        return "IDENTIFIER()"
    words = " ".join(word.lower() for word in re.findall(r"[A-Z][a-z]*|[a-z]+", name)) or name
    return f"an {words}" if words[0] in "aeiou" else f"a {words}"


def _refusal(what: str) -> UsageError:
    return UsageError(
        "forbidden-query",
        f"The query uses {what}, but it may only compute on rows.",
        "Remove it.",
    )


def is_of_each_row(rows: "DataFrame", alone: "DataFrame") -> bool:
    """Whether the only column of `alone`, selected from `rows`, depends only on its row and not on the time.

    Windows, aggregates and generators become separate plan nodes, and subqueries remain in the plan. Spark
    marks expressions that use the current time.
    """
    analyzed, plan = (frame._jdf.queryExecution().analyzed() for frame in (rows, alone))  # noqa: SLF001
    computed, jvm = plan.expressions().head(), cast("Any", alone.sparkSession._jvm)  # noqa: SLF001
    by_row = plan.nodeName() == "Project" and plan.child().sameResult(analyzed)
    now = computed.containsPattern(jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE())
    return bool(by_row and not now and computed.deterministic() and plan.subqueries().isEmpty())
