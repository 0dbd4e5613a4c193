import stat

import pytest

from reconrisk.core.storage.files import write_atomically


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "old.txt"
    path.write_text("old")

    def fail(temporary):
        temporary.write_text("half")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_atomically(path, fail)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("secret", "mode"), [(True, 0o600), (False, 0o644)])
def test_folders_are_made_and_secrets_are_their_owners_alone(tmp_path, secret, mode):
    path = write_atomically(tmp_path / "new" / "file.txt", lambda temporary: temporary.write_text("x"), secret=secret)
    assert path.read_text() == "x"
    assert stat.S_IMODE(path.stat().st_mode) == mode
