"""Templates in texts of a manifest (R8; section 1.1, B57 and B58)."""

import pytest

from backstory.errors import UsageError
from backstory.sources.templates import check, fill, secrets_of

ENVIRONMENT = {"A": "alpha", "B": "beta", "EMPTY": "", "TRICK": "${{ env.A }}", "_x1": "under"}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("", ""),
        ("https://a.b/c?d={{x}}", "https://a.b/c?d={{x}}"),
        ("$ { ${ }} $$", "$ { ${ }} $$"),
        ("${{ env.A }}", "alpha"),
        ("${{env.A}}", "alpha"),
        ("${{  env.A\t}}", "alpha"),
        ("x${{ env.A }}y${{ env.B }}z", "xalphaybetaz"),
        ("${{ env._x1 }}", "under"),
        ("${{ env.A }}, ${{ env.C || 'd' }}", "alpha, d"),
        ("${{ env.C || env.B || env.A }}", "beta"),
        ("${{ env.A || env.B }}", "alpha"),
        ("${{ env.C || env.D || 'x' || env.A }}", "x"),
        ("${{ 'text' }}", "text"),
        ('${{ "text" }}', "text"),
        ("${{ '' }}", ""),
        ("${{ 'a || b }} c' }}", "a || b }} c"),
        ("""${{ "it's" }}""", "it's"),
        ("${{ 123 }}", "123"),
        ("${{ -123 }}", "-123"),
        ("${{ 0.5 }}", "0.5"),
        ("${{ env.C || 7 }}", "7"),
        ("$${{ env.A }}", "$alpha"),
        ("${A}", "alpha"),
        ("x${A}y${{ env.B }}${_x1}", "xalphaybetaunder"),
        ("${A }${0}${}$A${env.A}", "${A }${0}${}$A${env.A}"),
    ],
)
def test_r8_a_template_has_its_first_available_value(text, result):
    assert fill(text, ENVIRONMENT) == result


def test_an_empty_variable_is_a_value():
    assert not fill("${{ env.EMPTY || 'x' }}", ENVIRONMENT)


def test_values_are_not_filled_again():
    assert fill("${{ env.TRICK }}", ENVIRONMENT) == "${{ env.A }}"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("${{ env.C }}", "C is not set"),
        ("${{ env.C || env.D }}", "C, D are not set"),
        ("${{ env.a }}", "a is not set"),
        ("${{ env.A }}${{ env.C }}", "C is not set"),
        ("${C}", "C is not set"),
    ],
)
def test_r8_an_error_for_a_missing_value_has_its_variable_names(text, names):
    with pytest.raises(UsageError) as refused:
        fill(text, ENVIRONMENT)
    assert refused.value.code == "template-value-not-found"
    assert names in refused.value.message
    assert refused.value.remedy.startswith("Set ")


@pytest.mark.parametrize(
    ("text", "character"),
    [
        ("${{ qwe1 }}", 4),
        ("${{ }}", 4),
        ("${{}}", 4),
        ("${{ env.A", 10),
        ("${{ env.A }", 11),
        ("${{ env.A || }}", 13),
        ("${{ || env.A }}", 4),
        ("${{ env.A | env.B }}", 11),
        ("${{ env.A env.B }}", 11),
        ("${{ env.1 }}", 4),
        ("${{ env.A-B }}", 10),
        ("${{ env. }}", 4),
        ("${{ 'a }}", 4),
        ("${{ 1e5 }}", 6),
        ("${{ .5 }}", 4),
        ("${{ - 1 }}", 4),
        ("${{ secrets.A }}", 4),
        ("ok ${{ env.A }} ${{", 20),
    ],
)
def test_r8_a_syntax_error_is_reported_with_its_position(text, character):
    for call in (
        lambda: fill(text, ENVIRONMENT),
        lambda: secrets_of(text, ENVIRONMENT),
        lambda: check(text),
    ):
        with pytest.raises(UsageError) as refused:
            call()
        assert refused.value.code == "template-invalid-pattern"
        assert f"at character {character} " in refused.value.message


@pytest.mark.parametrize("text", ["${{ hunter2 }}", "${{ 'hunter2' x }}", "hunter2 ${{ env.NONE }}"])
def test_r8_no_error_shows_a_text_or_a_value(text):
    with pytest.raises(UsageError) as refused:
        fill(text, {"X": "hunter2"})
    assert "hunter2" not in str(refused.value)


def test_r8_only_values_of_the_environment_are_secrets():
    text = "${{ env.A }} ${{ env.C || env.B }} ${{ 'plain' }} ${{ env.EMPTY }} ${{ env.A || env.TRICK }}"
    assert secrets_of(text, ENVIRONMENT) == {"alpha", "beta"}
    assert secrets_of("nothing here", ENVIRONMENT) == frozenset()


def test_templates_are_checked_without_their_values():
    check("${{ env.NOT_SET }} ${{ env.C || 'x' }}")
