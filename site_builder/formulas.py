r"""Formulas: LaTeX becomes MathML when the site is built, which browsers show without any script.

`pymdownx.arithmatex` finds the formulas between dollar signs; here they are turned into MathML. The font is STIX Two
Math (SIL Open Font Licence), which the package ziamath brings, cut down to the characters that the formulas use.
"""

from __future__ import annotations

import html
import re
from importlib.resources import files
from io import BytesIO
from xml.etree.ElementTree import fromstring, register_namespace, tostring

from fontTools import subset
from fontTools.ttLib import TTFont
from latex2mathml.converter import convert

FORMULA = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\(?P<open>[(\[])(?P<latex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)
LETTERS = {
    r"\mathcal D": "\N{MATHEMATICAL SCRIPT CAPITAL D}",
    r"\mathcal F": "\N{SCRIPT CAPITAL F}",
    r"\mathcal N": "\N{MATHEMATICAL SCRIPT CAPITAL N}",
    r"\mathbb E": "\N{MATHEMATICAL DOUBLE-STRUCK CAPITAL E}",
}
"""Letters for which browsers do not make these forms themselves."""
LETTER = re.compile("|".join(map(re.escape, LETTERS)))
register_namespace("", "http://www.w3.org/1998/Math/MathML")
TEXT = re.compile(r">([^<]*)<")


def to_mathml(page: str) -> str:
    """The page's HTML with its formulas as MathML."""
    return FORMULA.sub(_formula, page)


def font(pages: list[str]) -> bytes:
    """A web font with the characters of these formulas, and all sizes of their brackets."""
    used = {character for page in pages for text in TEXT.findall(page) for character in html.unescape(text)}
    source = files("ziamath") / "fonts" / "STIXTwoMath-Regular.ttf"
    font = TTFont(BytesIO(source.read_bytes()))
    options = subset.Options(layout_features=["*"], flavor="woff", notdef_outline=True)
    subsetter = subset.Subsetter(options)
    shown = {chr(0x1D434 + place) for place in range(52)} | {chr(0x1D6FC + place) for place in range(32)}  # italics
    shown |= {"\N{PLANCK CONSTANT}", "\N{SQUARE ROOT}"} | {chr(place) for place in range(32, 127)}
    subsetter.populate(text="".join(used | shown))
    subsetter.subset(font)
    written = BytesIO()
    font.flavor = "woff"
    font.save(written)
    return written.getvalue()


def formulas_of(page: str) -> list[str]:
    """The MathML of a page."""
    return re.findall(r"<math.*?</math>", page, re.DOTALL)


def _formula(match: re.Match[str]) -> str:
    is_block = match["open"] == "["
    latex = LETTER.sub(lambda found: LETTERS[found[0]], html.unescape(match["latex"]).strip())
    mathml = fromstring(convert(latex, display="block" if is_block else "inline"))
    if is_block:
        for element in mathml.iter():
            if len(element) and element[0].text == "\N{N-ARY SUMMATION}":  # its limits stand below and above
                element.tag = element.tag.replace("msubsup", "munderover").replace("msub", "munder")
    return f'<{match["tag"]} class="formula">{tostring(mathml, encoding="unicode")}</{match["tag"]}>'
