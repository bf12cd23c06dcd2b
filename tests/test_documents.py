"""The limits of a YAML document in size, depth, aliases and digits, for models and manifests."""

import pytest
from depth import deep
from pydantic import BaseModel

from backstory.documents import LARGEST, DocumentKind, read_document, read_documents, validate
from backstory.errors import UsageError

SORT = DocumentKind("model", "no-model", "wrong-model")
# The scanner's work for brackets grows with their square.
NESTED = deep(laws=1200, gate=300)


def laughs(levels: int) -> str:
    """Ten to the power of `levels` parts, in as many lines as levels."""
    lines = ["l0: &l0 [x,x,x,x,x,x,x,x,x,x]"]
    lines += [f"l{n}: &l{n} [{','.join([f'*l{n - 1}'] * 10)}]" for n in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        (laughs(9), 5, "aliases repeat more than 100,000 parts"),
        (laughs(7).replace("l6: &l6 [", "l6:\n  <<: *l5\n  a: ["), 5, "aliases repeat"),
        ("a: 1\nb: " + "[" * NESTED + "]" * NESTED, 2, "nested more than 100 levels deep"),
        ("a:\n" + "\n".join(" " * n + "- " for n in range(1, 200)), 101, "nested more than 100 levels deep"),
        ("a: 1\nb: " + "9" * 6000, 2, "more than 100 digits"),
        ("a: 1\nb: 0x" + "f" * 6000, 2, "more than 100 digits"),
        ("a: 1\nb: 1." + "9" * 6000, 2, "more than 100 digits"),
        ("a: &a\n  b: *a", 2, "the document contains itself"),
        ("a: 1\nb: 2020-13-45", 2, "this is not a value"),
        ("a: 1\nb: !!int x", 2, "this is not a value"),
        ("a: 1\nb: [", 2, "expected the node content"),
        (
            "a: 1\nb: !!python/object/apply:os.system ['exit']",
            2,
            "the tag python/object/apply:os.system is not allowed",
        ),
        ("a: 1\nb: !other {c: 1}", 2, "the tag !other is not allowed"),
        ("a: 1\nb: !!set {c}", 2, "the tag set is not allowed"),
    ],
)
def test_a_document_beyond_a_bound_is_refused_with_file_and_line(tmp_path, text, line, why):
    path = tmp_path / "m.yaml"
    path.write_text(text)

    for read in (read_document, read_documents):
        with pytest.raises(UsageError, match=why) as refused:
            read(path, SORT)
        assert refused.value.code == "wrong-model"
        assert f"m.yaml, line {line}:" in refused.value.message
        assert len(str(refused.value)) < 300


@pytest.mark.parametrize("name", ["none.yaml", "m\0.yaml", "\ud800.yaml"])
def test_missing_and_impossible_files_are_usage_errors(tmp_path, name):
    for read in (read_document, read_documents):
        with pytest.raises(UsageError, match="cannot be read") as refused:
            read(tmp_path / name, SORT)
        assert refused.value.code == SORT.absent_code


def test_a_file_over_16_mib_is_not_read(tmp_path):
    path = tmp_path / "m.yaml"
    path.write_bytes(b"a: 1\n" + b"#" * LARGEST)

    with pytest.raises(UsageError, match="larger than 16 MiB") as refused:
        read_document(path, SORT)

    assert (refused.value.code, refused.value.exit_code) == ("wrong-model", 2)


def test_large_realistic_documents_are_within_the_bounds(tmp_path):
    path = tmp_path / "m.yaml"
    columns = "".join(f"  - {{name: c{n}, type: *t}}\n" for n in range(1000))
    path.write_text(f"type: &t {{kind: Option, inner: Int64}}\nid: '{'9' * 6000}'\ncolumns:\n{columns}")

    tree = read_document(path, SORT).tree

    assert len(tree["columns"]) == 1000
    assert len(tree["id"]) == 6000
    assert tree["columns"][999]["type"] == {"kind": "Option", "inner": "Int64"}


def test_a_long_wrong_value_is_shortened_in_the_error(tmp_path):
    class Part(BaseModel):
        a: bool | None = None
        b: int = 0

    path = tmp_path / "m.yaml"
    path.write_text(f"b: {'x' * 10_000}")

    with pytest.raises(UsageError) as refused:
        validate(Part, read_document(path, SORT))

    assert len(refused.value.message) < 300


@pytest.mark.parametrize("word", ["NO", "no", "off", "Y", "NA", "yes"])
@pytest.mark.parametrize("name", ["null", "'null'"])
def test_null_is_an_option_name_and_yaml_1_1_words_are_texts(tmp_path, name, word):
    """`null: NO` makes the text NO mean NULL, with or without quotes around the key."""

    class Written(BaseModel):
        null: str

    path = tmp_path / "m.yaml"
    path.write_text(f"{name}: {word}\n")
    assert validate(Written, read_document(path, SORT)).null == word
