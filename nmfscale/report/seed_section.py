"""The section of a report on the seeds of topics."""

from __future__ import annotations

from typing import Any

from ..inference.features.seed_shares import seed_shares
from .section import Section

# Seeds of a topic in the table.
_MOST = 12


def seed_section(model: Any) -> Section | None:
    """Return the seeds of each topic and what it explains of them; None if there are none.

    Nor is there a section if the seeds are in a file that does not exist any more.
    """
    if getattr(model, "seeds", None) is None:
        return None
    try:
        explained = seed_shares(model)
    except FileNotFoundError:
        return None
    seeds, topics = explained.columns("seeds"), explained.columns("topics")
    words: dict[str, list[str]] = {name: [] for name in topics["topic"]}
    order = (-seeds["share"]).argsort(kind="stable")
    for i in order:
        words[seeds["topic"][i]].append(f"{seeds['feature'][i]} {seeds['share'][i]:.0%}")
    listed = {
        name: ", ".join(of[:_MOST]) + (f" and {len(of) - _MOST} more" if len(of) > _MOST else "")
        for name, of in words.items()
    }
    n_left = int(topics["left"].sum())
    text = (
        f"Features that topics were to have, with pseudo-counts of {explained.seed_weight:g} times "
        "their occurrences, and the share of their expected counts that is in their topic. "
        f"{n_left} of {len(topics['topic'])} topics explain less than half of the counts of their "
        "seeds: other topics explain most of these, and the theme of such a topic may be another "
        "one than its name says."
    )
    table = {
        "topic": topics["topic"].tolist(),
        "seeds": [listed[name] for name in topics["topic"]],
        "mean share": [f"{share:.0%}" for share in topics["share"]],
        "largest mean share": [
            f"{name} {share:.0%}"
            for name, share in zip(topics["largest"], topics["largest_share"], strict=True)
        ],
    }
    return Section("seeds", "Seeds", [text], [], table)
