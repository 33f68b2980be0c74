r"""Normalisation of answers: one spelling for each thing, no units, plain numbers as fractions.

Inputs are LaTeX, plain numbers and words. Nothing here evaluates an expression.
"""

import re
from dataclasses import dataclass
from fractions import Fraction

_REPLACEMENTS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in [
        ("[\u2212\u2013]", "-"),
        ("\u00d7", r"\\times "),
        ("\u00f7", r"\\div "),
        ("[\u00b7\u22c5]", r"\\cdot "),
        (r"\u2264|<=|\\leq(?:slant|q)?(?![a-zA-Z])", r"\\le "),
        (r"\u2265|>=|\\geq(?:slant|q)?(?![a-zA-Z])", r"\\ge "),
        (r"\u2260|!=|\\not\s*=|\\neq(?![a-zA-Z])", r"\\ne "),
        (r"\\lt(?![a-zA-Z])", "<"),
        (r"\\gt(?![a-zA-Z])", ">"),
        ("\u2248", r"\\approx "),
        ("\u2208", r"\\in "),
        ("\u222a", r"\\cup "),
        ("\u221e", r"\\infty "),
        (r"\u2205|\\varnothing|\\\{\s*\\\}", r"\\emptyset "),
        ("\u03c0", r"\\pi "),
        ("\u221a\\s*\\(?(\\w+)\\)?", r"\\sqrt{\1}"),
        ("\u00b1|\\+/-", r"\\pm "),
        ("\u00b2", "^2"),
        ("\u00b3", "^3"),
        (r"\u00b0|\^\s*\{?\s*\\circ\s*\}?|\\degree(?![a-zA-Z])", ""),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
        (r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{"),
        (r"\\frac\s*\{([^{}]*)\}\s*(\d)", r"\\frac{\1}{\2}"),
        (r"\\sqrt\s*(\d)", r"\\sqrt{\1}"),
        (r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|limits)(?![a-zA-Z])\s*\.?", ""),
        (r"\\(?:mathrm|mathbf|mathit|mathsf|boldsymbol|textbf|textit|textrm|textnormal|mbox|hbox)(?=\s*\{)", r"\\text"),
        (r"\\lbrace(?![a-zA-Z])", r"\\{"),
        (r"\\rbrace(?![a-zA-Z])", r"\\}"),
        (r"(?<!\\)\\!", ""),
        (r"(?<!\\)\\[()\[\]]", ""),
        (r"(?<!\\)\\[,;: ]|~|\\q?quad(?![a-zA-Z])", " "),
        (r"\{,\}", ","),
        (r"\\%|\\text\{\s*%\s*\}", "%"),
        (r"\s*(?:\\text\{\s*)?\bper\s?cent\b(?:\s*\})?", "%"),
        ("\\\\?[$]|[\u20ac\u00a3\u00a5]", ""),
        (r"\\text\{\s*(,?\s*(?:and|or)\b)\s*,?\s*\}", r" \1 "),
        (r"\\text\{\s*\}", ""),
        (r"\s+", " "),
    ]
]
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")
_UNIT = re.compile(
    r"(?P<value>.*[\d)}\]a-zA-Z%])\s*(?P<unit>\\text\s*\{(?P<words>[^{}]*)\}\s*(?:\^\s*\{?\s*[23]\s*\}?)?)$", re.DOTALL
)
_WORDS = re.compile(r"[a-zA-Z .'/()\u00b7-]*(?:\^?\{?[23]\}?)?")
_PLAIN_UNIT = re.compile(r"(?P<value>[-+]?[\d.,/]*\d)(?P<space> ?)(?P<words>[a-zA-Z][a-zA-Z .'/-]*?)(?:\^\{?[23]\}?)?")
_SHORT_UNIT = re.compile(r"[mgshlL]|[cmkdn]m|[km]g|lb|oz|ft|yd|mi|in|m[lL]|kW|cc|hr|[aApP]\.?[mM]\.?")
_NO_UNIT = re.compile(
    r"\b(?:or|and|not|no|nor|either|neither|except|unless|minus|plus|times|over|mod|to|half|dozen|hundred|thousand|million|billion|"
    r"trillion|sqrt|pi|sin|cos|tan|log|ln|exp|max|min|div|if|is)\b",
    re.IGNORECASE,
)
"""Words that change the answer or begin a second one."""
_UNSIGNED = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+"
_DECIMAL = re.compile(rf"(?P<digits>{_UNSIGNED})(?:[eE](?P<exponent>[-+]?\d{{1,3}}))?")
_SCIENTIFIC = re.compile(
    rf"(?:(?P<digits>{_UNSIGNED})\s*(?:\\times|\\cdot|\*)\s*)?10\s*\^\s*\{{?\s*(?P<exponent>[-+]?\d{{1,3}})\s*\}}?"
)
_RATIO = re.compile(
    r"(?:(?P<whole>\d+)\s*(?P<gap>\s|(?=\\)))?(?:\\frac\s*\{\s*(?P<n>[-+]?\d+)\s*\}\s*\{\s*(?P<d>\d+)\s*\}|(?P<n2>\d+)\s*/\s*(?P<d2>\d+))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainNumber:
    """A literal number. Example: `1.50` is `PlainNumber(value=Fraction(3, 2), is_decimal=True)`."""

    value: Fraction
    is_decimal: bool
    """True if written with a point or an exponent, and so maybe rounded."""

    def equals(self, other: "PlainNumber") -> bool:
        """Return whether both are equal; decimals may differ after the sixth place."""
        if not (self.is_decimal or other.is_decimal):
            return self.value == other.value
        return close(self.value, other.value)


def close(first: Fraction, second: Fraction) -> bool:
    """Return whether two numbers agree to six decimal places, and to four digits if they are small."""
    difference = abs(first - second)
    return difference <= Fraction(1, 10**6) and difference <= max(abs(first), abs(second)) / 10**4


def normalised(text: str) -> str:
    r"""Return `text` with one spelling for each thing.

    >>> normalised(r"$\left( \dfrac12 ,\, 3 \right)$")
    '( \\frac{1}{2} , 3 )'
    """
    text = " ".join(text.split())  # the patterns take quadratic time on a line of blanks
    for pattern, replacement in _REPLACEMENTS:
        text = pattern.sub(replacement, text)
    text = text.strip().rstrip(".,;:").strip()
    for opening in (r"\boxed{", r"\fbox{", r"\text{", "{"):
        if text.startswith(opening) and closes_at_end(text, len(opening) - 1):
            return normalised(text[len(opening) : -1])
    return text


def spelling(text: str) -> str:
    r"""Return a text that equal answers share if their spelling decides; `0.50` and `\frac{1}{2}` share `1/2`."""
    text = without_unit(normalised(text))
    number = plain_number(text)
    return _bare(text) if number is None else str(number.value)


def closes_at_end(text: str, opened_at: int) -> bool:
    """Return whether the bracket at `opened_at` is closed by the last character, and not before."""
    depth = 0
    for index in range(opened_at, len(text)):
        if index and text[index - 1] == "\\" and text[index] in "{}" and index > opened_at:
            continue
        depth += (text[index] in "{([") - (text[index] in "})]")
        if depth <= 0:
            return index == len(text) - 1
    return False


def nesting(text: str) -> int:
    """Return the maximal nesting depth of brackets."""
    deepest = depth = 0
    for character in text:
        depth = max(0, depth + (character in "{([") - (character in "})]"))
        deepest = max(deepest, depth)
    return deepest


def same_text(first: str, second: str) -> bool:
    """Return whether two texts differ only in spaces, `\\text`, brackets around a letter, or the case of words."""
    return _bare(first) == _bare(second)


def is_words(text: str) -> bool:
    """Return whether an answer is words rather than mathematics, and can be compared as text only."""
    return bool(_TEXT.search(text)) or bool(re.fullmatch(r"[A-Za-z][a-z]{3,}|(?:[A-Za-z]{2,}[ -])+[A-Za-z]{2,}", text))


def without_unit(text: str) -> str:
    r"""Return a value without its unit; text that could hold a second answer is no unit.

    >>> without_unit(r"42 \text{ cm}^2"), without_unit(r"42 \text{ or 41}")
    ('42', '42 \\text{ or 41}')
    """
    if (match := _UNIT.fullmatch(text)) and _WORDS.fullmatch(match["words"]) and not _NO_UNIT.search(match["words"]):
        value = match["value"].strip()
        return text if is_words(value) or re.fullmatch("[A-Za-z]", value) else value
    if (match := _PLAIN_UNIT.fullmatch(text)) and not _NO_UNIT.search(match["words"]):
        words = match["words"].strip()
        if _SHORT_UNIT.fullmatch(words) or (match["space"] and len(words.split()[0]) >= 3):
            return match["value"]
    return text


def plain_number(text: str) -> PlainNumber | None:
    r"""Return the number of a literal (`-1,234.5`, `1e-05`, `3/4`, `1 \frac{1}{2}`); None for anything else."""
    text = text.strip()
    sign = -1 if text.startswith("-") else 1
    text = text[1:].strip() if text[:1] in ("-", "+") else text
    for pattern in (_DECIMAL, _SCIENTIFIC):
        if match := pattern.fullmatch(text):
            digits, exponent = (match["digits"] or "1").replace(",", ""), int(match["exponent"] or 0)
            is_decimal = "." in digits or (match["exponent"] is not None and pattern is _DECIMAL)
            return PlainNumber(value=sign * Fraction(digits) * Fraction(10) ** exponent, is_decimal=is_decimal)
    if not (match := _RATIO.fullmatch(text)):
        return None
    denominator = int(match["d"] or match["d2"])
    if denominator == 0:
        return None
    fraction = Fraction(int(match["n"] or match["n2"]), denominator)
    if match["whole"] and not 0 <= fraction < 1:
        return None
    return PlainNumber(value=sign * (int(match["whole"] or 0) + fraction), is_decimal=False)


def _bare(text: str) -> str:
    text = _TEXT.sub(r"\1", text)
    text = re.sub(r"\s+", "" if not re.search(r"\d\s+\d", text) else " ", text)
    if match := re.fullmatch(r"\(?([A-Za-z])\)?", text):
        return match[1].lower()
    return text.lower() if re.fullmatch(r"[A-Za-z,'-]{2,}", text) else text
