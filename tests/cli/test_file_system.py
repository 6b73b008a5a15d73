"""File systems that a team in files must not be on are told from others."""

from pathlib import Path

import pytest

from crewboard_tui.cli import common

TABLE = r"""
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:21 / /proc rw - proc proc rw
30 22 0:40 / {root}/home rw - autofs systemd-1 rw,fd=41
31 30 0:41 / {root}/home/ann rw,relatime shared:3 master:2 - nfs4 box:/ann rw,vers=4.2
32 22 0:42 / {root}/with\040space rw - fuse.sshfs ann@box:/ rw
33 22 0:43 / {root}/covered rw - ext4 /dev/vdb rw
34 33 0:44 / {root}/covered rw - cifs //box/share rw
"""


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "mountinfo"
    path.write_text(TABLE.lstrip().format(root=tmp_path))
    return path


@pytest.mark.parametrize(
    ("folder", "kind"),
    [
        ("", "ext4"),
        ("home", "autofs"),
        ("home/ann/project/.crewboard/default", "nfs4"),
        ("home/annabel", "autofs"),
        ("with space/project", "fuse.sshfs"),
        ("covered/project", "cifs"),
    ],
)
def test_the_file_system_of_a_folder_that_need_not_exist(table: Path, folder: str, kind: str) -> None:
    assert common.file_system(table.parent / folder, str(table)) == kind


def test_a_link_leads_to_the_file_system_of_its_target(table: Path) -> None:
    (table.parent / "project").symlink_to(table.parent / "home/ann")
    assert common.file_system(table.parent / "project" / ".crewboard", str(table)) == "nfs4"


def test_an_unreadable_table_says_nothing(tmp_path: Path) -> None:
    assert common.file_system(tmp_path, str(tmp_path / "none")) == ""


def test_the_table_of_this_machine_can_be_read(tmp_path: Path) -> None:
    kind = common.file_system(Path("/proc/self"))
    assert kind == "proc"
    assert common.file_system(tmp_path) not in {"", "proc"}
