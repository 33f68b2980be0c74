"""Programs that remove, rename or replace the folders of the judge, and the programs after them."""

import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from judge_process import JudgeProcess, running_judge

REPLACE_OWN_FOLDER = (
    "import os\nfolder = os.getcwd()\n"
    "os.remove('main.py'); os.rmdir(folder); os.symlink({victim!r}, folder)\nprint('done')"
)
REPLACE_FOLDER_OF_SLOT = (
    "import os, shutil\nfolder = os.path.dirname(os.getcwd())\n"
    "shutil.rmtree(folder); os.symlink({victim!r}, folder)\nprint('done')"
)


@pytest.fixture(scope="module")
def one_slot(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeProcess]:
    """An ordinary user's judge whose only slot runs every program, so that each meets the leftovers of the last.

    Its programs are the same user; those of root's judge may not touch its folders at all.
    """
    folder = tmp_path_factory.mktemp("judge")
    with running_judge(
        folder, "--num-slots", "1", "--spare-slots", "0", "--max-memory-mb", "256", ordinary_user=True
    ) as server:
        yield server


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A folder of another user, with a file in it."""
    folder = tmp_path / "victim"
    (folder / "below").mkdir(parents=True)
    (folder / "below" / "canary").write_text("alive")
    folder.chmod(0o755)
    return folder


def slot_of_a_program(judge: JudgeProcess) -> str:
    """Run a program that does no harm and return the process id of its slot."""
    verdict = judge.judge(code="import os; print(os.getppid(), os.listdir())")
    slot, _, files = verdict["stdout"].partition(" ")
    assert (verdict["status"], files) == ("accepted", "['main.py']\n")
    return slot


@pytest.mark.parametrize("attack", [REPLACE_OWN_FOLDER, REPLACE_FOLDER_OF_SLOT], ids=["own", "of-slot"])
def test_a_link_in_place_of_a_folder_is_not_followed(one_slot: JudgeProcess, canary: Path, attack: str) -> None:
    slot = slot_of_a_program(one_slot)
    verdict = one_slot.judge(code=attack.format(victim=str(canary)))
    assert (verdict["status"], verdict["stdout"]) == ("accepted", "done\n")
    assert slot_of_a_program(one_slot) == slot
    assert (canary / "below" / "canary").read_text() == "alive"
    assert stat.S_IMODE(canary.stat().st_mode) == 0o755
    assert [entry.name for entry in canary.iterdir()] == ["below"]


def test_links_inside_a_folder_are_not_followed(one_slot: JudgeProcess, canary: Path) -> None:
    code = f"import os\nos.mkdir('d'); os.symlink({str(canary)!r}, 'd/link'); os.symlink({str(canary)!r}, 'link')"
    assert one_slot.judge(code=code)["status"] == "accepted"
    slot_of_a_program(one_slot)
    assert (canary / "below" / "canary").read_text() == "alive"


def test_a_program_that_renames_its_folder_keeps_its_verdict(one_slot: JudgeProcess) -> None:
    slot = slot_of_a_program(one_slot)
    away = one_slot.folder / "away"
    verdict = one_slot.judge(code=f"import os\nos.rename(os.getcwd(), {str(away)!r})\nprint('done')")
    assert (verdict["status"], verdict["stdout"]) == ("accepted", "done\n")
    assert (away / "main.py").exists()
    shutil.rmtree(away)
    assert slot_of_a_program(one_slot) == slot


def test_a_folder_renamed_to_that_of_the_next_program_is_not_handed_on(one_slot: JudgeProcess) -> None:
    slot = slot_of_a_program(one_slot)
    code = (
        "import os\nparent, name = os.path.split(os.getcwd())\nopen('left', 'w').close()\n"
        "os.rename(os.getcwd(), os.path.join(parent, str(int(name) + 1)))"
    )
    assert one_slot.judge(code=code)["status"] == "accepted"
    assert slot_of_a_program(one_slot) == slot


@pytest.mark.parametrize("ending", ["print('done')", "os.kill(os.getppid(), 9)"], ids=["slot-lives", "slot-dies"])
def test_the_folders_of_the_judge_are_recreated(one_slot: JudgeProcess, ending: str) -> None:
    code = f"import os, shutil\nshutil.rmtree(os.path.dirname(os.path.dirname(os.getcwd())))\n{ending}"
    verdict = one_slot.judge(code=code)
    assert verdict["status"] == ("accepted" if "done" in ending else "internal_error")
    slot_of_a_program(one_slot)
    slot_of_a_program(one_slot)
    (folder,) = one_slot.folder.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.slow
def test_a_stopped_slot_is_given_up_without_time_for_a_compiler(one_slot: JudgeProcess) -> None:
    flag = str(one_slot.folder / "flag")
    code = (
        f"import os, pathlib, time\nflag = pathlib.Path({flag!r})\nfirst = not flag.exists()\nflag.touch()\n"
        "if first:\n    os.kill(os.getppid(), 19); time.sleep(600)\nprint('again')"
    )
    started_at = time.monotonic()
    verdict = one_slot.judge(code=code, limits={"wall_time_s": 1})
    assert (verdict["status"], verdict["stdout"]) == ("accepted", "again\n")
    assert time.monotonic() - started_at < 25  # 1 + 10 for the first slot; a compiler's 30 would come on top
