"""The value of an equation over + - * /, computed from its syntax tree, exactly."""

import ast
import re
from fractions import Fraction

MOST_CHARACTERS = 200
MOST_DEPTH = 30

_ALLOWED = re.compile(r"[0-9+\-*/() ]+")
_SIGNS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "x": "*", "[": "(", "]": ")"})


def evaluate(text: str) -> tuple[Fraction, list[int]] | None:
    """The value and the numbers used, in order; None where it is no equation of + - * / alone.

    A number may have a sign of its own nowhere, powers and whole divisions are refused, and so is
    a division by zero.

    >>> evaluate("(8 - 2) × 4 ÷ 3")
    (Fraction(8, 1), [8, 2, 4, 3])
    >>> evaluate("2 ** 9"), evaluate("1 / 0"), evaluate("f(3)")
    (None, None, None)
    """
    if len(text) > MOST_CHARACTERS:
        return None
    text = text.translate(_SIGNS).strip()
    if not _ALLOWED.fullmatch(text):
        return None
    try:
        tree = ast.parse(text, mode="eval").body
        used: list[int] = []
        return _value(tree, used, MOST_DEPTH), used
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return None


def _value(node: ast.AST, used: list[int], depth: int) -> Fraction:
    if depth == 0:
        raise ValueError("too deep")
    if isinstance(node, ast.Constant) and type(node.value) is int:
        used.append(node.value)
        return Fraction(node.value)
    if not isinstance(node, ast.BinOp):
        raise ValueError("not an equation")
    left = _value(node.left, used, depth - 1)
    right = _value(node.right, used, depth - 1)
    match node.op:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div():
            return left / right
    raise ValueError("an operation that is not allowed")
