"""Rules that look: list files, list a directory, search, read, survey."""

import re
from collections.abc import Generator

from crewboard.offline import outputs
from crewboard.offline.ask import Ask, Steps, bullets, count, paths, quoted, refused, unquoted
from crewboard.offline.conversation import Call, Done

_ENDINGS = {
    "python": "py", "markdown": "md", "javascript": "js", "typescript": "ts", "rust": "rs", "go": "go",
    "toml": "toml", "yaml": "yaml", "json": "json", "text": "txt", "html": "html", "css": "css", "shell": "sh",
    "c": "c", "java": "java", "ruby": "rb",
}  # fmt: skip
_MOST_READ = 6
"""Files that one clause may make it read; more would fill a window without telling more."""

_DEFINED = re.compile(r"^(?:async\s+)?(class|def)\s+(\w+)")
_METHOD = re.compile(r"^\s+(?:async\s+)?def\s+\w+")


def list_files(ask: Ask) -> Steps | None:
    """List all Python files."""
    wanted = r"\b(list|find|show|give|count|which|what|how many|name)\b.*\b(files|modules|scripts|documents)\b"
    if "*" not in ask.text and (ask.has(r"\blines?\b") or any("." in path for path in paths(ask.text))):
        return None
    plain = ask.about(unquoted(ask.text))
    if not plain.has(wanted) and not (plain.has(r"(?<![.\w])(list|find|glob|show)\b") and "*" in ask.text):
        return None
    return _list_files(_pattern(ask), _folder(ask))


def _pattern(ask: Ask) -> str:
    explicit = re.search(r"[\w./-]*\*[\w.*/-]*", ask.text)
    if explicit:
        return explicit[0].rstrip(".")
    named = ask.match(r"\b(?:named|called)\s+[`'\"]?([\w.-]+)")
    if named:
        return f"**/*{named[1].rstrip('.')}*"
    ending = re.search(r"(?<![\w/])\.([a-z]\w{0,5})\s+files?\b", ask.low)
    if ending:
        return f"**/*.{ending[1]}"
    if ask.has(r"\btest\s+files?\b"):
        return "**/test*"
    words = re.findall(r"\b([a-z]+)\s+(?:source\s+)?(?:files?|modules|scripts|documents)\b", ask.low)
    return next((f"**/*.{_ENDINGS[word]}" for word in words if word in _ENDINGS), "**/*")


def _folder(ask: Ask) -> str | None:
    where = re.search(
        r"\b(?:in|under|below|inside)\s+(?:the\s+)?[`'\"]?([\w./-]*/[\w./-]*|[\w-]+(?=\s+(?:folder|directory)))",
        ask.text,
    )
    return where[1].rstrip("/.") or None if where else None


def _list_files(pattern: str, folder: str | None) -> Steps:
    where = {"path": folder} if folder else {}
    done = yield Call("glob", {"pattern": pattern, **where}, say=f"Looking for {pattern}.")
    if not done.ok:
        return refused("glob", done)
    files = outputs.paths(done.text)
    place = f" in {folder}" if folder else ""
    if not files:
        return f"No file{place} matches {pattern}."
    verb = "matches" if len(files) == 1 else "match"
    return f"{count(len(files), 'file')}{place} {verb} {pattern}:\n{bullets(files, 200)}"


def list_folder(ask: Ask) -> Steps | None:
    """List the directory src."""
    if not ask.has(r"\b(list|show|ls)\b.*\b(director(y|ies)|folders?|contents?)\b|\blist_dir\b|^ls\b"):
        return None
    named = paths(ask.text) or quoted(ask.text)
    folder = named[0].rstrip("/") if named else _folder(ask)
    return _list_folder(folder)


def _list_folder(folder: str | None) -> Steps:
    done = yield Call("list_dir", {"path": folder} if folder else {})
    if not done.ok:
        return refused("list_dir", done)
    entries = outputs.lines(done.text)
    if not entries:
        return f"{folder or 'The folder'} is empty."
    return f"{folder or 'The project folder'} holds {count(len(entries), 'entry')}:\n{bullets(entries)}"


