"""Each kind of fetch step goes its way; those that cannot be pulled say so (O12, 5.2)."""

import pytest
from pydantic import TypeAdapter

from backstory.doors.odf.manifest.fetch import Fetch
from backstory.errors import UsageError
from backstory.sources.polling import check
from backstory.sources.secrecy import redacted, shown

STEP = TypeAdapter(Fetch)


@pytest.mark.parametrize(
    "step",
    [
        {"kind": "Container", "image": "busybox"},
        {"kind": "Mqtt", "host": "h", "port": 1, "topics": [{"path": "a"}], "password": "s3cret"},
        {"kind": "EthereumLogs", "chainId": 1},
        {"kind": "EvmLogs", "nodeUrl": "wss://node/?key=s3cret"},
    ],
)
def test_other_kinds_parse_and_are_refused_at_pull(ask, step):
    parsed = STEP.validate_python(step)
    check(parsed)

    with pytest.raises(UsageError) as caught:
        ask(parsed)

    assert (caught.value.code, caught.value.exit_code) == ("unsupported-source", 2)
    assert step["kind"] in caught.value.message
    assert "s3cret" not in str(caught.value)


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
        {"kind": "Url", "url": "${{ env.BASE }}/a", "eventTime": {"kind": "FromPath", "pattern": "(.)"}},
        {"kind": "FilesGlob", "path": "*", "eventTime": "FromMetadata"},
        {
            "kind": "FilesGlob",
            "path": "*",
            "eventTime": {"kind": "FromPath", "pattern": "(.)", "timestampFormat": "%Q"},
        },
    ],
)
def test_what_no_source_can_do_is_known_without_asking(step):
    with pytest.raises(UsageError):
        check(STEP.validate_python(step))


@pytest.mark.parametrize(
    ("url", "told"),
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
def test_what_is_shown_of_an_address(url, told):
    assert shown(url) == told


def test_secrets_are_taken_out_of_other_texts():
    assert redacted("key abc%20def abc def\n\x07 it", ["abc%20def", "it", ""]) == "key *** *** it"
