"""Bytes of a file on disk, with gzip undone, and errors that name the place."""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path

from reconrisk.core.errors import InvalidFile

GZIP_MAGIC = b"\x1f\x8b"
_CHUNK = 1 << 20


def stored_bytes(path: Path) -> bytes:
    """Everything in the file, decompressed if it is gzip by its first bytes, whatever its name.

    Guarantee: memory follows what is really there, never what a header claims.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InvalidFile(
            path, "byte 0", f"Expected a readable file, {error.strerror}.", "Check path and rights."
        ) from error
    if not raw:
        raise InvalidFile(path, "byte 0", "Expected a data file, found an empty one.", "Fetch or write it again.")
    if raw.startswith(GZIP_MAGIC):
        return _gunzipped(path, raw)
    if path.suffix == ".gz":
        raise InvalidFile(
            path,
            "byte 0",
            f"Expected the gzip magic {GZIP_MAGIC.hex(' ')}, found {raw[:2].hex(' ')}.",
            "Drop .gz from its name if it is not compressed, else fetch it again.",
        )
    return raw


def _gunzipped(path: Path, raw: bytes) -> bytes:
    chunks: list[bytes] = []
    try:
        with gzip.open(io.BytesIO(raw)) as stream:
            while chunk := stream.read(_CHUNK):
                chunks.append(chunk)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        done = sum(len(chunk) for chunk in chunks)
        raise InvalidFile(
            path,
            f"byte {done} after decompression",
            f"Expected gzip data to its end mark, {error}.",
            "It is truncated or damaged: fetch it again.",
        ) from error
    if not chunks:
        raise InvalidFile(path, "byte 0 after decompression", "Expected data, found none.", "Fetch or write it again.")
    return b"".join(chunks)
