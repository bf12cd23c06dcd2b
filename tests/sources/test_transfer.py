"""Interrupted transfers: resumed if the server supports this, otherwise restarted, never partial."""

import gzip
import resource
import zlib
from dataclasses import replace

import pytest
from fetch_steps import url_step
from web import Play

from backstory.errors import Failed, Refused, TryAgain
from backstory.sources import source

BODY = bytes(range(256)) * 40
WHOLE = Play(BODY, etag='"one"', modified="Wed, 21 Oct 2015 07:28:00 GMT", ranges=True)
CUT = replace(WHOLE, cut=4000)


def data(answer) -> bytes:
    [fetched] = answer.deliveries
    return fetched.path.read_bytes()


def ranges(web) -> list[str | None]:
    return [seen.headers["Range"] for seen in web.seen]


def test_a_broken_transfer_resumes_at_the_break(web, ask):
    progress = []
    address = web.play("/a", CUT, WHOLE)

    answer = ask(address, progress=lambda *it: progress.append(it))

    assert data(answer) == BODY
    assert web.statuses() == [200, 206]
    assert ranges(web) == [None, "bytes=4000-"]
    assert web.seen[1].headers["If-Range"] == '"one"'
    assert progress[-1] == ("Downloading data", len(BODY), len(BODY))


def test_a_resumed_transfer_may_break_too(web, ask):
    assert data(ask(web.play("/a", CUT, replace(CUT, cut=100), WHOLE))) == BODY
    assert ranges(web) == [None, "bytes=4000-", "bytes=4100-"]


def test_a_busy_server_does_not_interrupt_a_resume(web, ask):
    assert data(ask(web.play("/a", CUT, Play(b"", 503), WHOLE))) == BODY
    assert ranges(web) == [None, "bytes=4000-", "bytes=4000-"]


def test_a_resumed_transfer_keeps_the_first_metadata(web, ask):
    """The rest of a body need not repeat the first metadata (RFC 9110, 15.3.7)."""
    answer = ask(web.play("/a", CUT, replace(WHOLE, modified=None)))

    [fetched] = answer.deliveries
    assert fetched.event_time is not None


def test_a_file_changed_during_the_transfer_is_read_from_the_start(web, ask):
    other = replace(WHOLE, body=b"other" * 1000, etag='"two"')

    answer = ask(web.play("/a", CUT, other))

    [fetched] = answer.deliveries
    assert fetched.path.read_bytes() == other.body
    assert fetched.state.value == '"two"'
    assert web.statuses() == [200, 200]


@pytest.mark.parametrize(
    "part",
    [
        {"headers": (("Content-Range", "bytes 5-10/6"),)},
        {"headers": (("Content-Range", "bytes 4000-10239/10240"),), "etag": '"two"'},
        {},
    ],
)
def test_a_wrong_part_of_the_file_is_discarded(web, ask, part):
    wrong = Play(b"w" * 6240, 206, **part)

    assert data(ask(web.play("/a", CUT, wrong, WHOLE))) == BODY
    assert ranges(web) == [None, "bytes=4000-", None]


def test_a_short_remainder_is_resumed_again(web, ask):
    """The response is complete, but has fewer bytes than are missing."""
    some = Play(BODY[4000:6000], 206, headers=(("Content-Range", "bytes 4000-5999/10240"),))

    assert data(ask(web.play("/a", CUT, some, WHOLE))) == BODY
    assert ranges(web) == [None, "bytes=4000-", "bytes=6000-"]


def test_a_missing_range_restarts_the_transfer(web, ask):
    assert data(ask(web.play("/a", CUT, Play(b"", 416), WHOLE))) == BODY
    assert ranges(web) == [None, "bytes=4000-", None]


@pytest.mark.parametrize(
    "first",
    [
        replace(CUT, ranges=False),
        replace(CUT, etag='W/"weak"'),
        replace(CUT, etag=None),
        replace(CUT, chunked=True, ranges=False),
        replace(CUT, cut=0),
    ],
    ids=["no ranges", "weak tag", "no tag", "chunks", "nothing came"],
)
def test_a_transfer_that_cannot_resume_restarts(web, ask, first):
    assert data(ask(web.play("/a", first, replace(first, cut=None)))) == BODY
    assert ranges(web) == [None, None]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_transfer_that_always_breaks_leaves_no_files(web, ask, asking, chunked):
    address = web.play("/a", Play(BODY, cut=3000, chunked=chunked))

    with pytest.raises(TryAgain) as caught:
        ask(address)

    assert (caught.value.code, caught.value.exit_code) == ("broken-transfer", 75)
    assert "3,000 bytes" in caught.value.message
    assert list(asking.cache.iterdir()) == []


