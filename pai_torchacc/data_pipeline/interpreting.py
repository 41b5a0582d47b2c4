"""A dataset's ``__getitem__`` for a whole batch, by what its code says.

The syntax tree is walked once a batch, with a column in place of each value that
differs between samples. What is not known to be pure, and the same for many samples as
for one, raises :class:`Unproved`; stock then fetches the samples one by one. Attributes
and globals are looked up anew in each batch, as the code itself would.
"""

from __future__ import annotations

import ast
import builtins
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
    Samples,
    Unproved,
    is_none,
    rows_of,
    signature_of,
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


ABSENT = object()
"""In place of the value of a name that a dictionary does not have."""


class Interpreter:
    """One batch of one dataset.

    ``signature`` collects what the result rests on besides code and index; ``drawn`` is
    the column that random numbers are drawn for, wherever it goes. Where the result
    ``is_repeatable``, it is the same columns for as long as ``reads``, what was found
    in which dictionary, and ``containers``, with what their rows are like, hold.
    """

    def __init__(self, dataset: Any, index: list[int]):
        function = class_attribute(type(dataset), "__getitem__")
        if not isinstance(function, FunctionType):
            raise Unproved("__getitem__ is no plain function")
        definition = definition_of(function)
        if definition is None:
            raise Unproved("the source of __getitem__ cannot be had")
        self._dataset, self._function = dataset, function
        self.samples = Samples(index)
        self.has_images = False
        self.is_repeatable = True
        self.reads: list[tuple[dict[str, Any], str, Any]] = []
        self.containers: list[tuple[Any, tuple[Any, ...]]] = []
        self._body = definition.body
        arguments = definition.args
        names = [a.arg for a in arguments.args]
        others = arguments.posonlyargs, arguments.kwonlyargs, arguments.defaults
        others = (*others, arguments.vararg, arguments.kwarg)
        if len(names) != len(("self", "index")) or any(others):
            raise Unproved("__getitem__ takes other arguments than an index")
        me, which = names
        self._locals: dict[str, Any] = {me: Known(dataset)}
        self._locals[which] = Column(
            "int", lambda: self.samples.index, (), self.samples
        )
        self._private = f"_{class_of(function).lstrip('_')}__"
        self.drawn: Column | None = None
        self.signature: list[Any] = [function.__code__, torch.get_default_dtype()]

    def run(self) -> Any:
        """What ``__getitem__`` returns for the batch."""
        returned = self._do(self._body)
        if returned is None:
            raise Unproved("__getitem__ returns nothing")
        return returned

    def _do(self, statements: Sequence[ast.stmt]) -> Any:
        for statement in statements:
            kind = type(statement)
            if kind not in _STATEMENTS:
                raise Unproved(f"__getitem__ has {_name(statement)}")
            returned = _STATEMENTS[kind](self, statement)
            if returned is not None:
                return returned
        return None

    def _return(self, node: ast.Return) -> Any:
        return self._value(node.value) if node.value else Known(None)

    def _assign(self, node: ast.Assign) -> None:
        if len(node.targets) != 1:
            raise Unproved(f"__getitem__ has {_name(node)}")
        self._bind(node.targets[0], self._value(node.value))

    def _annotated(self, node: ast.AnnAssign) -> None:
        if node.value:
            self._bind(node.target, self._value(node.value))

    def _if(self, node: ast.If) -> Any:
        return self._do(
            node.body if self._truth(self._value(node.test)) else node.orelse
        )

    def _pass(self, node: ast.Pass | ast.Expr) -> None:
        if isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
            raise Unproved(f"__getitem__ has {_name(node)}")

    def _bind(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self._locals[target.id] = value
            return
        is_tuple = isinstance(value, Group) and value.kind is tuple
        if not (isinstance(target, ast.Tuple) and is_tuple) or (
            len(value.parts) != len(target.elts)
        ):
            raise Unproved(f"__getitem__ assigns to {_name(target)}")
        for part, item in zip(target.elts, value.parts, strict=True):
            self._bind(part, item)

    def _value(self, node: ast.expr) -> Any:
        compute = _VALUES.get(type(node))
        if compute is None:
            raise Unproved(f"__getitem__ has {_name(node)}")
        return compute(self, node)

    def _constant(self, node: ast.Constant) -> Known:
        return Known(node.value)

    def _attribute_of(self, node: ast.Attribute) -> Known:
        return self._attribute(self._value(node.value), node.attr)

    def _subscript(self, node: ast.Subscript) -> Any:
        return self._item(self._value(node.value), self._value(_plain_key(node.slice)))

    def _binary(self, node: ast.BinOp) -> Any:
        if type(node.op) not in _OPERATORS:
            raise Unproved(f"__getitem__ has {_name(node.op)}")
        both = self._value(node.left), self._value(node.right)
        return methods.arithmetic(_OPERATORS[type(node.op)], *both)

    def _unary(self, node: ast.UnaryOp) -> Known:
        operand = self._value(node.operand)
        if isinstance(node.op, ast.Not):
            return Known(not self._truth(operand))
        value = operand.value if isinstance(operand, Known) else None
        if not isinstance(node.op, ast.USub) or type(value) not in (int, float):
            raise Unproved(f"__getitem__ has {_name(node)}")
        return Known(-value)

    def _either(self, node: ast.IfExp) -> Any:
        return self._value(
            node.body if self._truth(self._value(node.test)) else node.orelse
        )

    def _all_or_any(self, node: ast.BoolOp) -> Any:
        """The operand that decides, which is the last one if no other does."""
        value: Any = None
        for operand in node.values:
            value = self._value(operand)
            if self._truth(value) is isinstance(node.op, ast.Or):
                break
        return value

    def _comparison(self, node: ast.Compare) -> Known:
        if len(node.ops) != 1 or type(node.ops[0]) not in _COMPARISONS:
            raise Unproved(f"__getitem__ has {_name(node)}")
        both = self._value(node.left), self._value(node.comparators[0])
        return Known(self._compare(_COMPARISONS[type(node.ops[0])], *both))

    def _group(self, node: ast.Tuple | ast.List | ast.Dict) -> Group:
        if isinstance(node, ast.Dict):
            keys = [k.value for k in node.keys if isinstance(k, ast.Constant)]
            if len(keys) != len(node.keys) or len(set(keys)) != len(keys):
                raise Unproved("a dictionary whose keys are no constants")
            return Group(dict, [self._value(v) for v in node.values], tuple(keys))
        kind = tuple if isinstance(node, ast.Tuple) else list
        return Group(kind, [self._value(part) for part in node.elts])

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

    def _name(self, node: ast.Name) -> Any:
        name = node.id
        if name in self._locals:
            return self._locals[name]
        if name in self._function.__code__.co_varnames:
            raise Unproved(f"the name {name} before it has a value")
        name, namespace = self._mangled(name), self._function.__globals__
        if name in namespace:
            return self._read(namespace, name)
        if hasattr(builtins, name):
            self.reads.append((namespace, name, ABSENT))
            return self._read(vars(builtins), name)
        raise Unproved(f"the name {name}")

    def _read(self, found_in: dict[str, Any], name: str) -> Known:
        value = found_in[name]
        self.reads.append((found_in, name, value))
        return Known(value)

    def _attribute(self, owner: Any, name: str) -> Known:
        if not isinstance(owner, Known):
            raise Unproved(f"the attribute {name} of a sample's value")
        name = self._mangled(name)
        if owner.value is self._dataset:
            value, own = plain_attribute(self._dataset, name), vars(self._dataset)
            self.is_repeatable &= name in own
            self.reads.append((own, name, value))
            return Known(value)
        if isinstance(owner.value, ModuleType) and name in vars(owner.value):
            return self._read(vars(owner.value), name)
        raise Unproved(f"the attribute {name}")

    def _mangled(self, name: str) -> str:
        is_private = name.startswith("__") and not name.endswith("__")
        return self._private + name[2:] if is_private else name

    def _item(self, owner: Any, key: Any) -> Any:
        if isinstance(owner, Column):
            return methods.item(owner, key)
        if not isinstance(owner, Known) or not isinstance(key, Column):
            raise Unproved("an item that is not the sample's")
        column = rows_of(owner.value, key)
        self.signature.append(column.signature)
        self.containers.append((owner.value, signature_of(owner.value)))
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
            column = transform.apply(arguments[0])
            self.has_images = True
            if transform.draws:
                # Samples would take turns, and so would the two of each.
                if self.drawn is not None:
                    raise Unproved("a sample has two random transforms")
                self.drawn = column
            return column
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
    static = class_attribute(cls, name)
    if hasattr(type(static), "__get__") and (
        name not in own
        or hasattr(type(static), "__set__")
        or hasattr(type(static), "__delete__")
    ):
        raise Unproved(f"the attribute {name} is computed")
    if name in own:
        return own[name]
    if static is None:
        raise Unproved(f"the dataset has no attribute {name}")
    return static


def class_attribute(cls: type, name: str) -> Any:
    """What a class or its bases have under a name, as it stands there; else None."""
    for base in cls.__mro__:
        content = base.__dict__
        if name in content:
            return content[name]
    return None


def _name(node: ast.AST) -> str:
    line = getattr(node, "lineno", 0)
    return f"{type(node).__name__} in its line {line}"


_STATEMENTS: dict[type, Any] = {
    ast.Return: Interpreter._return,
    ast.Assign: Interpreter._assign,
    ast.AnnAssign: Interpreter._annotated,
    ast.If: Interpreter._if,
    ast.Pass: Interpreter._pass,
    ast.Expr: Interpreter._pass,
}
_VALUES: dict[type, Any] = {
    ast.Constant: Interpreter._constant,
    ast.Name: Interpreter._name,
    ast.Attribute: Interpreter._attribute_of,
    ast.Subscript: Interpreter._subscript,
    ast.Tuple: Interpreter._group,
    ast.List: Interpreter._group,
    ast.Dict: Interpreter._group,
    ast.Call: Interpreter._call,
    ast.BinOp: Interpreter._binary,
    ast.UnaryOp: Interpreter._unary,
    ast.IfExp: Interpreter._either,
    ast.BoolOp: Interpreter._all_or_any,
    ast.Compare: Interpreter._comparison,
}
