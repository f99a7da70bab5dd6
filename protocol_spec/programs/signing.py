"""Signatures of manifests: Ed25519 by the library `cryptography`, loaded only to sign or verify.

Nothing else needs the library: neither a running agent nor a running collector loads it.
"""

from __future__ import annotations

from types import ModuleType

from protocol_spec.messages import signed_bytes


class NoSignatures(ImportError):
    """The library that makes and checks signatures is not installed."""


def new_secret() -> bytes:
    """A new operator's secret key, 32 random bytes of the operating system."""
    return bytes(_ed25519().Ed25519PrivateKey.generate().private_bytes_raw())


def public_key(secret: bytes) -> bytes:
    """The key that manifests and owners name an operator by."""
    private = _ed25519().Ed25519PrivateKey.from_private_bytes(secret)
    return bytes(private.public_key().public_bytes_raw())


def sign(secret: bytes, digest: bytes) -> bytes:
    """An operator's signature of a manifest."""
    private = _ed25519().Ed25519PrivateKey.from_private_bytes(secret)
    return bytes(private.sign(signed_bytes(digest)))


def is_signed_by(operator: bytes, digest: bytes, signature: bytes) -> bool:
    """Whether an operator signed a manifest. Raises `NoSignatures` without the library."""
    ed25519 = _ed25519()
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 - it is there

    try:
        ed25519.Ed25519PublicKey.from_public_bytes(operator).verify(signature, signed_bytes(digest))
    except (InvalidSignature, ValueError):
        return False
    return True


def _ed25519() -> ModuleType:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415 - see above
    except ImportError:
        raise NoSignatures("the Python package `cryptography` is not installed") from None
    return ed25519
