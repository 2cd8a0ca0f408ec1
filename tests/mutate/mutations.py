# SPDX-License-Identifier: Apache-2.0
"""Small changes of one statement each: what a slip of the hand, or a rule read wrongly, would write."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
CAN_GO = (ast.Expr, ast.AugAssign, ast.Raise, ast.Delete, ast.Break, ast.Continue)
"""Statements that a module runs without. Without an assignment it fails at the next use of the name."""


@dataclass(frozen=True)
class Mutation:
    """A part of a file, from (line, column) to (line, column), and the text that replaces it.

    Lines count from 1, columns in bytes from 0, as in `ast`. `statement`: the line at which its statement begins.
    """

    name: str
    begin: tuple[int, int]
    end: tuple[int, int]
    statement: int
    new: str

    def planted(self, text: str) -> str:
        """Return a file's text with the mutation in it."""
        lines = text.encode().splitlines(keepends=True)
        (first, left), (last, right) = self.begin, self.end
        changed = lines[first - 1][:left] + self.new.encode() + lines[last - 1][right:]
        return b"".join([*lines[: first - 1], changed, *lines[last:]]).decode()


def mutations(text: str) -> Iterator[Mutation]:
    """Yield the mutations of each statement inside a function. Texts, annotations and defaults stay as they are."""
    for function in ast.walk(ast.parse(text)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in _statements(function.body):
                yield from _of_statement(statement)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of one function, without those of functions and classes inside it."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        yield statement
        for part in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(statement, part, []))
        for handler in getattr(statement, "handlers", []):
            yield from _statements(handler.body)
        for case in getattr(statement, "cases", []):
            yield from _statements(case.body)


def _of_statement(statement: ast.stmt) -> Iterator[Mutation]:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return  # a docstring
    if isinstance(statement, CAN_GO):
        yield _mutation("statement removed", statement, statement, "pass")
    if isinstance(statement, ast.Return) and statement.value is not None and ast.unparse(statement.value) != "None":
        yield _mutation("return None", statement, statement.value, "None")
    if isinstance(statement, ast.If | ast.While):
        yield _mutation("condition negated", statement, statement.test, f"not ({ast.unparse(statement.test)})")
    for expression in ast.iter_child_nodes(statement):
        if isinstance(expression, ast.expr) and expression is not getattr(statement, "annotation", None):
            yield from _of_expression(statement, expression)


def _of_expression(statement: ast.stmt, expression: ast.expr) -> Iterator[Mutation]:
    """Yield the mutations of an expression and of those in it; a text with values in it is one text."""
    for node in _parts(expression):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            flipped = ast.Compare(node.left, [OPPOSITE[type(node.ops[0])]()], node.comparators)
            yield _mutation("comparison flipped", statement, node, f"({ast.unparse(flipped)})")
        elif isinstance(node, ast.BoolOp):
            swapped = ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
            yield _mutation("and/or swapped", statement, node, f"({ast.unparse(swapped)})")
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield _mutation("not removed", statement, node, f"({ast.unparse(node.operand)})")
        elif isinstance(node, ast.IfExp):
            yield _mutation("condition negated", statement, node.test, f"not ({ast.unparse(node.test)})")
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
            yield _mutation("constant changed", statement, node, str(not node.value))
        elif isinstance(node, ast.Constant) and isinstance(node.value, int):
            yield _mutation("constant changed", statement, node, str(node.value + 1))


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if not isinstance(node, ast.JoinedStr):
        for child in ast.iter_child_nodes(node):
            yield from _parts(child)


def _mutation(name: str, statement: ast.stmt, node: ast.expr | ast.stmt, new: str) -> Mutation:
    end = (node.end_lineno or node.lineno, node.end_col_offset or 0)
    return Mutation(name, (node.lineno, node.col_offset), end, statement.lineno, new)
