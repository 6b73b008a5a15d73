"""The command line: python3 -m inkpot add | recent | find | remove."""

import argparse
from pathlib import Path

from inkpot.render import line, listing
from inkpot.search import find
from inkpot.store import NoSuchNote, Store


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="inkpot", description="Notes as plain files.")
    parser.add_argument("--folder", type=Path, default=Path("notes"))
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("add", help="keep a new note").add_argument("text")
    commands.add_parser("find", help="search by words and #tags").add_argument("query")
    commands.add_parser("remove", help="delete a note for good").add_argument("number", type=int)
    commands.add_parser("recent", help="the newest notes").add_argument("--limit", type=int, default=10)
    return parser


def main() -> str:
    """Run one command and return its output."""
    args = _parser().parse_args()
    store = Store(args.folder)
    if args.command == "add":
        return line(store.add(args.text))
    if args.command == "find":
        return listing(find(store.recent(limit=10_000), args.query))
    if args.command == "remove":
        try:
            store.remove(args.number)
        except NoSuchNote:
            raise SystemExit(f"there is no note {args.number}") from None
        return f"removed note {args.number}"
    return listing(store.recent(args.limit))


if __name__ == "__main__":
    print(main())
