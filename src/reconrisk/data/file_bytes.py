"""Bytes of a file on disk, decompressed if it is gzip, with errors that name the place."""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path

from reconrisk.core.errors import InvalidFile

GZIP_MAGIC = b"\x1f\x8b"
_CHUNK = 1 << 20  # bytes; the position in an error is known to a chunk


def read_file_bytes(path: Path) -> bytes:
    """Read a whole file, decompressed if its first bytes are those of gzip, regardless of its name.

    Args:
        path: Path of the file.

    Returns:
        The bytes, at least one.

    Raises:
        InvalidFile: If the file cannot be read, is empty, is damaged gzip, or ends with ``.gz`` without being gzip.

    Guarantee: memory follows the bytes that are present, never the size that a header claims.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InvalidFile(
            path, "byte 0", f"Expected a readable file: {error.strerror}.", "Check the path and its permissions."
        ) from error
    if not raw:
        raise InvalidFile(path, "byte 0", "Expected a data file, found an empty one.", "Download or write it again.")
    if raw.startswith(GZIP_MAGIC):
        return _gunzip(path, raw)
    if path.suffix == ".gz":
        raise InvalidFile(
            path,
            "byte 0",
            f"Expected the gzip magic {GZIP_MAGIC.hex(' ')}, found {raw[:2].hex(' ')}.",
            "Remove .gz from its name if it is not compressed, else download it again.",
        )
    return raw


def _gunzip(path: Path, raw: bytes) -> bytes:
    """Decompress in chunks, so that an error can name the position."""
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
            f"Expected gzip data up to its end mark: {error}.",
            "It is truncated or damaged: download it again.",
        ) from error
    if not chunks:
        raise InvalidFile(
            path, "byte 0 after decompression", "Expected data, found none.", "Download or write it again."
        )
    return b"".join(chunks)
