"""What a query or an expression that others wrote would do, read from its plan before Spark runs any of it.

Already the analysis of a plan opens files (``text.`/etc/passwd` ``), and running it may start programs.
So the plan is walked as the parser leaves it, every value of every node, and whatever is not known to be
harmless is refused: what computes on rows is listed here, and nothing else passes.
"""

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, cast

from backstory.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Name = tuple[str, ...]

_CATALYST: Final = "org.apache.spark.sql.catalyst."
# What stands in a plan and cannot do anything: types, values of literals, and tables of these.
_VALUES: Final = (
    "org.apache.spark.sql.types.",
    "org.apache.spark.unsafe.types.",
    f"{_CATALYST}plans.logical.LocalRelation",
    "scala.Enumeration$Val",
    "java.util.UUID",
)
# What is walked by the beginning of its name; `a IS UNKNOWN` is of a class without a name of its own.
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
# Spark's groups of functions that compute on their arguments. Those of XML can be told to read a file, and
# of `misc_funcs` only a few do nothing but compute: others run Java, or read the session or its files.
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
# Names of no column that Spark takes for the user, or for a variable of the session, when it analyses.
_OF_THE_SESSION: Final = re.compile(r'"class":"[\w.]*\.(CurrentUser|VariableReference)"')


def tables_read(spark: "SparkSession", text: str, given: frozenset[str] = frozenset()) -> set[Name]:
    """The names of the tables that a query reads, beside those of its own WITH and the `given` ones.

    Nothing is looked up. Raises UsageError if it does anything else than compute on their rows, or is
    no query.
    """
    from pyspark.errors import AnalysisException

    if "${" in text:  # Spark puts settings, and variables of the environment, in their place
        raise _refusal("a variable (${…})")
    try:
        plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(text)  # noqa: SLF001
    except AnalysisException as wrong:  # what cannot be parsed, among others
        raise UsageError("wrong-query", cause_of(wrong), "Fix the query.") from None
    return set(_read(spark, plan, given, same=_comparable_names(spark)))


def _comparable_names(spark: "SparkSession") -> Callable[[str], str]:
    """By what names of a WITH are the same: Spark compares them without case unless it is told otherwise."""
    return str if str(spark.conf.get("spark.sql.caseSensitive")).lower() == "true" else str.lower


def refuse_session_values(plan: Any) -> None:
    """Raises UsageError if a name of an analysed query is the user's, or a variable of the session."""
    if _OF_THE_SESSION.search(plan.toJSON()):
        raise _refusal("a value of the session (its user, or a variable)")


def cause_of(wrong: Exception) -> str:
    """What Spark says of a query, without its code and its plan."""
    text = str(wrong).partition("SQLSTATE")[0].strip()
    return text.splitlines()[0][:300] if text else type(wrong).__name__


def _read(
    spark: "SparkSession", plan: Any, given: frozenset[str], *, same: Callable[[str], str]
) -> Iterator[Name]:
    """Walk all values of a plan, each with the names that its WITHs gave it."""
    todo: list[tuple[Any, frozenset[str]]] = [(plan, frozenset(map(same, given)))]
    while todo:
        value, scope = todo.pop()
        if not hasattr(value, "getClass"):  # a number, a text or nothing: py4j makes them Python's
            continue
        kind = str(value.getClass().getName())
        if kind.startswith(_VALUES):
            continue
        if kind.startswith("scala.collection."):
            todo += [(each, scope) for each in _each(value.iterator())]
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
            todo += [(each, scope) for each in _each(value.productIterator())]


def _table(relation: Any) -> Name:
    if relation.isStreaming() or not relation.options().isEmpty():
        raise _refusal("a table with options, or a stream")
    return tuple(map(str, _each(relation.multipartIdentifier().iterator())))


def _with(
    node: Any, scope: frozenset[str], same: Callable[[str], str]
) -> Iterator[tuple[Any, frozenset[str]]]:
    """The queries of a WITH, each seeing those before it, and the query behind them, which sees all."""
    recursive = any(value is True for value in _each(node.productIterator()))  # since Spark 4.1
    for told in _each(node.cteRelations().iterator()):
        name = same(str(told.productElement(0)))
        yield told.productElement(1), scope | {name} if recursive else scope
        scope |= {name}
    yield node.child(), scope


def _refuse_functions(spark: "SparkSession", node: str, value: Any) -> None:
    """Raises UsageError for a function that is not known to compute only."""
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
    """Whether a function is one of Spark's own that compute; the session's owner may have replaced it."""
    jvm: Any = spark._jvm  # noqa: SLF001
    registry = spark._jsparkSession.sessionState().functionRegistry()  # noqa: SLF001
    told = registry.lookupFunction(jvm.org.apache.spark.sql.catalyst.FunctionIdentifier(name))
    if not told.isDefined():
        return False
    group = str(told.get().getGroup() or "").removesuffix("_funcs")
    return group in _GROUPS.split() or (group == "misc" and name.lower() in _MISC)


def _each(iterator: Any) -> Iterator[Any]:
    while iterator.hasNext():
        yield iterator.next()


def _words(kind: str) -> str:
    """The name of a class as people say it: `ScriptTransformation` is a script transformation."""
    name = re.split(r"[.$]", kind.rstrip("$"))[-1].removeprefix("Unresolved").removesuffix("Command")
    if name.endswith("Identifier"):
        return "IDENTIFIER()"
    words = " ".join(each.lower() for each in re.findall(r"[A-Z][a-z]*|[a-z]+", name)) or name
    return f"an {words}" if words[0] in "aeiou" else f"a {words}"


def _refusal(what: str) -> UsageError:
    return UsageError(
        "forbidden-query",
        f"The query uses {what}, but it may only compute on rows.",
        "Remove it.",
    )


def is_of_each_row(rows: "DataFrame", alone: "DataFrame") -> bool:
    """Whether the one column that `alone` selects of `rows` is computed of each row, the same at any time.

    Windows, aggregates and generators become plans of their own, subqueries stay in the plan, and what tells
    the time is marked as such.
    """
    analyzed, plan = (each._jdf.queryExecution().analyzed() for each in (rows, alone))  # noqa: SLF001
    computed, jvm = plan.expressions().head(), cast("Any", alone.sparkSession._jvm)  # noqa: SLF001
    by_row = plan.nodeName() == "Project" and plan.child().sameResult(analyzed)
    now = computed.containsPattern(jvm.org.apache.spark.sql.catalyst.trees.TreePattern.CURRENT_LIKE())
    return bool(by_row and not now and computed.deterministic() and plan.subqueries().isEmpty())