def search(ask: Ask) -> Steps | None:
    """Search for TODO."""
    asked = ask.match(
        r"\b(?:grep|search|look|find)\b(?:\s+(?:through|in|the|all|every|code|codebase|project|files?|places?|lines?)\b)*"
        r"\s+(?:for|where|that (?:mention|contain|use)s?|containing|mentioning|uses? of|occurrences? of)\s+(.+)"
        r"|\bgrep\s+(?!for\b)(.+)"
        r"|\bwhere\s+is\s+(.+?)\s+(?:defined|used|called|set)\b"
    )
    if asked is None:
        return None
    rest = next(part for part in asked.groups() if part)
    marked = quoted(rest)
    wanted = marked[0] if marked else _search_word(rest)
    return _search(wanted, _folder(ask.about(unquoted(ask.text)))) if wanted else None


def _search_word(rest: str) -> str:
    kept = re.split(r"\s+(?:in|under|within|across|and|to)\s+", rest, maxsplit=1)[0]
    kept = re.sub(r"^(?:the|any|all|every)?\s*(?:words?|text|string|uses? of|occurrences? of)\s+", "", kept.strip())
    return re.escape(kept.strip(" .?!")).replace(r"\ ", " ").replace(r"\-", "-")


def _search(wanted: str, folder: str | None) -> Steps:
    where = {"path": folder} if folder else {}
    done = yield Call("grep", {"pattern": wanted, **where}, say=f"Searching for {wanted}.")
    if not done.ok:
        return refused("grep", done)
    hits = outputs.found(done.text)
    if not hits:
        return f"Nothing matches {wanted}" + (f" in {folder}." if folder else ".")
    files = {path for path, _, _ in hits}
    told = bullets([f"{path}:{number}: {line}" for path, number, line in hits], 30)
    return f"{count(len(hits), 'line')} in {count(len(files), 'file')} match {wanted}:\n{told}"


_PROJECT = r"\b(?:project|repo(?:sitory)?|code ?base|workspace|source tree)\b"
_LOOKS = (
    r"\b(?:survey|explore|overview|describe|summari[sz]e|analy[sz]e|what is|structure|map|look (?:around|at)|"
    r"inspect|understand|review|study)\b"
)


def survey(ask: Ask) -> Steps | None:
    """Survey the project."""
    asked = ask.has(rf"{_LOOKS}.*{_PROJECT}|{_PROJECT}.*{_LOOKS}") or ask.has(r"^\W*(?:survey|explore|look around)\b")
    return _survey() if asked and not paths(ask.text) else None


def _survey() -> Steps:
    listed = yield Call("list_dir", {}, say="First what lies here.")
    if not listed.ok:
        return refused("list_dir", listed)
    entries = outputs.lines(listed.text)
    globbed = yield Call("glob", {"pattern": "**/*.py"})
    files = outputs.paths(globbed.text) if globbed.ok else []
    told = [f"The project folder holds {', '.join(entries) or 'nothing'}."]
    told.append(f"{count(len(files), 'Python file')}:\n{bullets(files)}" if files else "There is no Python file.")
    readme = next((entry for entry in entries if entry.lower().startswith("readme")), None)
    if readme:
        done = yield Call("read_file", {"path": readme})
        told.append(describe(readme, done))
    return "\n\n".join(told)


def read(ask: Ask) -> Steps | None:
    """Read README.md and summarise it."""
    if not ask.has(
        r"\b(read|summari[sz]e|analy[sz]e|explain|describe|review|look (at|into)|inspect|open|show|check|cat|"
        r"what (does|is in|do)|how many lines|count|tell me about|study|understand|examine)\b"
    ):
        return None
    named = paths(ask.text)
    if named:
        return _read_all(named)
    module = ask.match(r"\b(?:the\s+)?[`'\"]?([\w.]+)[`'\"]?\s+(?:module|file|package|code|class)\b") or ask.match(
        r"\b(?:module|file|package|class)\s+[`'\"]?([\w.]+)"
    )
    if module is None or module[1].lower() in {"the", "this", "that", "source"}:
        return None
    return _read_any() if module[1].lower() in {"a", "an", "any", "one", "some"} else _read_module(module[1])


