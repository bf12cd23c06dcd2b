"""The properties by which Iceberg's Java reaches S3, as Arrow's file system takes them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

S3_SCHEMES: Final = frozenset({"s3", "s3a", "s3n"})
# What files are read with; the secrets among them are named in no representation.
_KEYS: Final = ("s3.access-key-id", "s3.secret-access-key", "s3.session-token")
_ENDPOINT, _PATH_STYLE, _REGION = "s3.endpoint", "s3.path-style-access", "client.region"
# Only a key that is not ours to send makes an object's bytes other ones.
_OWN_KEY: Final = ("s3.sse.type", "custom")
# What changes how files are written, or how fast they are read, and never what is in them.
_READS_ALIKE: Final = (
    "client.refresh-credentials",
    "http-client.apache.",
    "http-client.type",
    "http-client.urlconnection.",
    "s3.acl",
    "s3.analytics-accelerator.",
    "s3.checksum-enabled",
    "s3.crt.",
    "s3.delete",
    "s3.multipart.",
    "s3.preload-client-enabled",
    "s3.retry.",
    "s3.session-token-expires-at-ms",
    "s3.sse.",
    "s3.staging-dir",
    "s3.write.",
)
_OFF: Final = frozenset(
    {
        "s3.acceleration-enabled",
        "s3.access-grants.enabled",
        "s3.dualstack-enabled",
        "s3.remote-signing-enabled",
    }
)
_OF_S3: Final = ("client.", "http-client.", "s3.")
_AMAZON: Final = "s3.amazonaws.com"
# Seconds; what does not answer by then is left to Spark, which asks more patiently.
_CONNECTING: Final = 5.0
_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class S3Options:
    """Where S3 is, and who asks it; without keys Arrow finds them where Amazon's programs do."""

    endpoint: str | None
    path_style: bool
    region: str | None
    keys: tuple[str | None, str | None, str | None] = field(repr=False)

    def file_system(self) -> "FileSystem":
        """The file system whose files are named BUCKET/KEY."""
        from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem

        access, secret, token = self.keys
        parts = urlsplit(self.endpoint or "")
        there = {"endpoint_override": parts.netloc, "scheme": parts.scheme} if parts.netloc else {}
        host = parts.hostname or _AMAZON
        # As Java does it: a way out that the environment names is the only one.
        proxy = None if proxy_bypass(host) else getproxies().get(parts.scheme or "https")
        return S3FileSystem(
            access_key=access,
            secret_key=secret,
            session_token=token,
            region=self.region or ("us-east-1" if there else None),
            connect_timeout=_CONNECTING,
            retry_strategy=AwsStandardS3RetryStrategy(max_attempts=_TRIES),
            force_virtual_addressing=bool(there) and not self.path_style and not _is_address(parts.hostname),
            proxy_options=proxy,
            **there,
        )


def s3_options(told: Mapping[str, str]) -> S3Options | None:
    """The options that a FileIO's properties tell; None where one of them has no counterpart here."""
    if any(_has_no_counterpart(name, value) for name, value in told.items()):
        return None
    endpoint = told.get(_ENDPOINT)
    parts = urlsplit(endpoint or "")
    if endpoint and (parts.scheme not in {"http", "https"} or parts.path.strip("/") or not parts.netloc):
        return None
    access, secret, token = (told.get(name) for name in _KEYS)
    if (access is None) != (secret is None) or (token is not None and access is None):
        return None
    path_style = told.get(_PATH_STYLE, "").lower() == "true"
    return S3Options(endpoint or None, path_style, told.get(_REGION), (access, secret, token))


def _has_no_counterpart(name: str, value: str) -> bool:
    if (name, value.lower()) == _OWN_KEY:
        return True
    if not name.startswith(_OF_S3) or name in {*_KEYS, _ENDPOINT, _PATH_STYLE, _REGION}:
        return False
    if name in _OFF:
        return value.lower() != "false"
    return not name.startswith(_READS_ALIKE)


def _is_address(host: str | None) -> bool:
    """Whether a host is an address: no bucket can stand before it."""
    try:
        ip_address(host or "")
    except ValueError:
        return False
    return True