def test_a_file_deleted_during_the_transfer_fails(web, ask):
    with pytest.raises(Failed):
        ask(web.play("/a", CUT, Play(b"", 404)))


def test_an_empty_body_is_a_delivery(web, ask):
    assert data(ask(web.play("/a", Play(b"", etag='"one"')))) == b""


# Bodies by their content encoding.
STREAMS = {
    "gzip": gzip.compress(BODY),
    "gzip in two streams": gzip.compress(BODY[:700]) + gzip.compress(BODY[700:]),
    "gzip with padding": gzip.compress(BODY) + bytes(512),
    "deflate": zlib.compress(BODY),
    "deflate without header": zlib.compress(BODY, wbits=-zlib.MAX_WBITS),
    "gzip, deflate": zlib.compress(gzip.compress(BODY)),
}


class TestEncodings:
    """Compression is not requested, but a server may use it."""

    COMPRESSED = gzip.compress(BODY)
    GZIP = (("Content-Encoding", "gzip"),)

    def test_no_compression_is_requested(self, web, ask):
        ask(web.play("/a", WHOLE))

        assert web.seen[0].headers["Accept-Encoding"] == "identity"

    def test_a_compressed_transfer_is_unpacked(self, web, ask):
        assert data(ask(web.play("/a", Play(self.COMPRESSED, headers=self.GZIP)))) == BODY

    def test_a_transfer_that_unpacks_beyond_the_limit_is_refused(self, web, ask, asking):
        address = web.play("/a", Play(gzip.compress(bytes(1 << 22)), headers=self.GZIP))

        with pytest.raises(Refused, match="unpacks to more than 1,048,576 bytes"):
            ask(address, unpacked_limit=1 << 20)
        assert list(asking.cache.iterdir()) == []

    def test_a_broken_compressed_transfer_restarts(self, web, ask):
        play = Play(self.COMPRESSED, etag='"one"', ranges=True, headers=self.GZIP)

        assert data(ask(web.play("/a", replace(play, cut=50), play))) == BODY
        assert ranges(web) == [None, None]

    @pytest.mark.parametrize("name", STREAMS)
    def test_all_streams_of_a_compressed_body_are_decoded(self, web, ask, name):
        headers = (("Content-Encoding", name if "," in name else name.split()[0]),)

        assert data(ask(web.play("/a", Play(STREAMS[name], headers=headers)))) == BODY

    @pytest.mark.parametrize("name", STREAMS)
    def test_a_compressed_body_that_is_stored_in_part_is_a_broken_transfer(self, web, ask, name):
        """The server sends all of its bytes, so only the end of the compressed stream is missing."""
        headers = (("Content-Encoding", name if "," in name else name.split()[0]),)
        part = STREAMS[name].rstrip(b"\0")[:-6]

        with pytest.raises(TryAgain) as caught:
            ask(web.play("/a", Play(part, headers=headers)))
        assert caught.value.code == "broken-transfer"

    def test_a_compressed_file_stays_as_it_is(self, web, ask):
        assert data(ask(web.play("/a.csv.gz", Play(self.COMPRESSED, headers=self.GZIP)))) == self.COMPRESSED

    def test_an_unknown_content_encoding_fails(self, web, ask):
        with pytest.raises(Failed) as caught:
            ask(web.play("/a", Play(BODY, headers=(("Content-Encoding", "compress"),))))
        assert caught.value.code == "unsupported-encoding"

    def test_a_wrongly_declared_content_encoding_is_a_broken_transfer(self, web, ask):
        with pytest.raises(TryAgain) as caught:
            ask(web.play("/a", Play(BODY, headers=self.GZIP)))
        assert caught.value.code == "broken-transfer"


def test_a_full_disk_fails(web, ask, asking):
    """If the cache is full, a retry does not help."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
    try:
        with pytest.raises(Failed) as caught:
            ask(web.play("/a", WHOLE))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.code == "cache-unwritable"
    assert list(asking.cache.iterdir()) == []


def test_an_interrupted_transfer_leaves_no_files(web, ask, asking):
    def interrupt(_stage, done, _total):
        if done > 3000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask(web.play("/a", WHOLE), progress=interrupt)

    assert list(asking.cache.iterdir()) == []


def test_a_single_attempt_makes_one_request(web, ask, monkeypatch):
    monkeypatch.setattr(source, "ATTEMPTS", 1)
    with pytest.raises(TryAgain):
        ask(url_step(web.play("/a", CUT)))
    assert len(web.seen) == 1
