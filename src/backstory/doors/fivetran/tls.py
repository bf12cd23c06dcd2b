"""The server's certificate, and whose clients it trusts."""

from pathlib import Path

import grpc
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import load_pem_x509_certificates

from backstory.errors import UsageError


def credentials(cert: Path | None, key: Path | None, client_ca: Path | None) -> grpc.ServerCredentials | None:
    """TLS with this certificate (a chain in PEM) and key; None without either.

    With `client_ca` only clients with a certificate of that authority are served. Raises UsageError
    for one without the other, and for files that are none or do not belong together.
    """
    if cert is None and key is None and client_ca is None:
        return None
    if cert is None or key is None:
        raise UsageError(
            "half-tls", "TLS needs a certificate and its key.", "Set both `tls_cert=FILE` and `tls_key=FILE`."
        )
    chain, secret = _read(cert), _read(key)
    try:
        certificate = load_pem_x509_certificates(chain)[0]
        own = load_pem_private_key(secret, None).public_key()
    except (ValueError, TypeError):
        raise UsageError(
            "broken-tls",
            f"{cert.name} is not a certificate in PEM, or {key.name} is not an unencrypted private key in "
            "PEM.",
            "Name the right files.",
        ) from None
    if certificate.public_key() != own:
        raise UsageError(
            "broken-tls", f"{key.name} is not the key of {cert.name}.", "Name the key that belongs to it."
        )
    authority = _authority(client_ca) if client_ca else None
    return grpc.ssl_server_credentials([(secret, chain)], authority, authority is not None)


def _authority(path: Path) -> bytes:
    content = _read(path)
    try:
        load_pem_x509_certificates(content)
    except ValueError:
        raise UsageError(
            "broken-tls", f"{path.name} holds no certificate in PEM.", "Name the authority's certificate."
        ) from None
    return content


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        raise UsageError(
            "no-tls-file", f"The file {path} cannot be read.", "Name an existing file."
        ) from None
