import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconrisk.core.errors import InvalidFile
from reconrisk.data.file_bytes import read_file_bytes


@given(st.binary(min_size=1).filter(lambda data: not data.startswith(b"\x1f\x8b")), st.booleans())
@settings(derandomize=True, deadline=None)
def test_bytes_come_back_whether_compressed_or_not(tmp_path_factory, data: bytes, compressed: bool) -> None:
    path = tmp_path_factory.mktemp("stored") / "file"
    path.write_bytes(gzip.compress(data) if compressed else data)
    assert read_file_bytes(path) == data


def test_gzip_is_told_by_content_not_name(tmp_path: Path) -> None:
    path = tmp_path / "plain.bin"
    path.write_bytes(gzip.compress(b"abc") + gzip.compress(b"def"))
    assert read_file_bytes(path) == b"abcdef"


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a", b"", "byte 0: Expected a data file, found an empty one"),
        ("a.gz", b"plain", "byte 0: Expected the gzip magic 1f 8b, found 70 6c"),
        ("a.gz", gzip.compress(b"", mtime=0), "byte 0 after decompression: Expected data, found none"),
        ("a.gz", gzip.compress(bytes(range(256)) * 9000, mtime=0)[:-9], "It is truncated or damaged"),
        ("a.gz", gzip.compress(b"abc", mtime=0)[:-8] + bytes(8), "CRC check failed"),
        ("a.gz", gzip.compress(b"abc", mtime=0) + b"trailing", "Not a gzipped file"),
    ],
)
def test_unusable_files_are_named_with_the_byte(tmp_path: Path, name: str, data: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(InvalidFile, match=message) as caught:
        read_file_bytes(path)
    assert caught.value.path == path
    assert path.read_bytes() == data


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="No such file"):
        read_file_bytes(tmp_path / "absent")
