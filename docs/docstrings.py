"""Docstrings of the site, in full: an entry "As in :func:`x`." becomes the entry of x.

The sources document a parameter once. A page of the site documents all parameters of its function.
"""

import inspect
import re
from itertools import groupby

import nmfscale

OF_ENTRIES = ("Parameters", "Attributes", "Returns", "Raises", "Warns")
# After a comma or colon, the rest of the sentence says in short what x says in full.
AS_IN = re.compile(r"As in :\w+:`~?([\w.]+)`(?:[.;]|[,:].*?\.)(?: (.+))?$")
SCOPES = ("nmfscale", *(f"nmfscale.{name}" for name in ("pl", "tl", "get", "likelihood")))


def in_full(name):
    """Return the lines of the docstring of a public name, such as "nmfscale.LDA.fit"."""
    sections = sections_of(inspect.getdoc(thing_at(name)) or "")
    cited = {}
    for title in OF_ENTRIES:
        if title in sections:
            entries = [
                entry
                for head, text in entries_of(sections[title])
                for entry in entries_in_full(name, title, head, text, cited)
            ]
            sections[title] = [line for head, text in entries for line in [head, *text]] + [""]
    cite(sections, cited)
    lines = sections.pop("")
    for title, body in sections.items():
        lines += [title, "-" * len(title), *body]
    return lines


def thing_at(name):
    """Return what a dotted name of the package refers to."""
    thing = nmfscale
    for part in name.split(".")[1:]:
        thing = getattr(thing, part)
    return thing


def sections_of(docstring):
    """Return the lines below each title; the first ones have no title."""
    sections = {"": (lines := [])}
    for line in docstring.splitlines():
        if lines and line and line == "-" * len(lines[-1]):
            sections[lines.pop()] = lines = []
        else:
            lines.append(line)
    return sections


def entries_of(lines):
    """Return (head, lines of text) for each entry of a section; lines above the first are one."""
    entries = []
    for line in lines:
        if line and not line.startswith(" "):
            entries.append((line, []))
        elif entries:
            entries[-1][1].append(line)
    while entries and entries[-1][1] and not entries[-1][1][-1]:
        entries[-1][1].pop()
    return entries


def entries_in_full(name, title, head, text, cited):
    """Return the entries that a head with these lines stands for."""
    found = AS_IN.match(" ".join(line.strip() for line in text))
    if found is None:
        return [(head, text)]
    source = named_from(name, found[1])
    sections = sections_of("\n".join(in_full(source)))
    try:
        entries = matching(title, head, entries_of(sections.get(title, [])))
    except LookupError as error:
        raise LookupError(f"{name} refers to {source}, which does not document {error}") from error
    references = references_of(sections)
    renumbered = []
    for other, lines in entries:
        numbers = {int(number) for line in lines for number in re.findall(r"\[(\d+)\]_", line)}
        cited.update({(source, number): references[number] for number in numbers})
        renumbered.append((other, [re.sub(r"\[(\d+)\]_", rf"[{source} \1]_", t) for t in lines]))
    if found[2]:
        last = renumbered[-1][1]
        last += ["", f"    {found[2][0].upper()}{found[2][1:]}"]
    return renumbered


def named_from(name, written):
    """Return the full name of what the docstring of `name` writes in short."""
    parts = name.split(".")[:-1]
    around = [".".join(parts[:end]) for end in range(len(parts), 0, -1)]
    if written.startswith("nmfscale."):
        around, written = [], written.removeprefix("nmfscale.")
    for scope in [*around, *SCOPES]:
        full = f"{scope}.{written}"
        try:
            thing_at(full)
        except AttributeError:
            continue
        return full
    raise LookupError(f"{name} refers to {written}, which is no public name")


def matching(title, head, entries):
    """Return those of the entries that a head names, with the type that it gives."""
    if title == "Returns":
        return [(head, text) for _, text in entries[:1]]
    names, _, kind = head.partition(" : ")
    found = []
    for name in names.split(", "):
        same = [
            (others.partition(" : ")[2], text)
            for others, text in entries
            if name.strip("*") in re.split(r", \**|^\*+", others.partition(" : ")[0])
        ]
        if not same:
            raise LookupError(name)
        found += [(name, kind or other, text) for other, text in same]
    merged = []
    for (kind, text), same in groupby(found, key=lambda entry: entry[1:]):
        names = ", ".join(dict.fromkeys(name for name, *_ in same))
        merged.append((f"{names} : {kind}" if kind else names, list(text)))
    return merged


def references_of(sections):
    """Return the lines of each reference, by number."""
    references = {}
    for line in sections.get("References", []):
        if start := re.match(r"\.\. \[(\d+)\] (.*)", line):
            references[int(start[1])] = [start[2]]
        elif line and references:
            references[max(references)].append(line.strip())
    return references


def cite(sections, cited):
    """Add references of other docstrings, and number the places that cite them."""
    references = references_of(sections)
    for (source, number), lines in cited.items():
        same = [key for key, mine in references.items() if " ".join(mine) == " ".join(lines)]
        new = same[0] if same else max(references, default=0) + 1
        references[new] = lines
        for title in OF_ENTRIES:
            sections[title] = [
                line.replace(f"[{source} {number}]_", f"[{new}]_")
                for line in sections.get(title, [])
            ]
    for title in [title for title, body in sections.items() if title in OF_ENTRIES and not body]:
        del sections[title]
    if cited:
        examples = sections.pop("Examples", None)
        sections["References"] = [
            line
            for number, lines in references.items()
            for line in [f".. [{number}] {lines[0]}", *(f"   {text}" for text in lines[1:])]
        ] + [""]
        if examples is not None:
            sections["Examples"] = examples
