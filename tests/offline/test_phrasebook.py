"""Sentences to a lead on the offline model: other words for the same wish, and what must not be obeyed."""

import pytest

from crewboard.offline import phrasebook
from crewboard.offline.phrasebook import Order, book, understand

_SHOWN = ("team", "description", "name", "names", "type", "background", "errand", "plan", "decision", "wait", "content",
          "text", "subject", "state", "after", "left_out")  # fmt: skip


TEAM = frozenset({"alice", "bob", "carol", "reviewer"})


def orders(text: str) -> list[str]:
    """Return what is understood of a text, each order as its kind or tool with its words; ?? for what is not."""
    told = []
    for one in understand(text, lead=True, members=TEAM):
        if not one.is_known:
            told.append("??")
            continue
        asked = next(text for text, phrase in book().phrases(lead=True).items() if phrase == one.phrase)
        kind = one.kind or (one.phrase.steps[0].tool if one.phrase.steps else asked)
        told.append(" | ".join([kind, *(one.words[key] for key in _SHOWN if key in one.words)]))
    return told


SCANNER = ["spawn | scanner | explore | list all Python files"]
REVIEWER = ["spawn | reviewer | explore | background | analyze the agent loop in s01"]
TASK = ["task | test | Write unit tests"]
PAIR = ["spawn | bob | test", "spawn | alice | code | send bob a message"]
PHASE = ["broadcast | status update: phase 1 complete"]
DEVELOPER = ["spawn | alice | code | create a file", "stop | alice"]
PLANNED = ["spawn | bob | code | a refactoring task | yes", "review | bob | approve"]
FILE_AND_LEAVE = ["give | alice | create a file | yes", "stop | alice"]

