# SPDX-License-Identifier: MIT
"""glossary.py: the words of docs/glossary.md, and the links to them at their first use.

Interface:
- terms(text): {anchor: term} of a glossary; a term is a heading of the third level.
- problems(text): what is wrong with a glossary itself, one sentence each.
- link_first_uses(page, glossary, where): the page with each term linked where prose uses it first,
  and nowhere else; where: the glossary's path as the page sees it. Code, formulas, tables, headings
  and other links are left alone.
"""
import re

# What is no prose: fenced code, what the docs tool has inserted, comments, tables, headings,
# formulas, inline code, links, the names of files.
NO_PROSE = re.compile(
    r"^```.*?^```|^ +```.*?^ +```|(?<=\n\n) {4}[^\n]*(?:\n {4}[^\n]*)*"
    r"|<!-- (\w+): .*?<!-- /\1 -->|<!--.*?-->|^\|[^\n]*$|^#[^\n]*$"
    r"|\$\$.*?\$\$|\$[^$\n]+\$|`[^`\n]*`|!?\[[^\[\]\n]*\]\([^)\n]*\)|<[^>\n]*>", re.S | re.M)
LINK = re.compile(r"\[([^\[\]]*)\]\((?:\.\./)*glossary\.md#[^)\n]*\)")


def terms(text):
    found = {}
    for term in re.findall(r"^### (.+)$", text, re.M):
        found[re.sub(r"[^\w\- ]", "", term.lower()).replace(" ", "-")] = term
    return found


def problems(text):
    names = re.findall(r"^### (.+)$", text, re.M)
    lower = [name.lower() for name in names]
    found = [f"'{name}' stands there twice" for name in sorted(set(lower)) if lower.count(name) > 1]
    found += [f"'{b}' comes behind '{a}'" for a, b in zip(names, names[1:])
              if a.lower() > b.lower()]
    for name, body in re.findall(r"^### (.+)\n+((?:(?!### ).*\n?)*)", text, re.M):
        if not body.strip():
            found.append(f"'{name}' has no explanation")
    return found


def pattern(term):
    """The term as a word of its own, in the singular or the plural, at the start of a sentence or
    inside it; a line may end inside it."""
    words = r"\s+".join(map(re.escape, term.split()))
    first = f"[{term[0].lower()}{term[0].upper()}]" if term[0].isalpha() else re.escape(term[0])
    return re.compile(rf"(?<![\w.-]){first}{words[1:]}(?:s|es|ed)?(?![\w(-]|\.\w)")


def link_first_uses(page, glossary, where="glossary.md"):
    page = LINK.sub(r"\1", page)
    spans = [(m.start(), m.end()) for m in NO_PROSE.finditer(page)]
    taken = []  # (start, end, anchor) of what will be a link

    def free(start, end):
        return not any(a < end and start < b for a, b, *_ in spans + taken)

    # Longer terms first: "full tile" is not a use of "tile".
    for anchor, term in sorted(terms(glossary).items(), key=lambda item: -len(item[1])):
        match = next((m for m in pattern(term).finditer(page) if free(m.start(), m.end())), None)
        if match:
            taken.append((match.start(), match.end(), anchor))
    for start, end, anchor in sorted(taken, reverse=True):
        page = f"{page[:start]}[{page[start:end]}]({where}#{anchor}){page[end:]}"
    return page
