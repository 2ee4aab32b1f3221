"""Changes one place of the sources. A place is a label in a comment, or a function; its file does
not matter.

  [poke.release]   the statement below the comment that has this label, or the one on the
                   comment's line
  Lock::close      the body of this function, or without the class, of all functions with this name
  Lock             the body of this class
  (nothing)        all sources
A label may stand at several statements, such as both partners of an order. The text tells which one
is meant: in all of them it must be there once.
"""

import functools
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

COMMENT = r"(?://(?:\\\n|[^\n])*|/\*.*?\*/)"
TOKEN = re.compile(
    rf"(?P<comment>{COMMENT})|\"(?:\\.|[^\"\\\n])*\"|(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])*'",
    re.DOTALL,
)
# What may stand between a function's parameters and its body.
QUALIFIERS = re.compile(
    r"\s*((const|noexcept|override|final)\b\s*)*"
    r"(->[^;{}]*|:(?!:)(?:\w\{[^{}]*\}|[^;{}])*)?"
    r"(__attribute__\(\([^()]*\)\)\s*)?"
)
CLASS = re.compile(
    r"\b(?:class|struct)\s+(?:alignas\([^()]*\)\s*)?(\w+)(?:\s+final)?\s*(?::[^;{}()]*)?\{"
)


class Broken(Exception):
    """A test that could not be made."""


@dataclass(frozen=True)
class Edit:
    """In `text`, `..` stands for anything but a semicolon, and in the replacement for the same.
    Spaces do not matter."""

    place: str
    text: str
    replacement: str
    every: bool = False  # all occurrences in one place, not the only one


def swap(place: str, text: str, replacement: str) -> Edit:
    return Edit(place, text, replacement)


def gone(place: str, text: str) -> Edit:
    return Edit(place, text, "")


def relaxed(place: str, order: str) -> Edit:
    return Edit(place, f"memory_order_{order}", "memory_order_relaxed", every=True)


Spot = tuple[int, int]  # begin and end in a file's text


@functools.lru_cache(maxsize=1000)
def code_of(text: str) -> str:
    """The same with comments and literals blank."""
    return TOKEN.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)


def end_of(code: str, at: int) -> int:
    """Behind the bracket that closes the one at `at`."""
    depth = 0
    for bracket in re.compile(r"[(){}\[\]]").finditer(code, at):
        depth += 1 if bracket[0] in "({[" else -1
        if depth == 0:
            return bracket.end()
    return len(code)


def statement_from(code: str, at: int) -> tuple[int, int]:
    """The statement that begins at `at` or later, up to its `;` or `{`."""
    begin = at + len(code[at:]) - len(code[at:].lstrip())
    depth = 0
    for mark in re.compile(r"[();{}]").finditer(code, begin):
        depth += {"(": 1, ")": -1}.get(mark[0], 0)
        if depth <= 0 and mark[0] in ";{}":
            return begin, mark.end()
    return begin, len(code)


def statement_to(code: str, at: int) -> tuple[int, int]:
    """The last statement that begins before `at`."""
    end = len(code[:at].rstrip())
    begin, depth = end - 1, 0
    while begin > 0 and (depth > 0 or code[begin - 1] not in ";{}"):
        begin -= 1
        depth += {")": 1, "(": -1}.get(code[begin], 0)
    return begin, end


def labeled(label: str, text: str) -> Iterator[Spot]:
    code = code_of(text)
    # Lines of comments below each other are one comment.
    for comment in re.finditer(rf"{COMMENT}(?:\s*//[^\n]*)*", text, re.DOTALL):
        if label not in comment[0]:
            continue
        line = text.rfind("\n", 0, comment.start()) + 1
        if code[line : comment.start()].strip():
            first = comment[0].split("\n")[0]  # what stands below belongs to the next statement
            if label in first:
                yield statement_to(code, comment.start())
                continue
        yield statement_from(code, comment.end())


def named(name: str, text: str) -> Iterator[Spot]:
    code = code_of(text)
    within, _, bare = name.rpartition("::")
    for found in CLASS.finditer(code):
        if found[1] == name:
            yield found.end(), end_of(code, found.end() - 1) - 1
    for found in re.finditer(rf"(?:\b(\w+)(?:<[^<>;]*>)?::)?(?<!\w){re.escape(bare)}\s*\(", code):
        after = end_of(code, found.end() - 1)
        qualifiers = QUALIFIERS.match(code, after)
        assert qualifiers
        body = qualifiers.end()
        if code[body : body + 1] != "{":
            continue
        if within and within != (found[1] or class_around(code, found.start())):
            continue
        yield body + 1, end_of(code, body) - 1


def class_around(code: str, at: int) -> str:
    around = ""
    for found in CLASS.finditer(code, 0, at):
        if end_of(code, found.end() - 1) > at:
            around = found[1]
    return around


@functools.lru_cache(maxsize=10000)
def spots(place: str, text: str) -> tuple[Spot, ...]:
    if not place:
        return ((0, len(text)),)
    if place.startswith("["):
        return tuple(labeled(place, text)) if place in text else ()
    return tuple(named(place, text)) if place.rpartition("::")[2] in text else ()