WISHES: dict[str, tuple[list[str], list[str]]] = {
    "create the team": (["create_team | demo | exploring this project"], [
        "Create an agent team called 'demo' for exploring this project",
        'Set up "demo", a team for exploring this project.', "Build me a team named demo for exploring this project.",
        'Create a team called "demo" for exploring this project.',
        "Please create a new team named demo for exploring this project",
        'Could you set up the "demo" team for exploring this project?',
        "I want a team called demo for exploring this project.",
        "Make a team: demo, for exploring this project",
        "Start a team “demo” for exploring this project, please.",
    ]),
    "create the team, for nothing yet": (["create_team | demo"], [
        "I would like you to create a new team. Call it demo.",
        "make a new team, call it demo", "Make a new team; call it demo.",
        "I'd like a team called demo", "could you create the demo team?",
    ]),
    "create the team so that": (["create_team | demo | explore this project"], [
        "Please set up a team named demo so we can explore this project",
    ]),
    "hire for what makes a file": (["spawn | eve | code | make a file"], ["Hire eve to make a file"]),
    "hire by name alone": (["spawn | bob | explore"], ["Hire bob.", "Spawn @bob please"]),
    "hire by name alone, for work": (["spawn | bob | code | a refactoring task | yes", "review | bob | approve"], [
        "Hire bob, give him a refactoring task, ask for a plan first, then approve it.",
        "Hire bob and give him a refactoring task; he must submit a plan first. Then review and approve that plan.",
    ]),
    "hire by role and name": (["spawn | alice | code"], [
        "Create a backend dev alice.", "Add a coder, alice.", "Hire Alice (coder)", "Create a coder agent alice",
        "Spawn a coder teammate named alice", "Get me a coder. His name is alice", "hire coder alice",
        "Spawn alice, who is a coder",
        "Spawn an agent (name: alice, type: code)", "Spawn alice with type code",
    ]),
    "hire by role and name, another one": (["spawn | zoe | test"], ["I need a tester Zoe"]),
    "hire two by role and name": (["spawn | alice | code", "spawn | bob | test"], [
        "Hire a coder alice and a tester bob", "Create two agents, a coder alice and a tester bob",
        "Spawn 2 teammates: alice (coder) and bob (tester)", "Spawn coder alice and tester bob",
    ]),
    "hire by type alone": (["spawn | explorer | explore | list all Python files"], [
        "Use the explore subagent to list all Python files", "Have a subagent list all Python files",
        "Use the explore agent to list all Python files", "Launch a subagent to list all Python files",
    ]),
    "hire an architect": (["spawn | architect | plan | refactor the parser | yes"], [
        "Spawn an architect teammate to refactor the parser. Require plan approval before they make any changes.",
    ]),
    "leave, a teammate": (["stop | researcher"], [
        "Ask the researcher teammate to shut down", "Shut down the researcher agent", "Ask the researcher to shut down",
    ]),
    "all leave, then the team": (["stop", "delete_team"], ["Ask all teammates to shut down, then clean up the team"]),
    "done, then the end": (["Wait for mail", "delete_team"], ["We are finished. Delete the team."]),
    "hire no one who is named": (["??"], ["Hire two.", "Hire someone.", "Spawn agents"]),
    "hire a scanner": (SCANNER, [
        'Add an explore agent "scanner" that will list all Python files.',
        "Use an explore agent (name: scanner) to list all Python files",
        'Spawn an agent "scanner" (type: explore) to list all Python files.',
        "Spawn scanner: an explore agent that lists all Python files",
        "Can you spawn an explore agent with name scanner and ask it to list all Python files?",
        "Create a subagent named scanner of type explore to list all Python files",
        "Spawn an explore agent named scanner in order to list all Python files please",
        'Spawn an agent with the name "scanner" and the type "explore" to list all Python files',
        "An explore agent named scanner should list all Python files.",
        "Spin up scanner, an explore agent, so it can list all Python files.",
        'Spawn an explore agent named "scanner" to list all Python files.',
        "Start an explore agent named scanner that lists all Python files",
        "Could you hire an explorer called scanner and have it list all Python files?",
        "launch scanner as an explorer to list all Python files",
        "I need an explore agent named scanner to list all Python files",
        "Spawn an agent named scanner (explore) to list all Python files",
        'Create an explore agent, call it "scanner", to list all Python files',
        'Get me an explore agent, name it "scanner", and have it list all Python files',
        "Get me an explore agent, scanner, and have it list all Python files",
        "I need an agent named scanner to list all Python files", "launch scanner (explore): list all Python files",
        "Could you please spin up an exploration agent named scanner to list all Python files?",
        "recruit a scout, scanner, to list all Python files",
        "I want to hire scanner, an explorer. Its job is to list all Python files.",
    ]),
    "hire a reviewer in the background": (REVIEWER, [
        "Spawn an explore agent named reviewer, running in the background, to analyze the agent loop in s01.",
        "Spawn reviewer (explore, background) to analyze the agent loop in s01",
        'Please start a background agent "reviewer" that should analyze the agent loop in s01',
        "In the background, have an explore agent named reviewer analyze the agent loop in s01",
        'Have a new explore agent named "reviewer" analyze the agent loop in s01 in the background.',
        'Spawn a background explore agent named "reviewer" to analyze the agent loop in s01.',
        "In the background, spawn an explore agent named reviewer to analyze the agent loop in s01",
        "Hire an explore agent called reviewer in the background to analyze the agent loop in s01.",
        "Spawn an explore agent named reviewer to analyze the agent loop in s01 in the background.",
        "Launch a background explorer named 'reviewer', who should analyze the agent loop in s01",
        'Have a background explorer "reviewer" analyze the agent loop in s01',
        'Get a background explore agent "reviewer" to analyze the agent loop in s01',
        "Can you start a background explore agent named reviewer that analyzes the agent loop in s01?",
        "Run a background agent reviewer to analyze the agent loop in s01",
        "Kick off reviewer in the background; it should analyze the agent loop in s01",
        "Let an explore agent called reviewer analyze the agent loop in s01 in the background, please",
        "Spawn reviewer as a background agent and let it analyze the agent loop in s01",
        "Start a background reviewer to analyze the agent loop in s01",
    ]),
    "look at the team": (["list_team"], [
        "/team", "List the team", "show me the team", "Who is on the team?", "Who’s on my team right now?",
        "What is everyone doing?", "What's everyone up to?", "What are the agents working on?", "team status",
        "List all agents and their status", "Give me the status of all agents",
        "Show the agents' statuses", "How is the team doing?", "Who is here?", "What's going on?",
        "Show who is on the team and what each of them is doing", "status", "team?", "Which agents do I have?",
        "Which agents exist?", "Who am I working with?", "What's the status?",
    ]),
    "look at those in a state": (["states | idle"], [
        "who is idle?", "Which agents are idle right now?", "list the idle agents", "Who's idle?", "Is anyone idle?",
        "how many agents are idle?",
    ]),
    "who works": (["states | working"], ["Is anyone working?", "Who is still working?"]),
    "who runs": (["states | running"], ["Which agents are running?"]),
    "who waits": (["states | waiting"], ["is anyone waiting for me?", "who is waiting for approval?"]),
    "who is stopped": (["states | stopped"], ["Are all agents stopped?", "which agents are stopped?"]),
    "in no state": (["??"], ["who is not idle?", "who was idle when bob worked?"]),
    "look at the team, and why": (["list_team | to see agent statuses"], [
        "List the team to see agent statuses.", "Please show all agents, to see agent statuses.",
    ]),
    "ask for a summary": (["send_message | reviewer"], [
        "Message the reviewer and request a summary.", "Can you get a summary from the reviewer teammate?",
        "Message the reviewer agent asking for a summary",
        "Send a message to reviewer asking for a summary.", "Ask reviewer for a summary",
        "Message reviewer for a summary",
        "Send reviewer a message asking for a short summary.", "Could you ask reviewer for a summary, please?",
        "Tell the reviewer to send me a summary", "Get a summary from reviewer",
        "Message the reviewer and ask for a status report", "Send a note to reviewer requesting a summary",
        "Write to reviewer that I want a short summary", "Ask the reviewer what it found",
    ]),
    "ask for a summary at leisure": (["send_message | reviewer | when you can"], [
        "Get a summary from reviewer when you can.",
    ]),
    "put a task in words on the board": (["task | test | write unit tests"], [
        "Add a task to write unit tests and assign it to a tester.",
    ]),
    "put a task on the board": (TASK, [
        'Open a task "Write unit tests" and assign a test agent to it.',
        'Create a new task: "Write unit tests". Assign to a test agent.',
        'Create a task titled "Write unit tests", assigned to a test agent',
        'Make a task for "Write unit tests" and assign it to a test agent',
        "Create a task: Write unit tests, assigned to a test agent",
        "Please add a task: Write unit tests. It should be assigned to a test agent.",
        'Create a "Write unit tests" task and assign it to a tester.',
        'Create a task "Write unit tests" and assign it to a test agent.', 'Add a task "Write unit tests" for a tester',
        'Make a new task called "Write unit tests", and give it to a test agent',
        'Assign the task "Write unit tests" to a tester.', 'Give a tester the task "Write unit tests"',
        'Create a task for a test agent: "Write unit tests"',
        "Create a task “Write unit tests” and have a tester do it",
        'Put "Write unit tests" on the board and let a tester take it.',
        'New task for a tester: "Write unit tests"',
        "New task: Write unit tests. Assign it to a test agent.",
        "I want a task 'Write unit tests' assigned to an agent that tests",
        'Have a test agent take on a new task, "Write unit tests"',
        'make a todo "Write unit tests" and let tester do it',
        'Create the task "Write unit tests" and hand it to someone who tests',
        'Add "Write unit tests" to the tasks and assign to a test agent',
        'Create a task "Write unit tests" and have it done by a test agent',
        'Write a task "Write unit tests" for a test agent', "Make a task 'Write unit tests' and pass it to a tester",
        'Create a task "Write unit tests". Assign it to a test agent.',
        'Add a task called "Write unit tests" and give it to a test agent.', 'Assign "Write unit tests" to a tester.',
        'Make a task "Write unit tests"; a tester should do it.', 'Add "Write unit tests" as a task for a tester',
    ]),
    "work, leave afterwards": (["give | bob | write a file | yes", "stop | bob"], [
        "Make bob write a file and end him afterwards.",
    ]),
    "delete the team": (["delete_team"], [
        "Please delete the team now, thank you",
        "Delete the team", "Please disband the team.", "end the team now", "Remove the whole team",
        "Shut the team down", "Get rid of the team", "Clean up: delete the team",
        "We're done, you can close the team now",
    ]),
    "delete the team when done": (["delete_team | when done"], [
        "Delete the team when done.", "Shut down the team when done", "Please close the team, when done",
    ]),
    "delete the team when all is done": (["delete_team | when all work is done"], [
        "Please dissolve the team when all work is done",
    ]),
    "delete the team, when done": (["delete_team | When done"], ["When done, delete the team."]),
    "delete the team, when all is done": (["delete_team | When everyone is done"], [
        "When everyone is done, delete the team.", "When everyone is done, please disband the team",
    ]),
    "delete the team behind what cannot be weighed": (["??"], [
        "When bob is done, delete the team.", "If everyone is done, delete the team.",
    ]),
    "hire two": (PAIR, [
        "Spawn alice (coder) and bob (tester). Have alice send bob a message.",
        "Hire alice as a coder and bob as a tester. Let alice send bob a message",
        "Start alice (coder) and bob (tester), then ask alice to send bob a message",
        "Spawn a coder named alice and a tester named bob. Have alice send bob a message.",
        "Hire alice, a coder, and bob, a tester. Get alice to send bob a message",
        "Start two agents, alice (coder) and bob (tester), and get alice to send bob a message",
        "Spawn alice (coder) and bob (tester). alice should send bob a message.",
        "Spawn alice (code) and bob (test). Tell alice to send bob a message.",
        "Create agents alice (coder) and bob (tester), then alice should send bob a message",
        "Spin up a coder named alice and a tester named bob, then get alice to send bob a message",
        "Create two agents: alice (coder), bob (tester). Alice has to send bob a message",
        "Launch alice (coder) and bob (tester); alice should then send bob a message",
    ]),
    "hire some": (["spawn | alice | alice and bob | code", "spawn | bob | alice and bob | code"], [
        "Spawn alice and bob as coders", "Hire two new agents: alice and bob as coders",
    ]),
    "tell all": (PHASE, [
        "Broadcast a message to all teammates: status update: phase 1 complete",
        'Send a broadcast saying "status update: phase 1 complete" to all teammates.',
        'Everyone should hear this: "status update: phase 1 complete"',
        'Broadcast "status update: phase 1 complete" to all teammates',
        "broadcast status update: phase 1 complete", 'Tell everyone "status update: phase 1 complete"',
        'Send "status update: phase 1 complete" to all agents.',
        'Announce to the team: "status update: phase 1 complete"',
        'Send a message to everyone saying "status update: phase 1 complete"',
        "Let everyone know that status update: phase 1 complete",
        "Send this to everyone: status update: phase 1 complete",
        "Give all agents the message: status update: phase 1 complete",
        "Everyone should know that status update: phase 1 complete",
    ]),
    "look at the mail": (["read_inbox"], [
        "/inbox", "2. Check the inbox", "3) Check your inbox", "Check the lead inbox for any messages",
        "Check your inbox", "Any messages?", "Do you have new mail?",
        "Read the lead's mailbox", "Please look in the inbox for new messages.", "What is in the inbox?",
        "Has anyone written to you?", "Did anyone write?", "Have you received any messages?",
        "What did they write to you?", "What does the inbox say?",
        "Look into your inbox and tell me if there are messages.",
    ]),
    "look at the tasks": (["task_list"], ["/tasks", "List the tasks", "Show the task list",
    "What tasks are on the board?", "What is left to do?"]),
    "hire, work, leave": (DEVELOPER, [
        "Spawn alice as a backend dev. Ask her to create a file. Then request her shutdown.",
        "Add a backend developer, alice, and tell her to create a file; shut her down when she has finished",
        "Spawn alice as a backend dev, ask her to create a file please. Then shut her down please.",
        "Hire alice as a backend developer, have her create a file, then shut her down",
        "Spawn alice, a backend dev. Tell her to create a file. Then stop her.",
        "Spawn alice as a backend dev, have her create a file and then ask her to shut down",
        "Hire alice as a coder. Have her create a file. When she is done, shut her down.",
        "Spawn alice (backend dev) to create a file, and shut her down when she is done",
        "Create a backend dev called alice. She should create a file. Afterwards shut her down.",
        "I want alice as backend developer; let her create a file, then stop her",
        "Start alice as a backend dev, tell her to create a file, and when she's finished request that she shuts down",
    ]),
    "a plan first": (PLANNED, [
        "Spawn bob with a refactoring task. Have him submit a plan first. Then review and approve it.",
        "Hire bob for a refactoring task. He must submit a plan first. Review it and approve it.",
        "Spawn bob with a refactoring task, have him submit a plan first, then review and approve it",
        "Spawn bob for a refactoring task. Require a plan from bob. Then approve it",
        "Hire bob with a refactoring task. Ask him for a plan first. Review his plan and approve it.",
        "Hire bob with a refactoring task. I want a plan from him before he starts; look at it and approve it.",
        "Hire a coder bob with a refactoring task. First he hands in a plan, then you approve it.",
        "Spawn bob for a refactoring task; he must plan first. Then approve it.",
        "Hire bob for a refactoring task. Make him plan first, then approve that plan after review.",
        "Hire bob with a refactoring task, but make him plan first, then look at his plan and approve",
    ]),
    "a plan first, in passing": (["spawn | dave | code | refactor the parser | yes"], [
        "Spawn dave to refactor the parser but let him plan first",
        "Hire dave to refactor the parser, and have him submit a plan",
    ]),
    "two of a type": (["spawn | ann | ann and ben | explore", "spawn | ben | ann and ben | explore"], [
        "Spawn two explore agents, ann and ben", "Hire explorers named ann and ben",
    ]),
    "a plan first, wherever it is said": (["spawn | eve | code | write hello.txt | yes"], [
        "hire a code agent named eve, with a plan first, to write hello.txt",
        "hire a coder eve, plan first, to write hello.txt", "hire eve to write hello.txt, plan first",
        "hire eve to write hello.txt and have her plan before", "hire eve to write hello.txt, she must plan",
        "hire eve to write hello.txt, needs approval before", "hire eve to write hello.txt (plan first)",
        "hire a coder named eve who needs approval before writing hello.txt",
        "hire a coder named eve to write hello.txt with a plan, please",
        "hire a coder named eve with plan approval to write hello.txt",
        "hire eve to write hello.txt. She has to submit a plan first.",
        "hire eve to write hello.txt. Plan first.", "hire eve to write hello.txt. She needs approval.",
    ]),
    "no plan, as it is said": (["spawn | eve | code | write hello.txt"], [
        "hire eve to write hello.txt without approval", "hire a coder eve to write hello.txt, no approval needed",
        "hire eve to write hello.txt without a plan", "hire eve to write hello.txt (no plan)",
        "Hire eve to write hello.txt without waiting for my approval.",
    ]),
    "a limit before the words for no plan": (["spawn | eve | code | write hello.txt, but not without approval | yes"], [
        "hire eve to write hello.txt, but not without approval",
    ]),
    "a plan first, without work": (["spawn | bob | explore | yes"], ["hire bob with a plan"]),
    "a plan first, for work that is a noun": (["plan | bob | a refactoring task | yes", "review | bob | approve"], [
        "Give bob a refactoring task, but he has to hand in a plan first. Look at the plan and approve it.",
    ]),
    "a plan first, for one who is there": (["plan | bob | write a.txt | yes"], [
        "bob should write a.txt, with a plan first", "bob must plan before writing a.txt",
        "ask bob to plan and write a.txt", "bob: plan first, then write a.txt",
        "ask bob to write a.txt and wait for my approval",
    ]),
    "a plan first, in words that are not known, for one who is there": (
        ["plan | bob | write a.txt but I want to see the plan | yes"],
        ["ask bob to write a.txt but I want to see the plan"],
    ),
    "the words for a plan stay where others belong to them": (
        ["spawn | eve | code | write a.txt only after approval | yes"],
        ["hire eve to write a.txt only after approval"],
    ),
    "what follows in the sentence is planned, too": (
        ["spawn | eve | code | write a file a.txt, then write a file b.txt | yes"],
        ["hire eve, plan first, to write a file a.txt, then write a file b.txt"],
    ),
    "a plan in words that are not known": (["spawn | eve | code | write it once it is approved by me | yes"], [
        "hire eve to write it once it is approved by me",
    ]),
    "a plan is the work": (["spawn | eve | code | write a plan for the release"], [
        "hire eve to write a plan for the release",
    ]),
    "hire some for work": (["spawn | ann | ann and ben | code | write tests",
                            "spawn | ben | ann and ben | code | write tests"], [
        "hire ann and ben to write tests", "Hire the agents ann and ben to write tests",
    ]),
    "hire some people": (["spawn | explorer | explore | the docs", "spawn | explorer2 | explore | the docs"], [
        "get two people on the docs", "Get me two helpers for the docs",
    ]),
    "hire several kinds": (["spawn | coder | code", "spawn | coder2 | code", "spawn | reviewer | explore"], [
        "hire two coders and a reviewer",
    ]),
    "work for some": (["give | alice | alice and bob | write tests", "give | bob | alice and bob | write tests"], [
        "alice and bob should write tests", "Have alice and bob write tests", "Ask alice and bob to write tests",
    ]),
    "work as a noun": (["give | bob | fix login.py"], [
        "give bob the task of fixing login.py", "assign bob the job of fixing login.py",
    ]),
    "let it know": (["send_message | alice | the api changed"], [
        "let alice know that the api changed", "Tell alice that the api changed",
    ]),
    "several names in one line": (["give | carol | write a.txt", "give | bob | write b.txt"], [
        "carol: write a.txt; bob: write b.txt", "carol: write a.txt\nbob: write b.txt",
        "carol: write a.txt. bob: write b.txt",
    ]),
    "a name of no agent": (["give | carol | write a.txt", "??"], [
        "carol: write a.txt; dave: delete the team. Hire bob.",
    ]),
    "a numbered list": (["spawn | ann | code | write a.txt", "give | ann | write b.txt"], [
        "1. hire ann to write a.txt 2. have her write b.txt", "1. Hire ann to write a.txt\n2. Have her write b.txt",
        "1) hire ann to write a.txt\n2) have her write b.txt", "(1) hire ann to write a.txt (2) have her write b.txt",
    ]),
    "a task that waits": (["task | write docs | 1 and 2"], [
        "create a task to write docs after tasks 1 and 2", "add a task to write docs, which depends on 1 and 2",
    ]),
    "a team for a purpose": (["create_team | build a todo app"], ["start a team to build a todo app"]),
    "what one did": (["send_message | bob"], ["what did bob change?", "what has bob written so far?"]),
    "whether one is done": (["send_message | bob"], ["has bob written the file already?", "is bob finished yet?"]),
    "what all did": (["list_changes"], ["what files did the team write?", "What has everyone done so far?"]),
    "say hello to all": (["broadcast | hello"], ["say hello to the whole team"]),
    "approve in other words": (["review | carol | go ahead"], ["go ahead with carol's plan"]),
    "the cost": (["How much did it cost?"], ["how much did it cost so far?", "how many tokens did alice use?"]),
    "the plan of one": (["Show me bob's plan | bob"], ["show me bob's plan", "what is the plan of bob?"]),
    "how far it is": (["send_message | scanner"], [
        "What did scanner find?", "What has scanner learned so far?", "How far is scanner?",
        "Ask scanner how it is going", "Ask scanner for a summary",
    ]),
    "the end of the team": (["delete_team"], ["Clean up the team", "Disband the team"]),
    "files of a folder": (["glob"], ["Which Python files are there in tests?", "Show the files under src/db"]),
    "files, but not all": (["glob | that import os"], ["List all Python files that import os"]),
    "files, and more": (["glob", "bash"], [
        "List all Python files and run the tests", "List every C++ header, then run the tests",
    ]),
    "the README": (["glob"], ["read the readme", "Summarize the README", "What does the readme say?"]),
    "the project": (["list_dir"], [
        "What does this repo do?", "what's in this repo?", "Explain this project", "summarize the code", "what's here?",
    ]),
    "one agent": (["states | scout"], [
        "What's scout up to?", "How is scout doing?", "what is the status of scout", "what is Scout working on?",
    ]),
    "a plan is not asked for": (["spawn | ann | code | write x.py", "Does bob need a plan?"], [
        "Hire a coder named ann to write x.py. No plan needed.",
        "Hire a coder, ann, to write x.py. No approval is needed",
    ]),
    "who plans": (["Does bob need a plan?"], ["Does frank need a plan?", "must the reviewer submit a plan first?"]),
    "a newcomer's question": (["Who are you?"], ["What can I do here?", "what can we do?", "What can you do?"]),
    "where it is": (["grep"], ["Where is Parser defined?", "where is the function main?", "find all TODOs"]),
    "commands of git": (["bash"], ["git status", "show me the git log"]),
    "a greeting is mail": (["give | alice | say hello to bob"], ["Alice should say hello to bob"]),
    "an exit that is not the agent's": (["spawn | bob | code", "??"], [
        "Hire a coder named bob. After that, exit", "Hire a coder named bob, then exit",
        "Hire a coder named bob. Exit.", "Hire a coder named bob. Then leave",
    ]),
    "an exit after another's work": (["spawn | bob | code | create a file", "??"], [
        "Hire a coder named bob to create a file. Then exit.", "Hire a coder named bob to create a file.\nLeave",
        "Hire a coder named bob to create a file. then shut down",
    ]),
    "hire into the team": (["spawn | reviewer | explore"], [
        "add a reviewer to the team", "Add a reviewer to our crew now", "Hire a reviewer for this project, please",
    ]),
    "hire into the team, for work": (["spawn | reviewer | explore | check the README"], [
        "Add a reviewer to the team to check the README",
        "Hire a reviewer for the project and have her check the README",
    ]),
    "hire for work on the team's things": (["spawn | reviewer | explore | the project documentation"], [
        "Hire a reviewer for the project documentation",
    ]),
    "what was not quoted is no content": (["??"], ["create a file TODO.md with a list of three things"]),
    "hire several of a kind": (["spawn | coder | code", "spawn | coder2 | code", "spawn | coder3 | code"], [
        "hire 3 coders", "spin up three coders", "I need three more coders, please", "Get me three code agents",
    ]),
    "hire several of a kind for work": (
        ["spawn | explorer | explore | look for TODOs", "spawn | explorer2 | explore | look for TODOs"],
        ["Spawn 2 explore agents to look for TODOs.", "Hire two explorers. They should look for TODOs.",
         "Launch two agents that look for TODOs"],
    ),
    "hire several by name": (["spawn | alice | alice and bob | test | write tests",
                              "spawn | bob | alice and bob | test | write tests"], [
        "hire two test agents, alice and bob, to write tests", "Hire 2 testers named alice and bob to write tests",
    ]),
    "of no kind": (["spawn | alice | alice and bob | code | write tests",
                    "spawn | bob | alice and bob | code | write tests"], [
        "hire two agents, alice and bob, to write tests", "Get me two agents: alice and bob, to write tests.",
    ]),
    "by name, for nothing yet": (["spawn | ann | ann and ben | test", "spawn | ben | ann and ben | test"], [
        "Hire two testers, ann and ben",
    ]),
    "more or fewer names than were counted": (["??"], [
        "hire three agents, alice and bob, to write tests", "Hire two testers, ann, ben and cal",
        "hire three testers, ann and ben",
    ]),
    "name them afterwards": (SCANNER, [
        "I need an explore agent to list all Python files. Name it scanner.",
        "Get me an explore agent. Call her scanner. She should list all Python files.",
        "Hire an explorer to list all Python files. Its name is 'scanner'.",
    ]),
    "name several afterwards": (["spawn | ann | test", "spawn | ben | test"], [
        "Hire two testers. Name them ann and ben.",
    ]),
    "other names than there are agents": (["??"], [
        "Hire two testers. Name them ann, ben and cal.", "Hire ann as a coder. Call her al.",
        "Hire a tester. Name them ann and ben.",
    ]),
    "nothing to name": (["stop", "??"], ["Shut everyone down. Call it a day."]),
    "no name": (["spawn | tester | test", "??"], [
        "Hire a tester. Call him back.", "Hire a tester. Name him when you can.",
    ]),
    "a line for an agent, as in a chat": (["give | alice | create a file notes.txt"], [
        "Alice, create a file notes.txt", "alice: create a file notes.txt", "Alice: please create a file notes.txt",
        "alice, please create a file notes.txt",
        "Alice, could you create a file notes.txt",
    ]),
    "all that stands in the line is for it": (["give | alice | run the tests, then stop bob. Delete the team."], [
        "alice: run the tests, then stop bob. Delete the team.",
    ]),
    "so are the items below it": (["give | alice | do this:\n- stop bob\n- delete the team", "list_team"], [
        "alice: do this:\n- stop bob\n- delete the team\nList the team",
    ]),
    "a prohibition in it is its own": (["give | alice | do not delete the team"], ["alice: do not delete the team"]),
    "to each his own": (["give | alice | create a file", "give | bob | run the tests"], [
        "alice: create a file\nbob: run the tests",
    ]),
    "leave, in a line for it": (["stop | alice"], ["Alice, please shut down.", "alice: please leave"]),
    "a summary, in a line for it": (["send_message | reviewer"], ["reviewer: please give me a summary"]),
    "a label is no name": (["??", "spawn | scanner | explore | list all Python files"], [
        "Goal: understand the code. Hire scanner to list all Python files.",
    ]),
    "so is none that no agent has": (["??", "??", "??"], ["Fix the parser.\nFiles: parser.py\nDeadline: tomorrow"]),
    "below an order, too": (["spawn | explorer | explore | read the docs", "??"], [
        f"Spawn an explore agent to read the docs.\n{label}: a summary of the docs"
        for label in ("Output", "Requirements", "Steps", "Constraints", "Description")
    ]),
    "a heading before an order": (["spawn | bob | test | run the tests"], [
        "Description: hire a tester named bob to run the tests",
        "Request: hire a tester named bob to run the tests",
    ]),
    "the lead itself is meant": (["spawn | tester | test"], [
        "Claude, can you hire a tester?", "Crewboard, please hire a tester", "Lead: hire a tester",
        "Hi Claude, hire a tester",
    ]),
    "what the line says itself": (["broadcast | phase 1 complete"], ["Broadcast: phase 1 complete"]),
    "write that": (["send_message | reviewer | the deadline is Friday"], [
        "Write to reviewer that the deadline is Friday.",
    ]),
    "work, then leave": (FILE_AND_LEAVE, [
        "Have Alice create a file, then shut her down", "Ask alice to create a file and then shut her down.",
        "Get alice to create a file. Then request her shutdown.", "Let Alice create a file, after that stop her",
        "Have alice create a file and shut her down when she is done", "Tell alice to create a file, then stop alice",
        "Get Alice to create a file and dismiss her after that", "I want alice to create a file and then leave",
        "Alice needs to create a file, and then please shut her down", "@alice create a file, then shut down",
        "Tell Alice to create a file and after that request her shutdown",
        "Let alice create a file, then let her go", "Ask alice to create a file and shut down when done",
    ]),
    "stop all": (["stop"], [
        "Shut everyone down.", "Stop all agents.", "Shut down all agents", "Stop everybody, please",
        "shut them all down",
        "Everyone stop", "Ask everyone to shut down", "Request the shutdown of all agents",
        "Please shut everyone down now",
    ]),
    "write what ends politely": (["write_file | yes please"], ["Create a file hello.txt that says yes please"]),
    "list, then write what ends politely": (["list_team", "write_file | yes please"], [
        "List the team and create a file hello.txt that says yes please",
    ]),
    "send what ends politely": (["send_message | bob | hold the door please"], [
        "Send bob a message saying hold the door please",
    ]),
    "several tasks": (["task | write docs", "task | fix tests"], [
        "Add two tasks: write docs, fix tests", 'Create tasks "write docs" and "fix tests"',
        "create tasks: write docs and fix tests.", "Please add the tasks write docs and fix tests to the board",
        "I need two tasks: write docs and fix tests", "Create a task to write docs and a task to fix tests",
        "Create a task to write docs and another to fix tests", "Create a task to write docs and one to fix tests",
        "Add a task to write docs, and a second task to fix tests.",
        "Create a task called write docs and a task called fix tests",
    ]),
    "one task of two things": (["task | write docs and fix tests"], ["Create a task to write docs and fix tests"]),
    "a task about tasks": (["task | find out how to add a task to the board"], [
        "Create a task to find out how to add a task to the board",
    ]),
    "one task of one and another": (["task | compare one to the other"], [
        "Create a task to compare one to the other",
    ]),
    "one task of things that are called so": (["task | compare one to one and many to many"], [
        "Add a task to compare one to one and many to many",
    ]),
    "several tasks, one of them given away": (["task | bob | write docs", "task | fix tests"], [
        "Create a task to write docs and assign it to bob, and a task to fix tests",
    ]),
    "a comma in a quote": (["task | write docs, and ship", "task | fix tests", "task | rest"], [
        'Create three tasks: "write docs, and ship", "fix tests" and rest',
    ]),
    "a task that ends politely": (["task | say please"], ["Create a task: say please"]),
    "tell what ends politely": (["send_message | bob | create a file b.txt containing yes please"], [
        "Tell bob: create a file b.txt containing yes please",
    ]),
    "give what ends politely": (["give | bob | create a file b.txt containing yes please"], [
        "Have bob create a file b.txt containing yes please", "bob: create a file b.txt containing yes please",
    ]),
    "give politely": (["give | bob | run the tests"], [
        "Have bob run the tests please", "Ask bob to run the tests, please",
    ]),
    "message one who is said to be an agent": (["send_message | bob | hello"], [
        "Tell agent bob: hello", "Message agent bob: hello", "Tell the agent bob: hello", "Message teammate bob: hello",
    ]),
    "give work to one who is said to be an agent": (["give | bob | create a file"], [
        "Tell teammate bob to create a file", "Ask agent bob to create a file",
    ]),
    "delete the team, before a turn of speech": (["delete_team", "??"], ["Delete the team. Call it a day."]),
    "stop some": (["stop | alice, bob and carol"], ["Stop alice, bob and carol", "Shut alice, bob and carol down"]),
    "stop some of a kind": (["stop | the reviewer and the tester"], ["Stop the reviewer and the tester"]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("meant", "text"),
    [(meant, text) for meant, texts in WISHES.values() for text in texts],
    ids=lambda one: str(one)[:60],
)
def test_a_wish_is_understood_in_other_words(meant: list[str], text: str) -> None:
    assert orders(text) == meant


NOT_OBEYED = [
    "Wait until I say go. 1. stop bob 2. delete the team", "Please wait for bob. Then delete the team.",
    "Stand by until noon, then shut everyone down", "Ask me whether to go on, then delete the team",
    "are we done? then delete the team", "Is everyone idle? Then stop everyone.", "Is bob finished yet? Then stop him.",
    "has bob written the file already? then delete the team", "Are all agents stopped? Delete the team.",
    "hire eve to write a.txt. Her plan is for me to look at.", "Plan first.", "She needs approval.",
    "1. hire ann 2. do not delete the team 3. shut bob down", "dave: write a.txt. Delete the team. Hire bob.",
    "Things that I hate: 1. stop bob 2. delete the team", "Make the moss greener. Delete the team.",
    "make the moss greener, then stop bob", "put the docs on the wiki",
    "stop the idle agents", "we're finished, everyone can stop", "Bob's plan is too long", "don't delete anything yet",
    "alice and bob may go home", "Do not stop all agents",
    "Don't shut everyone down.", "Never delete the team", "Please do not delete the team.",
    "Stop all agents except bob", "Stop all agents. Except bob.", "Stop all agents, but not bob",
    "Stop all agents if the tests fail", "Stop all agents unless they are busy", "Stop all agents when they are done",
    "Stop alice when done", "Shut alice down once she is finished", "Shut everyone down at the end",
    "Stop bob afterwards", "alice: run the tests\nDo not hire", "Yes, please delete the team.",
    "Should I stop all agents?", "Why did you stop all agents?", "How do I shut everyone down?",
    "What happens if I stop all agents?", "If bob fails, stop all agents.", "Once alice is done, stop all agents",
    "Delete the team when bob tells you to", "Delete the team tomorrow", "When alice is done, delete the team",
    "Delete the team's files",
    "Shut everyone down? No.", "Please do not\nstop all agents", "Do not, then, stop all agents",
    "When it is done, stop all agents", "Let none of them stop all agents",
    "Stop some agents", "Stop it.", "Shut them down", "Assign it to a test agent.", "Shut down", "leave",
    "she should leave",
    "All finished agents should leave", "Everyone stop if the tests fail", "No one should stop", "pause the tester",
    "start the tester", "use the reviewer", "run two tests", "hire six testers", "spawn several coders",
    "hire no testers", "hire 100 coders", "three testers", "kick off the build",
    "make a test report",
    "Hire a coder Monday", "I need a tester Monday", "Hire a coder Tomorrow", "I need a tester Later",
    "Hire a coder Tonight", "I need a tester Only",
    "add a test called foo", "create a plan called X", "create a reviewer checklist", "I want team status",
    "make it work", "add an agent to the project", "add an agent to the team", "use a planner for this",
    "Use a planner for that, please", "hire a coder for it today", "bob (coder) for this",
    "dave, delete the team", "alice, bob and carol may go home", "alice, bob, stop", "Yes, delete the team",
    "Monday, run the tests", "make the file alice", "add alice", "Who is the reviewer agent?", "run a background test",
    "Do not use the explore agent to list all files", "we're done? delete the team",
    "start the team lead", "note: run the tests", "Monday, please run the tests", "Steps: run the tests",
    "shopper: run the tests. Delete the team.", "shopper: do this:\n- stop bob",
    "I don't want a team called demo", "hire no one",
    'hire an explorer "ann" named bob',
    "Create tasks for alice and bob", "Add three tasks: write docs, fix tests", "Create tasks A and B but not C",
    "Create tasks A and B and assign them to alice", "Create tasks and agents",
    "Stop the idle agents", "Stop all tests", "Stop all agents to see who does not answer", "Do not list the team",
    'Do not broadcast "x" to all teammates', "Don't check the inbox", "Check bob's inbox",
    "Do not spawn an explore agent named scanner to list all Python files", "Do not create a team called demo",
    "Do not send a message to reviewer asking for a summary", "Don't have Alice create a file, then shut her down",
    'Don\'t create a task "Write unit tests" and assign it to a test agent', "Spawn alice. No, wait.",
    "tell everyone but bob to stop", "tell everyone except carol to run the tests",
    "message all without bob: run the tests",
    "tell all agents apart from carol: hello", 'broadcast to everyone but dave "phase 2"',
    "Tell everyone to stop, except bob",
    "write everyone aside from dave that lunch is ready", "everyone but bob should know that lunch is ready",
    "broadcast hello to everyone but bob", "let all agents other than bob know that lunch is ready",
    "Wait for bob and then run the tests", "Wait until I say go, then run the tests",
    "Hold on until noon. Run the tests.", "Read README.md and delete calc.py",
    "Read README.md and do not tell anyone",
    "Could you get an explore agent, scout, going in the background to look at shop/till.py?",
    'Get an explore agent named "reviewer" going in the background: analyze the agent loop in s01.',
]  # fmt: skip


@pytest.mark.parametrize("text", NOT_OBEYED, ids=lambda text: text[:60])
def test_what_is_forbidden_or_limited_is_not_obeyed(text: str) -> None:
    assert not any(one.is_known for one in understand(text, lead=True, members=TEAM))


def test_an_agent_greets_another_by_mail() -> None:
    (order,) = understand("say hello to bob", lead=False)
    assert order.is_known
    assert ([step.tool for step in order.phrase.steps], order.name) == (["send_message"], "bob")


@pytest.mark.parametrize("condition", ["but only after I approved it", "but has to show a plan first", ", not now"])
def test_a_condition_behind_a_quote_is_no_part_of_a_file(condition: str) -> None:
    said = f"Write a file named x.txt that says 'x' {condition}"
    assert not any(each.is_known for each in understand(said, lead=False))


@pytest.mark.parametrize(
    ("item", "end"),
    [("x y, ", "but not z"), ('"a", ', "but not z"), ("x and ", "(not z)"), ('"a" ', ""), ("x y, ", "z")],
)
def test_what_is_behind_each_item_of_a_long_list_is_not_read_again(
    monkeypatch: pytest.MonkeyPatch, item: str, end: str
) -> None:
    tried = 0
    match = phrasebook._match_bare

    def counted(bare: str, clause: str, *, lead: bool) -> Order | None:
        nonlocal tried
        tried += len(bare)
        return match(bare, clause, lead=lead)

    monkeypatch.setattr(phrasebook, "_match_bare", counted)
    text = f"Add tasks {item * (8000 // len(item))}{end}"
    understand.cache_clear()
    understand(text, lead=True)
    assert 0 < tried < 8 * len(text)
