"""A dataset's ``__getitem__`` for a whole batch, by what its code says.

The syntax tree is walked once a batch, with a column in place of each value that
differs between samples. What is not known to be pure, and the same for many samples as
for one, raises :class:`Unproved`; stock then fetches the samples one by one. Attributes
and globals are looked up anew in each batch, as the code itself would.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import operator
from collections.abc import Sequence
from types import FunctionType, ModuleType
from typing import Any

import torch

from pai_torchacc.data_pipeline import functions, images, methods
from pai_torchacc.data_pipeline.reading import class_of, definition_of
from pai_torchacc.data_pipeline.values import (
    Column,
    Group,
    Known,
    Unproved,
    is_none,
    rows_of,
)

_COMPARISONS: dict[type[ast.cmpop], Any] = {
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_OPERATORS: dict[type[ast.operator], Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
_PLAIN = (type(None), bool, int, float, str)


class Interpreter:
    """One batch of one dataset.

    ``signature`` collects what the result rests on besides code and index.
    """

    def __init__(self, dataset: Any, index: list[int]):
        function = inspect.getattr_static(type(dataset), "__getitem__", None)
        if not isinstance(function, FunctionType):
            raise Unproved("__getitem__ is no plain function")
        definition = definition_of(function)
        if definition is None:
            raise Unproved("the source of __getitem__ cannot be had")
        self._dataset, self._function = dataset, function
        self._body = definition.body
        arguments = definition.args
        names = [a.arg for a in arguments.args]
        if len(names) != len(("self", "index")) or any(
            (arguments.posonlyargs, arguments.kwonlyargs, arguments.defaults)
        ):
            raise Unproved("__getitem__ takes other arguments than an index")
        me, which = names
        self._locals: dict[str, Any] = {me: Known(dataset)}
        self._locals[which] = Column("int", lambda: index, ())
        self._private = f"_{class_of(function).lstrip('_')}__"
        self.signature: list[Any] = [function.__code__, torch.get_default_dtype()]

    def run(self) -> Any:
        """What ``__getitem__`` returns for the batch."""
        returned = self._do(self._body)
        if returned is None:
            raise Unproved("__getitem__ returns nothing")
        return returned

    def _do(self, statements: Sequence[ast.stmt]) -> Any:
        for statement in statements:
            match statement:
                case ast.Return(value=ast.expr() as value):
                    return self._value(value)
                case ast.Assign(targets=[target], value=value):
                    self._bind(target, self._value(value))
                case ast.AnnAssign(target=target, value=ast.expr() as value):
                    self._bind(target, self._value(value))
                case ast.If(test=test, body=body, orelse=otherwise):
                    chosen = body if self._truth(self._value(test)) else otherwise
                    returned = self._do(chosen)
                    if returned is not None:
                        return returned
                case ast.Pass() | ast.Expr(value=ast.Constant()):
                    pass
                case _:
                    raise Unproved(f"__getitem__ has {_name(statement)}")
        return None

    def _bind(self, target: ast.expr, value: Any) -> None:
        match target:
            case ast.Name(id=name):
                self._locals[name] = value
            case ast.Tuple(elts=targets) if (
                isinstance(value, Group)
                and value.kind is tuple
                and len(value.parts) == len(targets)
            ):
                for part, item in zip(targets, value.parts, strict=True):
                    self._bind(part, item)
            case _:
                raise Unproved(f"__getitem__ assigns to {_name(target)}")

    def _value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                return Known(value)
            case ast.Name(id=name):
                return self._name(name)
            case ast.Attribute(value=owner, attr=name):
                return self._attribute(self._value(owner), name)
            case ast.Subscript(value=owner, slice=key):
                return self._item(self._value(owner), self._value(_plain_key(key)))
            case ast.Tuple() | ast.List() | ast.Dict():
                return self._group(node)
            case ast.Call():
                return self._call(node)
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                both = self._value(left), self._value(right)
                return methods.arithmetic(_OPERATORS[type(op)], *both)
            case ast.UnaryOp(
                op=ast.USub(), operand=ast.Constant(value=int() | float() as v)
            ):
                return Known(-v)
            case ast.IfExp(test=test, body=body, orelse=otherwise):
                return self._value(
                    body if self._truth(self._value(test)) else otherwise
                )
            case _:
                return Known(self._condition(node))

    def _group(self, node: ast.Tuple | ast.List | ast.Dict) -> Group:
        if isinstance(node, ast.Dict):
            keys = [k.value for k in node.keys if isinstance(k, ast.Constant)]
            if len(keys) != len(node.keys) or len(set(keys)) != len(keys):
                raise Unproved("a dictionary whose keys are no constants")
            return Group(dict, [self._value(v) for v in node.values], tuple(keys))
        kind = tuple if isinstance(node, ast.Tuple) else list
        return Group(kind, [self._value(part) for part in node.elts])

    def _condition(self, node: ast.expr) -> bool:
        match node:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                return not self._truth(self._value(operand))
            case ast.BoolOp(op=op, values=values):
                decide = all if isinstance(op, ast.And) else any
                return decide(self._truth(self._value(v)) for v in values)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if (
                type(op) in _COMPARISONS
            ):
                both = self._value(left), self._value(right)
                return self._compare(_COMPARISONS[type(op)], *both)
            case _:
                raise Unproved(f"__getitem__ has {_name(node)}")

    def _compare(self, compare: Any, left: Any, right: Any) -> bool:
        is_identity = compare in (operator.is_, operator.is_not)
        if is_identity and (is_none(left) or is_none(right)):
            return (is_none(left) and is_none(right)) is (compare is operator.is_)
        if not isinstance(left, Known) or not isinstance(right, Known):
            raise Unproved("a condition on a sample's values")
        values = left.value, right.value
        if not is_identity and not all(type(v) in _PLAIN for v in values):
            raise Unproved("a comparison of objects")
        return bool(compare(*values))

    def _truth(self, value: Any) -> bool:
        if not isinstance(value, Known):
            raise Unproved("a condition on a sample's values")
        if type(value.value) in _PLAIN:
            return bool(value.value)
        if any(hasattr(type(value.value), name) for name in ("__bool__", "__len__")):
            raise Unproved(f"whether a {type(value.value).__name__} is true")
        return True

    def _name(self, name: str) -> Any:
        if name in self._locals:
            return self._locals[name]
        namespace = self._function.__globals__
        if name in namespace:
            return Known(namespace[name])
        if hasattr(builtins, name):
            return Known(getattr(builtins, name))
        raise Unproved(f"the name {name}")

    def _attribute(self, owner: Any, name: str) -> Known:
        if not isinstance(owner, Known):
            raise Unproved(f"the attribute {name} of a sample's value")
        if owner.value is self._dataset:
            if name.startswith("__") and not name.endswith("__"):
                name = self._private + name[2:]
            return Known(plain_attribute(self._dataset, name))
        if isinstance(owner.value, ModuleType) and name in vars(owner.value):
            return Known(vars(owner.value)[name])
        raise Unproved(f"the attribute {name}")

    def _item(self, owner: Any, key: Any) -> Any:
        if isinstance(owner, Column):
            return methods.item(owner, key)
        if not isinstance(owner, Known) or not isinstance(key, Column):
            raise Unproved("an item that is not the sample's")
        rows = key.numbers()
        if any(type(row) is not int for row in rows):
            raise Unproved("an index that is no integer")
        column = rows_of(owner.value, rows)
        self.signature.append(column.signature)
        return column

    def _call(self, node: ast.Call) -> Any:
        if any(isinstance(a, ast.Starred) for a in node.args) or any(
            k.arg is None for k in node.keywords
        ):
            raise Unproved("a call with starred arguments")
        arguments = [self._value(a) for a in node.args]
        named = {str(k.arg): self._value(k.value) for k in node.keywords}
        if isinstance(node.func, ast.Attribute):
            owner = self._value(node.func.value)
            if isinstance(owner, Column):
                return methods.method(owner, node.func.attr, arguments, named)
            function = self._attribute(owner, node.func.attr)
        else:
            function = self._value(node.func)
        if not isinstance(function, Known):
            raise Unproved("a call of a sample's value")
        transform = images.recognised(function.value)
        if transform is not None and len(arguments) == 1 and not named:
            self.signature.append(transform.signature)
            return transform.apply(arguments[0])
        return functions.call(function.value, arguments, named)


def _plain_key(key: ast.expr) -> ast.expr:
    """``None`` in place of ``None, :, :`` and ``None, ...``, which mean the same."""
    if isinstance(key, ast.Tuple) and key.elts:
        first, *rest = key.elts
        if all(_is_everything(part) for part in rest):
            return first
    return key


def _is_everything(part: ast.expr) -> bool:
    match part:
        case ast.Slice(lower=None, upper=None, step=None):
            return True
        case ast.Constant(value=value):
            return value is ...
    return False


def plain_attribute(owner: Any, name: str) -> Any:
    """``owner.name``, where looking it up runs no code of anybody's."""
    cls, own = type(owner), owner.__dict__
    if cls.__getattribute__ is not object.__getattribute__:
        raise Unproved("the dataset has a __getattribute__ of its own")
    static = next((vars(c)[name] for c in cls.__mro__ if name in vars(c)), None)
    if hasattr(type(static), "__get__") and (
        name not in own or hasattr(type(static), "__set__")
    ):
        raise Unproved(f"the attribute {name} is computed")
    if name in own:
        return own[name]
    if static is None:
        raise Unproved(f"the dataset has no attribute {name}")
    return static


def _name(node: ast.AST) -> str:
    line = getattr(node, "lineno", 0)
    return f"{type(node).__name__} in its line {line}"
