"""Machine code on disk: whose folder it may be in, and what damage does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import native
import pytest
from cuda_fakes import Fakes

from pai_torchacc.cuda_kernels import cache

ONE = """
cuda_kernels.install(c)
want("log_softmax")
tell()
"""


@pytest.fixture(scope="module")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Fakes:
    return Fakes(tmp_path_factory.mktemp("fakes"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "kernels"
    monkeypatch.setenv("PTAC_KERNEL_CACHE", str(path))
    return path


def origin(fakes: Fakes, folder: Path, **environment: str) -> str:
    found = fakes.run(ONE, PTAC_KERNEL_CACHE=str(folder), **environment)
    entry = found["units"]["log_softmax"]
    assert entry["state"] == "ready"
    assert found["compiled"] == (0 if entry["from"] == "cache" else 1)
    assert found.get("cache") is None
    return entry["from"].partition(" ")[0]


def test_the_next_process_compiles_nothing(fakes: Fakes, folder: Path) -> None:
    assert origin(fakes, folder) == "compiled"
    assert origin(fakes, folder) == "cache"
    [file] = folder.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert file.stat().st_mode & 0o777 == 0o600


def test_what_code_depends_on_is_in_the_key(
    fakes: Fakes, folder: Path, tmp_path: Path
) -> None:
    assert origin(fakes, folder) == "compiled"
    assert origin(fakes, folder, FAKE_CUDA_CAPABILITIES="80") == "compiled"
    other = {"FAKE_CUDA_VERSION": "12080", "FAKE_NVRTC_VERSION": "12"}
    assert origin(fakes, folder, **other) == "compiled"
    for key in ("log_softmax.cu", "cuda/kernel.h"):  # the source, or a header of it
        kernels = tmp_path / Path(key).name
        kernels.mkdir()
        content = json.loads((fakes.kernels() / "kernels.json").read_text())
        [name] = [n for n in content["texts"] if n.endswith(key)]
        content["texts"][name] += "\n/* changed */\n"
        (kernels / "kernels.json").write_text(json.dumps(content))
        found = fakes.run(ONE, kernels=kernels, PTAC_KERNEL_CACHE=str(folder))
        assert found["compiled"] == 1, key
    assert origin(fakes, folder) == "cache"


@pytest.mark.parametrize("damage", ["empty", "cut", "bit", "foreign"])
def test_damaged_code_is_made_again(fakes: Fakes, folder: Path, damage: str) -> None:
    assert origin(fakes, folder) == "compiled"
    [file] = folder.iterdir()
    content = file.read_bytes()
    damaged = {
        "empty": b"",
        "cut": content[:-1],
        "bit": content[:-1] + bytes([content[-1] ^ 1]),
        "foreign": b"\x7fELF" + content,
    }
    file.write_bytes(damaged[damage])
    assert origin(fakes, folder) == "compiled"
    assert file.read_bytes() == content
    assert origin(fakes, folder) == "cache"


def test_code_that_does_not_load_is_made_again(fakes: Fakes, folder: Path) -> None:
    assert origin(fakes, folder) == "compiled"
    [file] = folder.iterdir()
    cache.write(file.name, b"whole, but no machine code")
    assert origin(fakes, folder) == "compiled"
    assert origin(fakes, folder) == "cache"


def uncached(fakes: Fakes, folder: Path, *, is_root: bool = True) -> str:
    found = fakes.run(ONE, PTAC_KERNEL_CACHE=str(folder))
    entry = found["units"]["log_softmax"]
    assert (entry["state"], found["compiled"]) == ("ready", 1)
    return found["cache"]


def test_a_folder_that_others_may_write_is_not_used(fakes: Fakes, folder: Path) -> None:
    assert origin(fakes, folder) == "compiled"
    for mode in (0o770, 0o707):
        folder.chmod(mode)
        assert "others may write there" in uncached(fakes, folder)


def test_a_file_that_others_may_write_is_not_used(fakes: Fakes, folder: Path) -> None:
    assert origin(fakes, folder) == "compiled"
    [file] = folder.iterdir()
    file.chmod(0o666)
    assert origin(fakes, folder) == "compiled"
    assert file.stat().st_mode & 0o777 == 0o600


def test_links_are_not_followed(fakes: Fakes, folder: Path, tmp_path: Path) -> None:
    assert origin(fakes, folder) == "compiled"
    [file] = folder.iterdir()
    elsewhere = tmp_path / "elsewhere"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    assert origin(fakes, folder) == "compiled"
    link = tmp_path / "link"
    link.symlink_to(folder)
    assert str(link) in uncached(fakes, link)


def test_no_folder_can_be_made(fakes: Fakes, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert "Not a directory" in uncached(fakes, file / "kernels")


def test_a_read_only_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the tests are root's, whom modes do not stop."""
    real = os.open

    def read_only(path: str, flags: int, *rest: int, **more: int) -> int:
        if flags & os.O_CREAT:
            raise OSError(30, "Read-only file system")
        return real(path, flags, *rest, **more)

    assert cache.read("some.code") is None
    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(cache.Unusable, match="Read-only file system"):
        cache.write("some.code", b"code")
    assert list(folder.iterdir()) == []


def test_a_foreign_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.write("some.code", b"code")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(cache.Unusable, match="belongs to others"):
        cache.read("some.code")


def test_a_full_disk_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    with pytest.raises(cache.Unusable, match="No space left"):
        cache.write("some.code", b"code")
    assert list(folder.iterdir()) == []


def test_the_folder_has_a_bound(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "MOST_BYTES", 1000)
    for i in range(8):
        cache.write(f"{i}.code", bytes(200))
        os.utime(folder / f"{i}.code", (i, i))
    (folder / "notes.txt").write_bytes(bytes(5000))  # not ours, and not counted
    assert cache.read("5.code") == bytes(200)  # used: the last to go
    cache.write("8.code", bytes(200))
    left = {p.name for p in folder.iterdir()} - {"notes.txt"}
    assert left == {"5.code", "7.code", "8.code"}


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PTAC_KERNEL_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.folder() == tmp_path / "pai_torchacc" / "kernels"
    monkeypatch.setenv("HOME", "/home/somebody")
    for value in ("", "relative/path"):  # the latter is to be ignored, says XDG
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        expected = Path("/home/somebody/.cache/pai_torchacc/kernels")
        assert cache.folder() == expected
    monkeypatch.setenv("PTAC_KERNEL_CACHE", "0")
    with pytest.raises(cache.Unusable, match="switched off by PTAC_KERNEL_CACHE"):
        cache.folder()


WRITE = """
import sys
from pai_torchacc.cuda_kernels import cache
for i in range(200):
    cache.write("same.code", sys.argv[1].encode() * 1000)
    assert cache.read("same.code") in (b"a" * 1000, b"b" * 1000)
"""


def test_two_processes_at_once(folder: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITE, letter], cwd=native.ROOT)
        for letter in "ab"
    ]
    assert [w.wait(120) for w in writers] == [0, 0]
    assert [p.name for p in folder.iterdir()] == ["same.code"]
