"""Fonts for names in scripts that the font in use lacks, such as Chinese and Japanese."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from unicodedata import category

from ..counts.warn import warn_caller

if TYPE_CHECKING:
    from matplotlib.font_manager import FontProperties
    from matplotlib.text import Text

_BOX = "\N{WHITE SQUARE}"
# Characters that a warning shows.
_MOST_SHOWN = 10


def complete_figure(figure: Any) -> None:
    """Use installed fonts for characters of a figure that the fonts of its texts lack.

    Characters that no font has are drawn as boxes, with one warning: matplotlib itself would warn
    of each of them at every drawing.
    """
    incomplete = _complete(_texts_of(figure))
    if not incomplete:
        return
    lacking = sorted({
        character for text in incomplete
        for character in _lacking(text.get_text(), text.get_fontproperties())
    })  # fmt: skip
    boxes = str.maketrans(dict.fromkeys(lacking, _BOX))
    for axis in (axis for ax in _all_axes(figure.axes) for axis in (ax.xaxis, ax.yaxis)):
        labels = [text.get_text() for text in axis.get_ticklabels()]
        if any(set(label).intersection(lacking) for label in labels):
            axis.set_ticks(axis.get_ticklocs(), [label.translate(boxes) for label in labels])
    for text in incomplete:
        text.set_text(text.get_text().translate(boxes))
    more = ", ..." if len(lacking) > _MOST_SHOWN else ""
    warn_caller(
        f"no installed font has {len(lacking):,} characters of the names, which are drawn as boxes "
        f"({', '.join(lacking[:_MOST_SHOWN])}{more}): install a font that has them, such as Noto "
        "Sans CJK for Chinese, Japanese and Korean, and draw again."
    )


def _texts_of(figure: Any) -> list[Text]:
    """Return the texts of a figure that are not only ASCII."""
    from matplotlib.text import Text

    return [text for text in figure.findobj(Text) if not text.get_text().isascii()]


def _complete(texts: Iterable[Text]) -> list[Text]:
    """Add installed fonts to texts; return those with characters that no font has."""
    incomplete = []
    for text in texts:
        lacking = frozenset(_lacking(text.get_text(), text.get_fontproperties()))
        if not lacking:
            continue
        families, left = _families_with(lacking)
        if families:
            text.set_fontfamily([*text.get_fontfamily(), *families])
        if left:
            incomplete.append(text)
    return incomplete


def _all_axes(axes: Iterable[Any]) -> Iterator[Any]:
    for ax in axes:
        yield ax
        yield from _all_axes(ax.child_axes)


def _lacking(characters: str, properties: FontProperties) -> Iterator[str]:
    """Yield the characters that none of the fonts of a text has."""
    if characters.isascii():
        return
    paths = list(_paths_of(properties))
    for character in set(characters):
        drawn = not character.isspace() and category(character) != "Cc"
        if drawn and not any(_has(path, character) for path in paths):
            yield character


def _paths_of(properties: FontProperties) -> Iterator[str]:
    """Yield the font file of each family that is installed."""
    from matplotlib.font_manager import findfont

    for family in properties.get_family():
        of_family = properties.copy()
        of_family.set_family(family)
        try:
            yield findfont(of_family, fallback_to_default=False)
        except ValueError:
            continue


@lru_cache(maxsize=4096)
def _has(path: str, character: str) -> bool:
    from matplotlib.font_manager import get_font

    try:
        return get_font(path).get_char_index(ord(character)) > 0
    except (OSError, RuntimeError):  # not a font that matplotlib can read
        return False


@lru_cache(maxsize=64)
def _families_with(characters: frozenset[str]) -> tuple[tuple[str, ...], frozenset[str]]:
    """Return the fewest installed families that have these characters, and those that none has."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    listed = {font.fname for font in fontManager.ttflist}
    for path in findSystemFonts():
        if path not in listed:  # installed after matplotlib made its list
            try:
                fontManager.addfont(path)
            except (OSError, RuntimeError):
                continue
    upright: dict[str, str] = {}
    for font in sorted(fontManager.ttflist, key=_preference):
        if "lastresort" not in font.name.replace(" ", "").lower():  # boxes for every character
            upright.setdefault(font.name, font.fname)
    has = {
        name: frozenset(character for character in characters if _has(path, character))
        for name, path in upright.items()
    }
    families, left = [], characters
    while left and (best := max(has, key=lambda name: len(has[name] & left))):
        if not has[best] & left:
            break
        families.append(best)
        left -= has[best]
    return tuple(families), left


def _preference(font: Any) -> tuple[Any, ...]:
    """Return the sort key of a font: upright, regular and sans-serif ones are first."""
    weight = font.weight if isinstance(font.weight, int) else 400
    return font.style != "normal", abs(weight - 400), "Sans" not in font.name, font.name
