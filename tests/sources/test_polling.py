"""Each scheme is fetched in its own way, and an impossible one is refused without a request (5.2)."""

import pytest
from fetch_steps import from_path, glob_step, url_step

from backstory.errors import UsageError
from backstory.sources.fetching import check
from backstory.sources.templates import redact, without_secrets


@pytest.mark.parametrize("scheme", ["sftp", "s3", "data", "mailto"])
def test_other_schemes_are_refused(ask, scheme):
    with pytest.raises(UsageError) as caught:
        ask(f"{scheme}://user:s3cret@host/a.csv")

    assert caught.value.code == "unsupported-source"
    assert scheme.lower() in caught.value.message
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "step",
    [
        url_step("${{ env.BASE }}/a", event_time=from_path("(.)")),
        glob_step("*", "FromMetadata"),
        glob_step("*", from_path("(.)", "%Q")),
    ],
)
def test_impossible_settings_are_refused_without_a_request(step):
    with pytest.raises(UsageError):
        check(step)


@pytest.mark.parametrize(
    ("url", "shown_url"),
    [
        ("https://host/a/b.csv", "https://host/a/b.csv"),
        ("https://user:p@ss@host:1/a?token=1#x", "https://host:1/a"),
        ("https://host/pkg@1.0/a.csv", "https://host/pkg@1.0/a.csv"),
        ("${{ env.S }}://u:p@host/a", "${{ env.S }}://host/a"),
        ("${{ env.BASE || 'https://x?y@z' }}/a?b", "${{ env.BASE }}/a"),
        (
            "https://${{ env.U }}:${{ env.P }}@host/${{ env.A || env.B }}",
            "https://host/${{ env.A || env.B }}",
        ),
        ("https://host/${{ 'text' }}/a?k=${{ env.K }}", "https://host/${{ … }}/a"),
        ("my file.csv", "my file.csv"),
        ("", ""),
    ],
)
def test_addresses_are_shown_without_logins_and_queries(url, shown_url):
    assert without_secrets(url) == shown_url


def test_secrets_in_texts_are_masked():
    assert redact("key abc%20def abc def\n\x07 it", ["abc%20def", "it", ""]) == "key *** *** it"
