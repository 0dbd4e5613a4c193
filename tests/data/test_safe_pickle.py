import contextlib
import os
import pickle
import struct
import tracemalloc
from pathlib import Path

import pytest

from reconrisk.core.errors import InvalidFile
from reconrisk.data.safe_pickle import read_pickled_entries

HERE = Path("batch")


class Shell:
    def __reduce__(self):
        return os.system, ("echo unsafe > executed",)


class Opened:
    def __reduce__(self):
        return open, ("executed", "w")


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize(
    ("hostile", "name"), [(Shell(), rf"the global {os.name}\.system"), (Opened(), r"the global _?io\.open")]
)
def test_a_global_is_named_and_never_called(tmp_path: Path, monkeypatch, protocol: int, hostile, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps({"data": hostile, "labels": []}, protocol=protocol)
    with pytest.raises(InvalidFile, match=f"arrays of bytes, found {name}.*Do not open it with pickle"):
        read_pickled_entries(data, HERE, ("data", "labels"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x80\x02cnumpy\nndarray\n(tR.", "arrays of bytes, found a call of numpy ndarray"),
        (b"\x80\x02U\x01aU\x01bR.", "arrays of bytes, found a call of str"),
        (b"\x80\x02]}b.", "arrays of bytes, found a state for list"),
        (b"\x80\x02c_codecs\nencode\nU\x01aU\x04zlib\x86R.", "arrays of bytes, found the encoding 'zlib'"),
        (b"\x80\x02Pfile\n.", "arrays of bytes, found the opcode PERSID"),
        (b"\x80\x02\x82\x01.", "arrays of bytes, found the opcode EXT1"),
        (b"\x80\x05\x97.", "arrays of bytes, found the opcode NEXT_BUFFER"),
        (b"\x80\x02(iposix\nsystem\n.", "arrays of bytes, found the opcode INST"),
    ],
)
def test_opcodes_beyond_data_are_refused(data: bytes, message: str) -> None:
    with pytest.raises(InvalidFile, match=message):
        read_pickled_entries(data, HERE, ())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x80\x02}", "pickle exhausted before seeing STOP"),
        (b"\x80\x02].", "a list instead of a dictionary"),
        (b"\x80\x02e.", "byte 2"),
        (b"\x80\x02}K\x01K\x02s.", "a key that is not text"),
        (b"\x80\x02}(U\x01au.", "a key without value"),
        (b"\x80\x02}}.", "too many values to unpack"),
        (b"\x80\x02h\x07.", "byte 2"),
    ],
)
def test_what_is_no_dictionary_is_refused_with_the_byte(data: bytes, message: str) -> None:
    with pytest.raises(InvalidFile, match=message):
        read_pickled_entries(data, HERE, ())


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02}r\xff\xff\xff\xff.",
        b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b"x.",
        b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"x.",
        b"\x80\x04\x95" + struct.pack("<Q", 2**40) + b"}.",
    ],
    ids=["memo index", "bytearray", "bytes", "frame"],
)
def test_claims_of_size_allocate_nothing(data: bytes) -> None:
    tracemalloc.start()
    try:
        with contextlib.suppress(InvalidFile):
            assert read_pickled_entries(data, HERE, ()) == {}
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_only_the_keys_asked_for_come_back() -> None:
    data = pickle.dumps({"a": [1, 2.5, None, True, (3,)], b"b": b"bytes", "c": 0}, protocol=4)
    assert read_pickled_entries(data, HERE, ("a", "b")) == {"a": [1, 2.5, None, True, (3,)], "b": b"bytes"}