def pattern_of(text: str) -> re.Pattern[str]:
    pieces = []
    for piece in text.split(".."):
        tokens = re.findall(r"\w+|[^\w\s]", piece)
        pieces.append(r"\s*".join(re.escape(token) for token in tokens))
    first, last = text.lstrip()[:1], text.rstrip()[-1:]
    begin = r"(?<!\w)" if re.match(r"\w", first) else ""
    end = r"(?!\w)" if re.match(r"\w", last) else ""
    return re.compile(begin + r"\s*([^;]*?)\s*".join(pieces) + end)


def change(edit: Edit, texts: dict[str, str]) -> None:
    """Changes one of the texts, which are named by their files."""
    found = [(path, spot) for path, text in texts.items() for spot in spots(edit.place, text)]
    if not found:
        raise Broken(f"the sources have no {edit.place}")
    pattern, words = pattern_of(edit.text), re.findall(r"\w+", edit.text)
    matches: dict[tuple[str, int], tuple[re.Match[str], Spot]] = {}
    for path, spot in found:
        if all(word in texts[path] for word in words):  # only to save time
            for match in pattern.finditer(code_of(texts[path]), *spot):
                matches[path, match.start()] = (match, spot)
    places = (
        len({(path, spot) for (path, _), (_, spot) in matches.items()})
        if edit.every
        else len(matches)
    )
    if places != 1:
        where = f"{edit.place} has" if edit.place else "the sources have"
        raise Broken(f"{where} this {places} times, not once: {edit.text}")
    for (path, _), (match, _) in sorted(matches.items(), reverse=True):
        text = texts[path]
        gaps = iter([text[slice(*match.span(i + 1))] for i in range(len(match.groups()))])
        replacement = re.sub(r"\.\.", lambda _: next(gaps), edit.replacement)
        texts[path] = text[: match.start()] + replacement + text[match.end() :]


SAMPLE = """
// Head: [list.push] and [look] are explained here.
namespace n {
class List {
 public:
  // release: publishes the link [list.push]. It takes
  // two lines.
  void push(Node* n) { head.store(n, std::memory_order_release); }
  Node* pop() const noexcept {
    // acquire: pairs with [list.push].
    if (is_empty()) return nullptr;
    Node* n = head.load(std::memory_order_acquire);  // [look]
    work([&] { first(); second(n); });
    return n;
  }
};
struct Other final : Base<List> {
  explicit Other(int x) : x_(x), y_{1} { push(x); }
  void push(int x) { x_.store(x, std::memory_order_release), y_ = "push() { ; } // [look]"; }
};
template <class P>
auto Third<P>::push() -> int {
  for (int i = 0; i < 3; ++i) step(i);
  if (List list; list.push(nullptr)) { other(); }
}
}
"""
# The edit, and what stands in the sample afterwards in place of what; None: the edit must be
# refused.
CASES: tuple[tuple[Edit, tuple[str, str] | None], ...] = (
    (
        gone("List::push", "head.store(..);"),
        ("{ head.store(n, std::memory_order_release); }", "{  }"),
    ),
    (
        relaxed("List::push", "release"),
        ("store(n, std::memory_order_release", "store(n, std::memory_order_relaxed"),
    ),
    (
        relaxed("Other::push", "release"),
        ("store(x, std::memory_order_release", "store(x, std::memory_order_relaxed"),
    ),
    (swap("push", "y_ = ..;", "y_ = 2;"), ('y_ = "push() { ; } // [look]";', "y_ = 2;")),
    (swap("Third::push", "step(..)", "step(.. + 1)"), ("step(i)", "step(i + 1)")),
    (swap("Other::Other", "push(x)", "pop()"), ("{ push(x); }", "{ pop(); }")),
    (
        swap("[look]", "=..;", "= ..+ 1;"),
        ("(std::memory_order_acquire);", "(std::memory_order_acquire)+ 1;"),
    ),
    (swap("[list.push]", "return nullptr", "return this"), ("return nullptr", "return this")),
    (swap("Other", "x_(x)", "x_(0)"), ("x_(x)", "x_(0)")),
    (swap("", "first ( )", "last()"), ("first()", "last()")),
    (relaxed("push", "release"), None),  # in two functions
    (gone("List::pop", "n"), None),  # three times
    (gone("[list.push]", "other();"), None),  # elsewhere
    (gone("[look]", "work(..);"), None),  # the next statement
    (gone("[list.pop]", "return"), None),  # no such label
    (gone("List::push_all", "return"), None),  # no such function
    (gone("other", "return"), None),  # is only called
    (gone("", "head.store(..)if"), None),  # a gap has no semicolon
    (gone("", "Head"), None),  # a comment
)


def self_test() -> int:
    failed = 0
    for edit, want in CASES:
        texts = {"sample.h": SAMPLE}
        try:
            change(edit, texts)
        except Broken as why:
            got = str(why)
            good = want is None and texts["sample.h"] == SAMPLE
        else:
            got = texts["sample.h"]
            good = want is not None and SAMPLE.count(want[0]) == 1 and got == SAMPLE.replace(*want)
        if not good:
            failed += 1
            print(f"FAILED {edit}: {got}")
    print(f"{len(CASES) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(self_test())
