"""A file's wrapping is removed exactly, or the file is refused (requirements 50 to 53)."""

import gzip
from typing import BinaryIO

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CBC
from delivered_cells import CANARY, KEY, NAME, a_file, checked, read, refusal, types

from backstory.errors import Refused
from backstory.formats.batch_file import BatchFile, Compression, Encoding
from backstory.formats.delivered import read_files
from backstory.testing.sender import AS_FIVETRAN, seal

IV = bytes(range(16))
WINDOW = 1 << 20
TEXT = f"id,v\n1,{CANARY}\n2,b\n".encode()
ROWS = [{"id": 1, "v": CANARY}, {"id": 2, "v": "b"}]
COLUMNS = {"id": "LONG", "v": "STRING"}
PLAIN = Encoding()
AES_OFF = Encoding(encrypted=True)
ZSTD = Encoding(compression=Compression.ZSTD)
GZIP = Encoding(compression=Compression.GZIP)


def enciphered(padded: bytes, key: bytes = KEY) -> bytes:
    """The IV and whole blocks in AES-256-CBC, with the caller's padding."""
    encryptor = Cipher(AES(key), CBC(IV)).encryptor()
    return IV + encryptor.update(padded) + encryptor.finalize()


def padded(content: bytes) -> bytes:
    size = 16 - len(content) % 16
    return content + bytes([size]) * size


def drained(stream: BinaryIO, step: int) -> bytes:
    return b"".join(iter(lambda: stream.read(step), b""))


def zstd(content: bytes) -> bytes:
    """A frame without a content size, as from a streaming writer."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("encrypted", [True, False])
def test_every_compression_and_encryption_is_removed(tmp_path, compression, encrypted):
    """50: AES or none around zstd, gzip or nothing returns the original text."""
    encoding = Encoding(compression=compression, encrypted=encrypted)
    file = seal(tmp_path, TEXT, encoding)
    [(_, rows)] = read_files([file], encoding, types(COLUMNS), frozenset(COLUMNS))
    assert ROWS == rows.values.to_pylist()


def test_bytes_that_openssl_wrote_are_read():
    """The file was made by `openssl enc -aes-256-cbc` with KEY and IV."""
    by_openssl = bytes.fromhex("c3cdbfef40e8ca0d44b83794ddbae2c1")
    assert [{"id": 1, "v": "a"}] == read(IV + by_openssl, COLUMNS, AES_OFF, key=KEY)


SIZES = [0, 1, 15, 16, 17, 31, 32, 33, WINDOW - 17, WINDOW - 16, WINDOW - 1, WINDOW, WINDOW + 1]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("last", [b"x", b"\0", b"\x01", b"\x10"])
def test_only_the_padding_is_removed(size, last):
    """51: Texts may have any size, and end in zeros or bytes like padding."""
    content = (b"y" * size + last * 20)[-size:] if size else b""
    with a_file(enciphered(padded(content)), KEY) as file, file.open(AES_OFF) as clear:
        assert content == drained(clear, WINDOW)


def test_a_clear_stream_can_be_read_whole():
    """`read()` returns the rest of the stream."""
    with a_file(enciphered(padded(TEXT)), KEY) as file, file.open(AES_OFF) as clear:
        assert TEXT == clear.read()


@pytest.mark.parametrize("step", [1, 7, 16, 1000])
def test_clear_bytes_may_be_read_in_pieces(step):
    """A reader that requests few bytes at a time gets all of them in order."""
    content = bytes(range(256)) * 4
    with a_file(enciphered(padded(content)), KEY) as file, file.open(AES_OFF) as clear:
        assert content == drained(clear, step)


def test_a_zstd_frame_needs_no_content_size():
    """50: Frames with and without a content size are read alike."""
    sized, unsized = pa.compress(TEXT, "zstd", asbytes=True), zstd(TEXT)
    assert (True, False) == (bool(sized[4] & 0xE0), bool(unsized[4] & 0xE0))
    assert ROWS == read(sized, COLUMNS, ZSTD) == read(unsized, COLUMNS, ZSTD)


@pytest.mark.parametrize(("pack", "encoding"), [(zstd, ZSTD), (gzip.compress, GZIP)])
def test_several_frames_are_read_as_one_file(pack, encoding):
    """50: A frame may end within a line, or be empty."""
    content = pack(TEXT[:9]) + pack(b"") + pack(TEXT[9:12]) + pack(TEXT[12:])
    assert ROWS == read(content, COLUMNS, encoding)


@pytest.mark.parametrize("encoding", [PLAIN, ZSTD, GZIP, AES_OFF, AS_FIVETRAN])
def test_an_empty_file_has_no_rows(encoding):
    """61: This holds for any declared wrapping."""
    assert [] == read(b"", COLUMNS, encoding, key=KEY)


@pytest.mark.parametrize(("pack", "encoding"), [(zstd, ZSTD), (gzip.compress, GZIP)])
def test_a_cut_frame_is_refused_wherever_it_was_cut(pack, encoding):
    """52: No prefix of a compressed file is accepted."""
    whole = pack(TEXT)
    for size in range(1, len(whole)):
        refusal(whole[:size], COLUMNS, encoding)


def test_a_cut_ciphertext_is_refused_wherever_it_was_cut():
    """52: No prefix of an encrypted file is accepted, even at block boundaries."""
    whole = enciphered(padded(TEXT * 2))
    for size in range(1, len(whole)):
        refusal(whole[:size], COLUMNS, AES_OFF, key=KEY)


@pytest.mark.parametrize("encoding", [AES_OFF, AS_FIVETRAN])
def test_the_key_of_another_file_is_refused(encoding):
    """52: A wrong key is an error without rows."""
    content = enciphered(padded(TEXT if encoding is AES_OFF else zstd(TEXT)), bytes(32))
    refusal(content, COLUMNS, encoding, key=KEY)


@pytest.mark.parametrize("size", [0, 1, 16, 24, 31, 33, 64])
def test_a_key_is_32_bytes(size):
    """52: AES-128 and AES-192 are not part of the contract."""
    refusal(enciphered(padded(TEXT)), COLUMNS, AES_OFF, key=(KEY * 2)[:size])


def test_an_encrypted_file_without_a_key_is_refused():
    """52: The request has no key for the file."""
    assert "no key" in refusal(enciphered(padded(TEXT)), COLUMNS, AES_OFF)


def test_a_clear_file_needs_no_key():
    """3.1: With NONE, a key is not required, and is ignored."""
    assert ROWS == read(TEXT, COLUMNS, PLAIN) == read(TEXT, COLUMNS, PLAIN, key=KEY)


@pytest.mark.parametrize("pad", [b"\0" * 16, b"\x11" * 16, b"\x02\x03\x02\x03", b"x" * 16, b"\x01\x02"])
def test_padding_must_be_pkcs7(pad):
    """52: Zeros, a count beyond a block and different bytes are not padding."""
    content = (b"id,v\n1,2\n" + b"\n" * 64)[: 64 - len(pad)] + pad
    refusal(enciphered(content), COLUMNS, AES_OFF, key=KEY)


@pytest.mark.parametrize("encoding", [ZSTD, GZIP, AS_FIVETRAN])
def test_text_that_is_not_compressed_is_refused(encoding):
    """52: The request declares the compression, and the reader does not guess."""
    content = enciphered(padded(TEXT)) if encoding.encrypted else TEXT
    refusal(content, COLUMNS, encoding, key=KEY)


@pytest.mark.parametrize(
    "content", [zstd(TEXT), gzip.compress(TEXT, mtime=0), bytes(200_000), b"x" * 200_000]
)
def test_bytes_that_are_not_text_are_refused(content):
    """52: Compressed or endless bytes in place of text give a short error."""
    refusal(content, COLUMNS, PLAIN)


@pytest.mark.parametrize("rest", [b"more", b"\0" * 8, TEXT])
def test_bytes_after_the_last_frame_are_refused(rest):
    """52: Bytes after a frame are another frame or an error."""
    refusal(zstd(TEXT) + rest, COLUMNS, ZSTD)


@pytest.mark.parametrize("encoding", [PLAIN, AS_FIVETRAN])
def test_a_missing_file_is_refused(tmp_path, encoding):
    """52: The error contains the file's name but not its folder, for reads and digests."""
    file = BatchFile(tmp_path / "folder-canary" / NAME, KEY)
    with pytest.raises(Refused) as when_read:
        read_files([file], encoding, types(COLUMNS), frozenset(COLUMNS))
    with pytest.raises(Refused) as when_digested:
        file.digest()
    assert checked(str(when_read.value))
    assert checked(str(when_digested.value))


