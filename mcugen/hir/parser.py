# SPDX-License-Identifier: Apache-2.0
"""Parser of the text form of the high-level IR that `printer` writes. Tests of passes compare these texts.

Constants that the text gives only as a digest (or `...`) get pseudo-random numbers seeded by the digest, and print as
the same digest.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import is_dataclass
from enum import Enum
from typing import Any, NoReturn

import numpy as np

from mcugen.core.errors import UsageError
from mcugen.hir.graph import ComputedSize, Graph, Value
from mcugen.hir.types import Array, DType, Layout, QuantParams, Rounding, TensorType
from mcugen.hir.words import MnemonicTable

_WORDS = {"None": None, "True": True, "False": False, "inf": float("inf"), "nan": float("nan")}
_TYPES: dict[str, DType | Layout] = {d.value: d for d in DType} | {x.value: x for x in Layout if x.value}
_NUMBER = r"-?(?:\d+(?:\.\d*)?(?:e[+-]?\d+)?|inf|nan)"


class PlaceholderArray(np.ndarray[Any, Any]):
    """An array of pseudo-random numbers, in place of a constant whose dump has only a digest instead of the elements.

    The digest is the seed. Arrays computed from the placeholder are ordinary arrays without a digest.
    """

    digest: str = ""


class PlaceholderScales(tuple[float, ...]):
    """Pseudo-random quantization scales, in place of scales whose dump has only a digest, which is the seed."""

    digest: str = ""


def parse_graph(text: str) -> Graph:
    """Return the graph that a text in the format of `print_graph` describes.

    The modules that define its operators must be imported before.

    Raises:
        UsageError: The text is not well formed; the message names the line.
    """
    reader = _Reader(text, MnemonicTable())
    graph = reader.graph()
    graph.sizes = {} if graph.sizes is None else graph.sizes
    return graph


class _Reader:
    """A recursive-descent parser over one text."""

    def __init__(self, text: str, words: MnemonicTable) -> None:
        self._text, self._words, self._at = text, words, 0

    # ------------------------------------------------------------------------------------------- letters

    def fail(self, expected: str) -> NoReturn:
        line = self._text.count("\n", 0, self._at) + 1
        text = self._text[self._at : self._at + 40].partition("\n")[0]
        raise UsageError(f"line {line} of a graph's text must have {expected}", f"'{text}'", "see mcugen.hir.printer")

    def get(self, pattern: str) -> str | None:
        """Skip blanks and return the text that matches `pattern` at the present position; None if nothing matches."""
        match = re.compile(rf"[ \t]*({pattern})").match(self._text, self._at)
        if match is None:
            return None
        self._at = match.end()
        return match[1]

    def need(self, pattern: str, expected: str) -> str:
        text = self.get(pattern)
        return self.fail(expected) if text is None else text

    def has(self, text: str) -> bool:
        return self.get(re.escape(text)) is not None

    def many(self, item: Callable[[], Any], end: str) -> list[Any]:
        """Parse items separated by commas up to `end`. A comma before `end` is allowed."""
        items = []
        while not self.has(end):
            items.append(item())
            if not self.has(",") and not self.has(end):
                self.fail(f"a comma or '{end}'")
            elif self._text[self._at - len(end) : self._at] == end:
                break
        return items

    def name(self) -> str:
        text = self.need(r'"(?:[^"\\]|\\.)*"|[A-Za-z0-9_./]+', "a name")
        return str(json.loads(text)) if text.startswith('"') else text

    # --------------------------------------------------------------------------------------------- graphs

    def graph(self) -> Graph:
        self.need(r"\s*graph\b", "'graph'")
        graph = Graph(self.name())
        known: dict[str, Value] = {}
        assumed: dict[str, int] = {}
        self.need(r"\{\n", "'{'")
        while not (self.get(r"\s*\}\n?")):
            self._line(graph, known, assumed)
        graph.assumed = assumed
        return graph

    def _line(self, graph: Graph, known: dict[str, Value], assumed: dict[str, int]) -> None:
        if self.get(r"input(?= )"):
            name = self._new(graph)
            self.need(":", "':'")
            known[name] = graph.add_input(name, self.type())
        elif self.get(r"const(?= )"):
            name = self._new(graph)
            self.need(":", "':'")
            type_ = self.type()
            self.need("=", "'='")
            known[name] = Value(graph.fresh_name(name), type_, self._data(type_, name))
        elif self.get("shapes vary"):
            graph.shapes_vary = True
        elif self.get(r"assumed(?= )"):
            symbol = self.name()
            self.need("=", "'='")
            assumed[symbol] = int(self.need(r"\d+", "a size"))
        elif self.get(r"size(?= )"):
            symbol = self.name()
            self.need("=", "'='")
            value = self._value(known)
            sizes = graph.sizes = graph.sizes or {}
            sizes[symbol] = ComputedSize(int(self.need(r"at most \d+", "'at most'").split()[-1]), value)
        elif self.get(r"output(?= )"):
            name = self.name()
            self.need("=", "'='")
            graph.add_output(name, self._value(known))
        else:
            self._node(graph, known)
            return
        self.need(r"\n", "an end")

    def _new(self, graph: Graph) -> str:
        """Parse a name that no other value has."""
        self.need("%", "a value")
        name = self.name()
        return self.fail("names of their own") if graph.has_name(name) else name

    def _value(self, known: dict[str, Value]) -> Value:
        self.need("%", "a value")
        name = self.name()
        return known[name] if name in known else self.fail(f"a value that is known: not %{name}")

    def _node(self, graph: Graph, known: dict[str, Value]) -> None:
        names = [self._new(graph)]
        while self.has(","):
            names.append(self._new(graph))
        self.need("=", "'='")
        word = self.name()
        self.need(r"\(", "'('")
        inputs = self.many(lambda: None if self.has("-") else self._value(known), ")")
        start = self._at
        self._skip_attributes()
        self.need(":", "':'")
        types = [self.type()]
        while self.has(","):
            types.append(self.type())
        origin = [self.name()] if self.has("#") else []
        while origin and self.has(","):
            origin.append(self.name())
        self.need(r"\n", "an end")
        bodies = []
        while re.compile(r"[ \t]*graph ").match(self._text, self._at):
            bodies.append(self.graph())
        self._at, end = start, self._at
        op = self._operator(word, bodies)
        self._at = end
        node = graph.add(op, inputs, origin, names=names, types=types)
        known.update(zip(names, node.outputs, strict=True))

    def _skip_attributes(self) -> None:
        """Skip attributes. They can refer to bodies, which follow later in the text."""
        depth = 0
        while piece := self.get(r'\{|\}|"(?:[^"\\]|\\.)*"|[^{}"\n]' if depth else r"\{"):
            depth += (piece == "{") - (piece == "}")

    # ----------------------------------------------------------------------------------------- operators

    def _operator(self, word: str, bodies: list[Graph]) -> Any:
        family = self._words.family(word)
        if family is None:
            self.fail(f"an operator that exists: not {word}")

        def field() -> tuple[str, object]:
            key = self.name()
            self.need("=", "'='")
            return key, self._attribute(family, bodies)

        attributes = dict(self.many(field, "}")) if self.has("{") else {}
        op = self._words.made(word, attributes)
        return self.fail(f"attributes of {word}") if op is None else op

    def _attribute(self, owner: type, bodies: list[Graph]) -> object:
        """Parse one attribute value.

        The module of `owner` defines the enumerations and dataclasses that it may name.
        """
        if self.has("@"):
            number = int(self.need(r"\d+", "a number"))
            return bodies[number] if number < len(bodies) else self.fail(f"{number + 1} bodies")
        if self.has("("):
            return tuple(self.many(lambda: self._attribute(owner, bodies), ")"))
        if self.has("{"):
            return frozenset(self.many(lambda: self._attribute(owner, bodies), "}"))
        text = self.get(r'"(?:[^"\\]|\\.)*"')
        if text is not None:
            return json.loads(text)
        text = self.get(_NUMBER + r"(?![A-Za-z0-9_])")
        if text is not None:
            return int(text) if re.fullmatch(r"-?\d+", text) else float(text)
        word = self.need(r"[A-Za-z_][A-Za-z0-9_.]*", "an attribute")
        if word in _WORDS or word in _TYPES:
            return _WORDS[word] if word in _WORDS else _TYPES[word]
        if self._words.family(word) is not None:
            return self._operator(word, bodies)
        name, _, member = word.partition(".")
        named_class = self._class(owner, name)
        if member:
            return named_class[member]
        self.need(r"\(", "'('")
        return named_class(*self.many(lambda: self._attribute(named_class, bodies), ")"))

    def _class(self, owner: type, name: str) -> Any:
        """Return the enumeration or dataclass called `name` in the module of `owner` or of one of its base classes."""
        for base in owner.__mro__:
            candidate = getattr(sys.modules[base.__module__], name, None)
            if is_dataclass(candidate) or (isinstance(candidate, type) and issubclass(candidate, Enum)):
                return candidate
        return self.fail(f"an attribute: nothing is called {name}")

    # -------------------------------------------------------------------------------- types and constants

    def type(self) -> TensorType:
        text = self.need(r"scalar|\d+(?:x\d+)*", "a shape")
        shape = () if text == "scalar" else tuple(map(int, text.split("x")))
        word = self.need(r"[a-z]+\d*", "an element type")
        dtype = _TYPES.get(word)
        if not isinstance(dtype, DType):
            self.fail(f"an element type: not {word}")
        quant = self._quant(shape) if self.has("(") else None
        layout = self.get(r"NCHW|NHWC")
        return TensorType(shape, dtype, quant, Layout(layout or ""))

    def _quant(self, shape: tuple[int, ...]) -> QuantParams:
        scales: tuple[float, ...] | str = tuple(self.many(self._real, "]")) if self.has("[") else ""
        digest = "" if scales else self.get(r"#[0-9a-f]+|\.\.\.")
        axis = None
        if not scales and not digest:
            scales = (self._real(),)
        else:
            axis = int(self.need(r"on axis \d+", "'on axis'").split()[-1])
        if digest:
            numbers = np.random.default_rng(list(digest.encode())).uniform(0.01, 0.1, shape[axis or 0])
            digest_scales = PlaceholderScales(np.float32(numbers).astype(float).tolist())
            digest_scales.digest = digest
            scales = digest_scales
        self.need(",", "a zero point")
        zero_point = int(self.need(r"-?\d+", "a zero point"))
        rules = "|".join(rule.value for rule in Rounding)
        rounding = Rounding(self.need(rules, "a rounding")) if self.has(",") else Rounding.EXACT
        self.need(r"\)", "')'")
        assert isinstance(scales, tuple)
        return QuantParams(scales, zero_point, axis, rounding)

    def _real(self) -> float:
        text = self.need(_NUMBER + "d?", "a number")
        return float(text[:-1]) if text.endswith("d") else float(np.float32(text))

    def _data(self, type_: TensorType, name: str) -> Array:
        digest = self.get(r"#[0-9a-f]+|\.\.\.")
        if digest:
            return _made(type_, digest, name)
        texts = self.many(self._number, "]") if self.has("[") else [self._number()]
        if len(texts) != type_.count:
            self.fail(f"{type_.count} numbers")
        values = [text == "True" for text in texts] if type_.dtype is DType.BOOL else texts
        if type_.dtype.is_integer:
            values = [int(text) for text in texts]
        return np.array(values, type_.dtype.numpy).reshape(type_.shape)

    def _number(self) -> str:
        return self.need(_NUMBER + "|True|False", "a number")


def _made(type_: TensorType, digest: str, name: str) -> PlaceholderArray:
    random = np.random.default_rng(list((digest.strip(".") or name).encode()))
    if type_.dtype.is_integer or type_.dtype is DType.BOOL:
        low, high = (0, 2) if type_.dtype is DType.BOOL else (max(type_.dtype.limits[0], -8), 8)
        numbers = np.asarray(random.integers(low, high, type_.shape), type_.dtype.numpy)
    else:
        numbers = np.asarray(random.standard_normal(type_.shape)).astype(type_.dtype.numpy)
    array = numbers.view(PlaceholderArray)
    array.digest = digest
    return array
