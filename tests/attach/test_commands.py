"""The commands that put the gate into a project, and take it out."""

import json

import pytest

from crewboard.attach import install
from crewboard.protocol import requests
from crewboard.records.team import Config
from crewboard.store import roster
from crewboard.store.layout import TeamDirectory
from tests.cli.shell import Cli, Inside


def test_attach_installs_prints_and_removes_the_hooks(mirrored: TeamDirectory) -> None:
    cli = Inside(mirrored.root)
    assert json.loads(cli("attach", "--print").out) == install.snippet()
    done = cli("attach", "--install")
    assert done.out == f"the hooks are now in {mirrored.root / install.SETTINGS}\n"
    assert "plans: you approve" in done.err
    assert "settings.local.json names a path of this machine: do not commit it" in done.err
    assert install.missing_reason(mirrored.root) is None
    assert "were already" in cli("attach", "--install").out

    done = cli("attach", "--uninstall")
    assert "are gone from" in done.out
    assert "plans: Claude Code approves by itself" in done.err
    assert "were not in" in cli("attach", "--uninstall").out


def test_what_an_edited_plan_leads_to_is_said(mirrored: TeamDirectory) -> None:
    requests.ask(mirrored, "plan-1", "plan_approval", "alpha", "operator", {"plan": "# Plan"}, 1.0)
    done = Inside(mirrored.root)("approve", "plan-1", "--edited-file", "-", stdin=b"# Another")
    assert done.out == "plan_approval plan-1 of alpha: approved\n"
    assert "alpha reads your version and submits it again" in done.err


def test_a_plan_of_claude_code_takes_no_terms_but_steps(mirrored: TeamDirectory) -> None:
    plan = "# Plan\n1. write `b.txt`\n2. run `git push`"
    requests.ask(mirrored, "plan-1", "plan_approval", "alpha", "operator", {"plan": plan, "files": ["b.txt"]}, 1.0)
    cli = Inside(mirrored.root)
    cli("approve", "plan-1", "--ask").refused(65, "only steps to hold or to refuse", "nothing was changed")
    cli("approve", "plan-1", "--hold", "3").refused(2, "the plan has no step 3")
    shown = cli("plan", "plan-1", "--hold", "1").out
    assert "step 1: an instruction only, nothing that it alone names can be refused" in shown
    assert cli("approve", "plan-1", "--hold", "1").out == "plan_approval plan-1 of alpha: approved\n"
    cli("plan", "plan-1", "--release", "1").refused(65, "held by an instruction alone", "send alpha 'Do step")


@pytest.mark.long
def test_a_team_that_came_with_the_repository_does_not_choose_the_project(mirrored: TeamDirectory) -> None:
    elsewhere = mirrored.root / "elsewhere"
    elsewhere.mkdir()

    def edit(config: Config) -> None:
        assert config.attached is not None
        config.attached.cwd = str(elsewhere)

    roster.change(mirrored, edit)
    mirrored.owners.unlink()
    cli = Inside(mirrored.root)
    cli("attach", "--install")
    assert install.missing_reason(elsewhere) is not None
    assert "plans" not in {check["name"] for check in cli("doctor", "--json").json}


def test_broken_settings_are_refused(mirrored: TeamDirectory) -> None:
    (mirrored.root / ".claude").mkdir()
    (mirrored.root / install.SETTINGS).write_text("{")
    cli: Cli = Inside(mirrored.root)
    cli("attach", "--install").refused(65, "not valid JSON", "not changed")


@pytest.mark.long
def test_doctor_says_who_approves_plans(mirrored: TeamDirectory) -> None:
    cli = Inside(mirrored.root)

    def check() -> dict[str, str]:
        (found,) = (each for each in cli("doctor", "--json").json if each["name"] == "plans")
        return dict(found)

    assert check()["detail"].startswith("Claude Code approves by itself: no hooks in")
    cli("attach", "--install")
    assert check()["detail"].startswith("you approve")
