"""The web for an agent: tools that the API itself runs, and the domains on which an agent may use them.

Requests offer them for agents that have the web (`--web`). The worker runs nothing and opens no connection for them:
the API searches and fetches. Its blocks are kept in the journal, and sent back unchanged.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from crewboard.errors import UsageError
from crewboard.records.base import counted

SEARCH, FETCH = TOOLS = ("web_search", "web_fetch")

MAX_USES = 10
"""Most searches, and most fetches of pages, in one request to the API."""

MAX_PAGE_TOKENS = 20_000
"""Most tokens of a fetched page that enter the conversation: as many as the longest result of crewboard's own tools
has.
"""

_DOMAIN = re.compile(r"[a-z0-9-]+(?:\.[a-z0-9-]+)+")
_NOT_PUBLIC = re.compile(r".*\.(?:\d+|localhost)")
_PATH = re.compile(r"(?:/[\w.~-]+)*/?", re.ASCII)
_LONGEST = 253


def tools(domains: Sequence[str]) -> list[dict[str, Any]]:
    """Return the definitions of the tools for the Messages API, limited to `domains` if there are any.

    Both are the newest versions that need no beta header. Only the model may call them (`direct`); otherwise the API
    would also run code that calls them. The API fetches a page only if its address was in a message or in a result from
    the web, because a result of crewboard's own tools could contain an address that carries data out.
    """
    limit = {"allowed_domains": [*domains]} if domains else {}
    direct = {"allowed_callers": ["direct"], "max_uses": MAX_USES}
    fetch = {
        "citations": {"enabled": True},
        "max_content_tokens": MAX_PAGE_TOKENS,
        "url_sources": {"client_tool_results": {"type": "none"}},
    }
    return [
        {"type": "web_search_20260318", "name": SEARCH, **direct, **limit},
        {"type": "web_fetch_20260318", "name": FETCH, **direct, **limit, **fetch},
    ]


def check_domains(domains: Iterable[str]) -> list[str]:
    """Return domains as the API takes them, each once: a host in lower case, with its path if it has one.

    Raises:
        UsageError: One of them is not a domain.
    """
    found = []
    for domain in domains:
        host, slash, path = domain.strip().partition("/")
        host = host.lower()
        is_domain = _DOMAIN.fullmatch(host) and not _NOT_PUBLIC.fullmatch(host)
        if not is_domain or not _PATH.fullmatch(slash + path) or ".." in path or len(domain) > _LONGEST:
            raise UsageError(
                f"{domain!r} is not a domain: write it as docs.python.org or example.com/docs, without https://"
            )
        found.append(host + slash + path.rstrip("/") if path else host)
    return list(dict.fromkeys(found))


def parse_domains(text: str) -> list[str]:
    """Return the domains in a text, which are separated by commas or spaces; empty if the text names none.

    Raises:
        UsageError: One of them is not a domain.
    """
    return check_domains(re.split(r"[,\s]+", text.strip(" ,\t"))) if text.strip(" ,\t") else []


def narrow(asked: Sequence[str], limit: Sequence[str]) -> list[str] | None:
    """Return the domains that both lists allow; None if there is none. An empty list allows all domains."""
    if not asked or not limit:
        return [*(asked or limit)]
    inside = [domain for domain in asked if any(_covers(outer, domain) for outer in limit)]
    inside += [domain for domain in limit if any(_covers(outer, domain) for outer in asked)]
    return list(dict.fromkeys(inside)) or None


def _covers(outer: str, inner: str) -> bool:
    """Return True if the domain `inner` is `outer`, a subdomain of it, or a path below it."""
    (host, _, path), (inner_host, _, inner_path) = outer.partition("/"), inner.partition("/")
    same_host = inner_host == host or inner_host.endswith(f".{host}")
    return same_host and (not path or inner_path == path or inner_path.startswith(f"{path}/"))


def describe_use(name: str, given: Mapping[str, Any]) -> str | None:
    """Return a call of a web tool on one line; None for another tool. `given` are its arguments."""
    if name == SEARCH:
        return f'web search "{given.get("query", "")}"'
    return f"web fetch {given.get('url', '')}" if name == FETCH else None


def describe_result(block: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the result of a search or a fetch in a few words and in full; None for another block or a failure."""
    found = block.get("content")
    if block.get("type") == f"{SEARCH}_tool_result" and isinstance(found, list):
        pages = [page for page in found if isinstance(page, dict)]
        return counted(len(pages), "result"), "\n".join(_line(page.get("title"), page.get("url")) for page in pages)
    if block.get("type") == f"{FETCH}_tool_result" and isinstance(found, dict) and "url" in found:
        page = _part(found, "content")
        source = _part(page, "source")
        text = str(source.get("data", "")) if source.get("type") == "text" else f"({source.get('media_type')})"
        return str(page.get("title") or "done"), f"{_line(page.get('title'), found['url'])}\n{text}"
    return None


def sources(content: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the sources that the texts of a reply cite, title and address on one line, each once."""
    blocks = [*content]
    results = [_part(block, "content") for block in blocks if block.get("type") == f"{FETCH}_tool_result"]
    # A quotation from a page has the page's title, and not its address.
    addresses = {_part(found, "content").get("title"): found.get("url") for found in results}
    named = []
    for block in blocks:
        cited = block.get("citations")
        for each in cited if isinstance(cited, list) else ():
            if isinstance(each, dict):
                title = each.get("title") or each.get("document_title")
                named.append(_line(title, each.get("url") or addresses.get(title)) or str(each.get("type")))
    return list(dict.fromkeys(named))


_SOURCES = "\n\nSources:\n- "


def with_sources(text: str, named: Sequence[str]) -> str:
    """Return a text followed by a list of its sources; the text alone if there are none."""
    return text + _SOURCES + "\n- ".join(named) if named else text


def repeats(answer: str, said: str) -> bool:
    """Return True if an answer, without its sources, ends with `said`, the text that was said last.

    False if `said` is blank.
    """
    return bool(said.strip()) and (answer.rpartition(_SOURCES)[0] or answer).rstrip().endswith(said.strip())


def _part(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = of.get(name)
    return part if isinstance(part, dict) else {}


def _line(*words: object) -> str:
    return " ".join(" ".join(str(word).split()) for word in words if word)
