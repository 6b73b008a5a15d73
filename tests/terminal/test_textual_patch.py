"""What is proposed to Textual applies to the version that is pinned here, and does what our replacements do."""

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.system import need_program
from tests.worktrees.conftest import git

PATCH = ROOT / "docs" / "decisions" / "textual.patch"

PROBE = """
import asyncio, json, os, selectors
from threading import Thread
from types import SimpleNamespace

from textual.app import App
from textual.drivers.linux_driver import LinuxDriver
from textual.screen import Screen
from textual.widgets import Static

waits = []

class Selector(selectors.SelectSelector):
    def select(self, timeout=None):
        waits.append(timeout)
        return super().select(timeout)

async def key_thread_sleeps():
    keyboard, hand = os.pipe()
    read = asyncio.Event()
    loop = asyncio.get_running_loop()
    LinuxDriver.process_message = lambda *_: loop.call_soon_threadsafe(read.set)
    driver = LinuxDriver(SimpleNamespace(), mouse=False)
    driver.fileno = keyboard
    selectors.SelectSelector = Selector
    driver._key_thread = Thread(target=driver.run_input_thread, daemon=True)
    driver._key_thread.start()
    os.write(hand, b"a")
    await asyncio.wait_for(read.wait(), 60)
    driver.disable_input()
    driver.close()
    return set(waits) == {None} and not driver._key_thread.is_alive()

class Part(Static):
    rendered = 0

    def render_lines(self, crop):
        self.rendered += 1
        return super().render_lines(crop)

class Parts(Screen):
    def compose(self):
        yield from (Part(name, id=name) for name in ("first", "between", "last"))

class Probe(App):
    MODES = {"one": Parts, "other": Parts}
    DEFAULT_MODE = "one"
    timers = True

    def set_timer(self, delay, callback=None, *, name=None, pause=False):
        if name == "delay_update" and not self.timers:
            callback = lambda: None
        return super().set_timer(delay, callback, name=name, pause=pause)

async def only_what_changed_is_rendered():
    async with Probe().run_test(size=(40, 10)) as pilot:
        await pilot.pause()
        parts = {part.id: part for part in pilot.app.screen.query(Part)}
        for part in parts.values():
            part.rendered = 0
        for name in ("first", "last"):
            parts[name].refresh()
        while not (parts["first"].rendered and parts["last"].rendered):
            await pilot.pause()
        return parts["between"].rendered == 0

async def a_mode_is_shown_without_a_timer():
    app = Probe()
    async with app.run_test(size=(40, 10)) as pilot:
        await pilot.pause()
        app.timers = False
        await app.switch_mode("other")
        # Without the timer it is shown after some messages, or never.
        for _ in range(100):
            await pilot.pause()
            if app._batch_count == 0:
                return True
        return False

checks = key_thread_sleeps, only_what_changed_is_rendered, a_mode_is_shown_without_a_timer
print(json.dumps({check.__name__: asyncio.run(check()) for check in checks}))
"""


def outcome(path: Path) -> dict[str, bool]:
    """Return what is so with the Textual below `path`."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE], env={"PYTHONPATH": str(path)}, cwd=path, capture_output=True, check=True
    )
    found: dict[str, bool] = json.loads(done.stdout)
    return found


@pytest.mark.long
def test_the_patch_for_textual_does_what_ours_does(tmp_path: Path) -> None:
    need_program("git")
    for file in metadata.files("textual") or ():
        if file.suffix in {".py", ".css", ".tcss", ".scm"}:
            copy = tmp_path / "src" / file
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(Path(str(file.locate())).read_bytes())
    before = outcome(tmp_path / "src")
    git(tmp_path, "apply", str(PATCH))
    assert set(before.values()) == {False}, "the patch is needed"
    assert outcome(tmp_path / "src") == dict.fromkeys(before, True)