def test_a_folder_in_place_of_a_file_is_refused(tmp_path):
    """52: A folder is an error like a missing file."""
    (tmp_path / NAME).mkdir()
    with pytest.raises(Refused) as caught:
        read_files([BatchFile(tmp_path / NAME)], PLAIN, types(COLUMNS), frozenset(COLUMNS))
    checked(str(caught.value))


def test_files_have_their_own_keys_and_keep_their_order(tmp_path):
    """53: Each file of a request has its own key, and files without rows are omitted."""
    texts = [f"id,v\n{n},x\n" for n in range(5)]
    texts[2] = "id,v\n"
    files = [seal(tmp_path, text.encode(), AS_FIVETRAN) for text in texts]
    parts = read_files(files, AS_FIVETRAN, types(COLUMNS), frozenset(COLUMNS))
    assert [files[n] for n in (0, 1, 3, 4)] == [file for file, _ in parts]
    assert [0, 1, 3, 4] == [rows.values["id"][0].as_py() for _, rows in parts]


def test_the_error_reports_the_first_bad_file(tmp_path):
    """A request with several invalid files always gives the same error."""
    for name, text in (("a.csv", b"id\n" + b"1\n" * 300_000 + b"x\n"), ("b.csv", b"id\nx\n")):
        (tmp_path / name).write_bytes(text)
    files = [BatchFile(tmp_path / name) for name in ("a.csv", "b.csv", "none.csv")]
    with pytest.raises(Refused, match=r"^a\.csv, line 300002"):
        read_files(files, PLAIN, types({"id": "LONG"}), frozenset({"id"}))


def test_the_representation_of_a_file_hides_its_key():
    """The `repr` of a file, and so logs and tracebacks, contain no key."""
    with a_file(b"", KEY) as file:
        assert KEY.decode() not in repr(file)
