"""TLS and mutual TLS: accepted clients, and errors for wrong files."""

from datetime import UTC, datetime, timedelta

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from destination import serving, status

from backstory.doors.fivetran.options import ServeRequest
from backstory.doors.fivetran.server import credentials_of
from backstory.doors.fivetran.wire import destination_sdk_pb2 as sdk
from backstory.doors.fivetran.wire.destination_sdk_pb2_grpc import DestinationConnectorStub
from backstory.errors import UsageError


def name(text):
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def issue(folder, subject, issuer=None):
    """A certificate and its key as PEM files, signed by this authority or self-signed."""
    key = ec.generate_private_key(ec.SECP256R1())
    by, by_key = issuer or (name(subject), key)
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name(subject))
        .issuer_name(by)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .sign(by_key, hashes.SHA256())
    )
    paths = folder / f"{subject}.pem", folder / f"{subject}.key"
    paths[0].write_bytes(certificate.public_bytes(Encoding.PEM))
    paths[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return paths, (name(subject), key)


def credentials(cert, key, client_ca):
    """The credentials of a server with these files."""
    return credentials_of(ServeRequest(tls_cert=cert, tls_key=key, tls_client_ca=client_ca))


@pytest.fixture
def files(tmp_path):
    """PEM files by name: an authority, its server and client, and a stranger."""
    authority, issuer = issue(tmp_path, "authority")
    return {
        "authority": authority,
        "server": issue(tmp_path, "server", issuer)[0],
        "client": issue(tmp_path, "client", issuer)[0],
        "stranger": issue(tmp_path, "stranger")[0],
    }


def answers(address, files, client=None):
    """Whether a client with this certificate, which trusts the authority, gets an answer."""
    roots = files["authority"][0].read_bytes()
    chain, key = (path.read_bytes() for path in files[client]) if client else (None, None)
    trust = grpc.ssl_channel_credentials(roots, key, chain)
    with grpc.secure_channel(address.replace("127.0.0.1", "localhost"), trust) as channel:
        stub = DestinationConnectorStub(channel)
        return (
            status(lambda request: stub.Capabilities(request, timeout=60), sdk.CapabilitiesRequest()) is None
        )


def test_a_client_that_trusts_the_authority_is_served(store, files):
    """A client that trusts the authority is served. An unencrypted client is not."""
    with serving({"backstory": store}, tls=credentials(*files["server"], None)) as address:
        assert answers(address, files)
        with grpc.insecure_channel(address) as channel:
            clear = DestinationConnectorStub(channel)
            assert status(lambda r: clear.Capabilities(r, timeout=3), sdk.CapabilitiesRequest())


def test_only_clients_of_the_authority_are_served(store, files):
    """Mutual TLS: A client without a certificate, or with a stranger's, is not served."""
    tls = credentials(*files["server"], files["authority"][0])
    with serving({"backstory": store}, tls=tls) as address:
        assert answers(address, files, "client")
        assert not answers(address, files)
        assert not answers(address, files, "stranger")


def test_tls_is_off_without_files():
    assert credentials(None, None, None) is None


def test_invalid_tls_files_are_refused(files, tmp_path):
    """Half a pair, a missing file, a file that is not PEM, and the key of another certificate are reported."""
    (server, key), (_, other) = files["server"], files["client"]
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("nothing")
    for arguments, code in [
        ((server, None, None), "half-tls"),
        ((None, key, None), "half-tls"),
        ((None, None, server), "half-tls"),
        ((tmp_path / "missing", key, None), "no-tls-file"),
        ((server, key, ""), "no-tls-file"),
        ((nothing, key, None), "broken-tls"),
        ((server, nothing, None), "broken-tls"),
        ((server, other, None), "broken-tls"),
        ((server, key, nothing), "broken-tls"),
    ]:
        with pytest.raises(UsageError) as caught:
            credentials(*arguments)
        assert caught.value.code == code
