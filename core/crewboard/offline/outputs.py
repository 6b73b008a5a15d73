"""Reading the tools' plain text: what a rule answers is taken from here, never made up."""

import re

_EXIT = re.compile(r"^\[?\s*exit(?:ed)?(?:\s+(?:with|code|status))*\D{0,3}(-?\d+)\s*\]?\.?$", re.IGNORECASE)
_NUMBERED = re.compile(r"^\s*(\d+)\t(.*)$")
_FOUND = re.compile(r"^(.+?):(\d+):(.*)$")
_REJECTED = re.compile(r"\b(reject|denied|declin|not approved|turned down)", re.IGNORECASE)
_FEEDBACK = re.compile(r"feedback:?\s*(.+?)\s*(?:\nRevise it and submit it again\.?\s*)?\Z", re.IGNORECASE | re.DOTALL)
_ANSWER = re.compile(r"\s*the operator answers:\s*", re.IGNORECASE)
_FAILED_TEST = re.compile(r"^(?:FAIL|ERROR|FAILED)[:\s]\s*([^\s(]\S*)", re.MULTILINE)
_TALLY = re.compile(r"^(?:Ran \d+ tests?|=* ?\d+ (?:passed|failed|error)|OK\b|FAILED \()")


def lines(text: str) -> list[str]:
    """The lines that are not blank."""
    return [line for line in text.splitlines() if line.strip()]


def exit_code(text: str) -> int | None:
    """The exit code that a command's output ends with, if it says one."""
    last = lines(text)[-1:]
    found = _EXIT.match(last[0].strip()) if last else None
    return int(found[1]) if found else None


def body(text: str) -> list[str]:
    """A command's own lines, without the one about its exit."""
    kept = lines(text)
    return kept[:-1] if exit_code(text) is not None else kept


def tail(text: str, count: int = 8) -> str:
    """The last lines of a command's own output."""
    return "\n".join(body(text)[-count:])


def failed_tests(text: str) -> list[str]:
    """Names of the tests that failed, once each."""
    return list(dict.fromkeys(_FAILED_TEST.findall("\n".join(body(text)))))


def tally(text: str) -> str:
    """What a test runner says at its end, on one line."""
    return ", ".join(line.strip(" =") for line in body(text) if _TALLY.match(line))


def numbered(text: str) -> list[str]:
    """The lines of a file out of read_file's output."""
    return [found[2] for line in text.splitlines() if (found := _NUMBERED.match(line))]


def last_number(text: str) -> int:
    """The number of the last line that read_file gave."""
    numbers = [int(found[1]) for line in text.splitlines() if (found := _NUMBERED.match(line))]
    return numbers[-1] if numbers else 0


def paths(text: str) -> list[str]:
    """One path a line; remarks such as "no files" or "[cut]" are none."""
    return [
        line.strip() for line in lines(text) if not re.match(r"[(\[]|no \w+ |nothing ", line.strip(), re.IGNORECASE)
    ]


def found(text: str) -> list[tuple[str, int, str]]:
    """What grep found: path, line number, line."""
    hits = (_FOUND.match(line) for line in text.splitlines())
    return [(hit[1], int(hit[2]), hit[3].strip()) for hit in hits if hit]


def rejected(text: str) -> bool:
    """Whether the answer to a plan was no."""
    return bool(_REJECTED.search(text.split("\n", 1)[0]))


def answer(text: str) -> str:
    """What the operator answered to a question, word for word."""
    return _ANSWER.sub("", text, count=1).strip()


def feedback(text: str) -> str:
    """What was said with a decision, word for word."""
    said = _FEEDBACK.search(text)
    return (said[1] if said else text.partition(":")[2] or text).strip()