def _read_all(named: list[str]) -> Steps:
    told: list[str] = []
    for path in named[:_MOST_READ]:
        one = yield from _read_one(path)
        told.append(one)
    if len(named) > _MOST_READ:
        told.append(f"I read the first {_MOST_READ} only.")
    return "\n\n".join(told)


def _read_one(path: str) -> Steps:
    done = yield Call("read_file", {"path": path.rstrip("/")}, say=f"Reading {path}.")
    if done.ok or done.unavailable:
        return describe(path, done)
    # A bare name may lie deeper, and a folder is no file.
    stem = path.rstrip("/").rsplit("/", 1)[-1]
    pattern = f"{path.rstrip('/')}/**/*" if "." not in stem else f"**/{stem}"
    return (yield from _read_matching(pattern, describe(path, done)))


def _read_module(name: str) -> Steps:
    missing = f"I found no file whose name holds {name}."
    return (yield from _read_matching(f"**/*{name.rsplit('.', 1)[-1].lower()}*", missing))


def _read_any() -> Steps:
    """Where no module was named, the first that is no test."""
    done = yield Call("glob", {"pattern": "**/*.py"}, say="No module was named; looking for one.")
    if not done.ok:
        return refused("glob", done)
    files = outputs.paths(done.text)
    chosen = next((path for path in files if not re.search(r"(?:^|/)(?:test|__|conftest|setup\b)", path)), None)
    if chosen is None:
        return "No module was named, and I found none."
    read_file = yield Call("read_file", {"path": chosen})
    told = f"No module was named, so I took {chosen}, one of {count(len(files), 'Python file')}."
    return f"{told}\n{describe(chosen, read_file)}"


def _read_matching(pattern: str, otherwise: str) -> Steps:
    done = yield Call("glob", {"pattern": pattern}, say=f"Looking for {pattern}.")
    if not done.ok:
        return refused("glob", done)
    files = outputs.paths(done.text)
    if not files:
        return otherwise
    told = []
    for path in files[:_MOST_READ]:
        read_file = yield Call("read_file", {"path": path})
        told.append(describe(path, read_file))
    if len(files) > _MOST_READ:
        told.append(f"{len(files) - _MOST_READ} more match {pattern}; I did not read them.")
    return "\n\n".join(told)


def describe(path: str, done: Done) -> str:
    """What can be said of a file from what read_file gave."""
    if not done.ok:
        return refused("read_file", done) if done.unavailable else f"{path} could not be read: {done.text.strip()}"
    code = outputs.numbered(done.text)
    if not code:
        return f"{path} is empty." if not done.text.strip() else f"{path}: {done.text.strip()[:200]}"
    facts = [f"{path} has {count(outputs.last_number(done.text), 'line')}."]
    facts += _about_python(code) if path.endswith(".py") else _about_text(code)
    return " ".join(facts)


def _about_python(code: list[str]) -> Generator[str, None, None]:
    doc = next((line.strip().strip('"').strip() for line in code if line.startswith(('"""', "'''"))), "")
    if doc:
        yield f"It says of itself: “{doc}”"
    defined = [match for match in map(_DEFINED.match, code) if match]
    for word, noun in (("class", "class"), ("def", "function")):
        names = [match[2] for match in defined if match[1] == word]
        if names:
            yield f"It defines {count(len(names), noun)}: {', '.join(names)}."
    methods = sum(1 for line in code if _METHOD.match(line))
    if methods:
        yield f"Its classes have {count(methods, 'method')}."


def _about_text(code: list[str]) -> Generator[str, None, None]:
    headings = [line.lstrip("#").strip() for line in code if line.startswith("#")]
    if headings:
        yield f"Its headings: {', '.join(headings[:12])}."
    plain = next((line.strip() for line in code if line.strip() and not line.startswith("#")), "")
    if plain:
        yield f"It begins: “{plain}”"
