"""Archives are unpacked into their folder and nowhere else."""

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from bespokefl.core.errors import InputError
from bespokefl.data.readers import archive, files


def write_tar(path: Path, *members: tuple[str, bytes | str | None], mode: str = "w:gz") -> None:
    """Bytes: a file; text: a link to that; None: a device."""
    with tarfile.open(path, mode) as made:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                member.size = len(content)
                made.addfile(member, io.BytesIO(content))
            else:
                member.type = tarfile.FIFOTYPE if content is None else tarfile.SYMTYPE
                member.linkname = content or ""
                made.addfile(member)


def write_zip(path: Path, *members: tuple[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in members:
            made.writestr(name, content)


@pytest.mark.parametrize("name", ["a.tgz", "a.tar.gz", "a.tar", "a.tar.xz", "a.zip"])
def test_files_come_out(tmp_path: Path, name: str) -> None:
    members = (("package/data/x", b"one"), ("y", b"two"))
    if name.endswith("zip"):
        write_zip(tmp_path / name, *members)
    else:
        write_tar(tmp_path / name, *members, mode="w:xz" if name.endswith("xz") else "w" if name == "a.tar" else "w:gz")
    assert archive.is_archive(tmp_path / name)
    archive.unpack(tmp_path / name, tmp_path / "out")
    assert (tmp_path / "out" / "package" / "data" / "x").read_bytes() == b"one"
    assert (tmp_path / "out" / "y").read_bytes() == b"two"


def test_what_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"")
    (tmp_path / "folder.zip").mkdir()
    assert not archive.is_archive(tmp_path / "a.npz")
    assert not archive.is_archive(tmp_path / "folder.zip")
    assert not archive.is_archive(tmp_path / "none.tgz")


@pytest.mark.parametrize("name", ["../evil", "/tmp/bespoke-evil", "a/../../evil", "..\\evil", "c:\\evil"])
@pytest.mark.parametrize("write", [write_tar, write_zip])
def test_paths_outside_the_folder(tmp_path: Path, name: str, write: object) -> None:
    path = tmp_path / ("a.zip" if write is write_zip else "a.tgz")
    write(path, (name, b"evil"))
    with pytest.raises(InputError, match="has a path outside its directory"):
        archive.unpack(path, tmp_path / "out")
    assert not list(tmp_path.rglob("*evil*"))
    assert not Path("/tmp/bespoke-evil").exists()


@pytest.mark.parametrize("target", ["/etc", "..", None])
def test_links_and_devices(tmp_path: Path, target: str | None) -> None:
    write_tar(tmp_path / "a.tgz", ("link", target), ("link/evil", b"evil"))
    with pytest.raises(InputError, match="'link' in it is not a regular file"):
        archive.unpack(tmp_path / "a.tgz", tmp_path / "out")
    entry = zipfile.ZipInfo("link")
    entry.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as made:
        made.writestr(entry, "/etc")
    with pytest.raises(InputError, match="'link' in it is not a regular file"):
        archive.unpack(tmp_path / "a.zip", tmp_path / "out")


def test_the_same_name_twice(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tgz", ("x", b"one"), ("x", b"two"))
    with pytest.raises(InputError, match="exists"):
        archive.unpack(tmp_path / "a.tgz", tmp_path / "out")


@pytest.mark.parametrize("write", [write_tar, write_zip])
def test_bombs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: object) -> None:
    path = tmp_path / ("a.zip" if write is write_zip else "a.tgz")
    write(path, ("x", bytes(600)), ("y", bytes(600)))
    monkeypatch.setattr(files, "LIMIT", 1000)
    with pytest.raises(InputError, match="unpacks to more than 1,000 bytes"):
        archive.unpack(path, tmp_path / "out")
    monkeypatch.setenv(files.LIMIT_VARIABLE, "2000")  # it can be raised
    archive.unpack(path, tmp_path / "out1")
    monkeypatch.setattr(archive, "MAX_FILES", 1)
    with pytest.raises(InputError, match="or 1 files"):
        archive.unpack(path, tmp_path / "out2")


@pytest.mark.parametrize("write", [write_tar, write_zip])
def test_cut_off(tmp_path: Path, write: object) -> None:
    path = tmp_path / ("a.zip" if write is write_zip else "a.tgz")
    write(path, ("x", bytes(range(256)) * 40))
    content = path.read_bytes()
    for end in (0, 1, 10, len(content) // 2):
        path.write_bytes(content[:end])
        with pytest.raises(InputError, match="as a tar or zip archive"):
            archive.unpack(path, tmp_path / f"out{end}")
    with pytest.raises(InputError, match="no file"):
        archive.unpack(tmp_path / "none.tgz", tmp_path / "out")
