"""A file on an FTP server: it has the run's time, and its state is unknown (sections 1.3 to 1.5, 5.1)."""

from dataclasses import replace

import pytest
from fetch_steps import from_path, url_step
from ftp import serving

from backstory.errors import Failed, TryAgain, UsageError
from backstory.sources.fetching import check
from backstory.sources.ftp import fetch_ftp
from backstory.sources.savepoint import forget
from backstory.sources.templates import fill

BODY = b"city,population\nA,1000\n"


@pytest.fixture
def site():
    with serving() as served:
        yield served


@pytest.fixture
def get(asking):
    """Fetch an address, with other fields of the step and parts of FetchContext."""

    def fetch_address(address, *, step=None, **differing):
        step = url_step(address, **(step or {}))
        context = replace(asking, **differing)
        return fetch_ftp(step, fill(step.url, context.environment), context)

    return fetch_address


def only(answer):
    assert answer.status == "new"
    [fetched] = answer.deliveries
    return fetched


def test_a_download_is_a_file_in_the_cache(site, get, asking):
    progress = []
    fetched = only(get(site.play("in/a.csv", BODY), progress=lambda *it: progress.append(it)))

    assert fetched.path.read_bytes() == BODY
    assert fetched.path.is_relative_to(asking.cache)
    assert (fetched.name, fetched.state, fetched.taken_up) == (site.url("in/a.csv"), None, None)
    assert site.heard[:3] == ["USER anonymous", "PASS anonymous@", "TYPE I"]
    assert progress[0] == ("Checking for updates", 0, None)
    assert progress[-1] == ("Downloading data", len(BODY), len(BODY))


@pytest.mark.parametrize(
    ("step", "warned"),
    [
        ({}, False),
        ({"event_time": "FromSystemTime"}, False),
        ({"event_time": "FromMetadata"}, True),
        ({"event_time": from_path("(.)")}, True),
    ],
)
def test_the_event_time_of_ftp_is_always_the_time_of_the_run(site, get, step, warned):
    """1.4: The event time follows the row `Url ftp`. An impossible setting causes a warning."""
    answer = get(site.play("a", BODY), step=step)

    check(url_step(site.url("a"), **step))
    assert only(answer).event_time is None
    assert any("provides no modification time" in line for line in answer.warnings) == warned


def test_later_pulls_skip_ftp_unless_forced(site, get):
    """5.1, R74: The source is uncacheable, as the first pull warns."""
    address = site.play("a", BODY)
    assert "refetch: always" in get(address).warnings[0]
    assert get(address, asked_before=True).status == "uncacheable"
    assert site.transfers() == 1
    assert only(get(address, asked_before=True, fetch_uncacheable=True)).path.read_bytes() == BODY
    always, forever = {"always": True}, {"once": True}
    assert only(get(address, asked_before=True, step=always)).path.read_bytes() == BODY
    assert get(address, step=always).warnings == get(address, step=forever).warnings == []


def test_a_kept_download_is_reused(site, get, asking):
    """R78: After a failed run, the download is reused, and `--refetch` fetches again."""
    address = site.play("a", BODY)
    only(get(address))
    again = only(get(address))
    assert (again.path.read_bytes(), again.taken_up is not None, site.transfers()) == (BODY, True, 1)
    only(get(address, refetch=True))
    assert site.transfers() == 2
    forget(only(get(address)), asking)
    only(get(address))
    assert site.transfers() == 3


def test_percent_escapes_in_path_and_login_are_decoded(site, get):
    """Templates fill in user and password, which no message contains."""
    site.users = {"me@work": "s3cret/pass"}
    site.play("in/ä b.csv", BODY)
    login = {"U": "me%40work", "P": "s3cret%2Fpass"}
    address = f"ftp://${{{{ env.U }}}}:${{{{ env.P }}}}@127.0.0.1:{site.port}/in/%C3%A4%20b.csv;type=i"

    fetched = only(get(address, environment=login))

    assert fetched.path.read_bytes() == BODY
    assert "s3cret" not in fetched.name
    with pytest.raises(TryAgain) as refused:
        get(address, environment={**login, "P": "wr0ng"})
    assert "530" in refused.value.message
    assert not {"wr0ng", "me@work"} & {*refused.value.message.split()}


def test_a_missing_file_is_not_found(site, get, asking):
    with pytest.raises(Failed) as caught:
        get(site.url("gone.csv"))
    assert (caught.value.code, "550" in caught.value.message) == ("not-found", True)
    assert site.transfers() == 1
    assert list(asking.cache.iterdir()) == []


def test_a_missing_server_is_unreachable(get):
    with pytest.raises(TryAgain, match=r"ftp://127\.0\.0\.1:1/a cannot be reached.*3 attempts") as caught:
        get("ftp://127.0.0.1:1/a")
    assert caught.value.code == "unreachable"


@pytest.mark.parametrize("end", ["226 That is all.", "426 Broken off."])
def test_a_part_of_a_file_is_never_accepted_as_the_file(site, get, end):
    """Neither the server's reply nor the number of bytes alone suffices. The next attempt is complete."""
    address = site.play("a", BODY * 500)
    site.cuts = [(100, end), (0, end)]
    assert only(get(address)).path.read_bytes() == BODY * 500
    site.cuts = [(100, end)] * 3
    with pytest.raises(TryAgain, match="broke off after 100 bytes"):
        get(address, refetch=True)


def test_a_server_without_file_sizes_is_supported(site, get):
    site.sized = False
    assert only(get(site.play("a", BODY))).path.read_bytes() == BODY
    site.cuts = [(5, "426 Broken off.")] * 3
    with pytest.raises(TryAgain, match="broke off after 5 bytes"):
        get(site.url("a"), refetch=True)


@pytest.mark.parametrize(
    "address",
    ["ftp://", "ftp:///a", "ftp://h", "ftp://h/", "ftp://h:x/a", "ftp://[h/a", "ftp://h/a?b", "ftp://h/a#b"],
)
def test_an_address_without_a_file_is_refused(get, address):
    with pytest.raises(UsageError) as caught:
        get(address)
    assert caught.value.code == "invalid-url"


def test_an_address_cannot_inject_commands(site, get):
    with pytest.raises(UsageError):
        get(site.url("a%0D%0ADELE%20a"))
    assert not [command for command in site.heard if "DELE" in command]
