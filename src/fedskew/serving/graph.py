"""A run's preprocessing as an ONNX graph. It comes before the network, so that the exported model takes raw rows."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.core.errors import BadInput
from fedskew.data.preprocessing import (
    LARGEST,
    Angle,
    Array,
    Column,
    Number,
    Preprocessing,
    Symbols,
    Tabular,
    Texts,
    Words,
)

OPSET = 20
"""The first version of ONNX with all operators that are used, such as the comparison of strings."""
INPUT = "inputs"
"""Name of the graph's output, which is the network's input."""


class Graph:
    """An ONNX graph under construction. Methods that add something return the name of its result."""

    def __init__(self) -> None:
        from onnx import helper

        self.helper = helper
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []

    def add(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node; return the name of its result."""
        name = f"preprocessing/{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(self.helper.make_node(kind, list(inputs), [name], domain=domain, **attributes))
        return name

    def constant(
        self, values: Sequence[object] | NDArray[Any] | float, shape: Sequence[int] = (), kind: str = "DOUBLE"
    ) -> str:
        """Add a constant; return its name."""
        from onnx import TensorProto

        name, flat = (
            f"preprocessing/constant_{len(self.constants)}",
            np.ravel(np.asarray(values, dtype=object)).tolist(),
        )
        held = [word.encode() for word in flat] if kind == "STRING" else flat
        self.constants.append(self.helper.make_tensor(name, getattr(TensorProto, kind), shape, held))
        return name

    def input(self, name: str, kind: str, shape: Sequence[int | str] = ("rows",)) -> str:
        """Add an input of the graph; return its name."""
        from onnx import TensorProto

        self.inputs.append(self.helper.make_tensor_value_info(name, getattr(TensorProto, kind), list(shape)))
        return name

    def cast(self, value: str, kind: str) -> str:
        from onnx import TensorProto

        return self.add("Cast", value, to=getattr(TensorProto, kind))

    def model(self, result: str, kind: str, shape: Sequence[int | str]) -> Any:
        """Return the ONNX model from the graph's inputs to ``result``."""
        from onnx import TensorProto

        self.nodes.append(self.helper.make_node("Identity", [result], [INPUT]))
        output = self.helper.make_tensor_value_info(INPUT, getattr(TensorProto, kind), list(shape))
        whole = self.helper.make_graph(self.nodes, "preprocessing", self.inputs, [output], self.constants)
        opsets = [self.helper.make_opsetid("", OPSET), self.helper.make_opsetid("ai.onnx.ml", 3)]
        return self.helper.make_model(whole, opset_imports=opsets)

    def column(self, value: str) -> str:
        """Reshape (rows,) to (rows, 1)."""
        return self.add("Unsqueeze", value, self.constant([1], (1,), "INT64"))

    def scaled(self, raw: str, missing: str, part: Words | Angle) -> str:
        """Standardise ``raw`` (rows, width); rows marked in ``missing`` (rows, 1) become 0."""
        shape = (1, len(part.mean))
        moved = self.add("Sub", raw, self.constant(part.mean, shape))
        made = self.add("Div", moved, self.constant(part.scale, shape))
        return self.add("Where", missing, self.constant(0.0), made)

    def hits(self, value: str, words: Sequence[str]) -> str:
        """Return one-hot columns (rows, words): 1 if the row's value is the word."""
        known = self.constant(list(words), (1, len(words)), "STRING")
        return self.cast(self.add("Equal", self.column(value), known), "DOUBLE")


def number(graph: Graph, part: Number, value: str) -> str:
    for code in part.missing:
        stands = graph.add("Equal", value, graph.constant(code))
        value = graph.add("Where", stands, graph.constant(float("nan")), value)
    moved = graph.add("Sub", value, graph.constant(part.mean))
    made = graph.add("Div", moved, graph.constant(part.scale))
    held = graph.add("LessOrEqual", graph.add("Abs", made), graph.constant(float(LARGEST)))
    filled = graph.column(graph.add("Where", held, made, graph.constant(part.fill)))
    if not part.marked:
        return filled
    return graph.add("Concat", filled, graph.column(graph.cast(graph.add("Not", held), "DOUBLE")), axis=1)


def words(graph: Graph, part: Words, value: str) -> str:
    hits = graph.hits(value, part.known)
    if not part.mean:
        return hits
    missing = graph.column(graph.add("Equal", value, graph.constant([""], (), "STRING")))
    return graph.scaled(hits, missing, part)


def angle(graph: Graph, part: Angle, value: str) -> str:
    if part.words:
        hits = graph.hits(value, part.words)
        raw = graph.add(
            "MatMul", hits, graph.constant(part.raw(np.array(part.words, dtype=object)), (len(part.words), 2))
        )
        total = graph.add("ReduceSum", hits, graph.constant([1], (1,), "INT64"), keepdims=1)
        return graph.scaled(raw, graph.add("Equal", total, graph.constant(0.0)), part)
    turned = graph.add("Mul", graph.column(value), graph.constant(2 * np.pi))
    turned = graph.add("Div", turned, graph.constant(part.period))
    raw = graph.add("Concat", graph.add("Sin", turned), graph.add("Cos", turned), axis=1)
    return graph.scaled(raw, graph.add("IsNaN", turned), part)


def encoded(graph: Graph, part: Column, value: str) -> str:
    """Add the nodes of a column; return the name of its result (rows, width)."""
    if isinstance(part, Number):
        return number(graph, part, value)
    if isinstance(part, Words):
        return words(graph, part, value)
    if isinstance(part, Angle):
        return angle(graph, part, value)
    raise BadInput(f"export: column {part.name!r} holds texts, whose hashed words ONNX cannot compute")


def preprocessing_graph(known: Preprocessing, dtype: str) -> Any:
    """Return the ONNX model of the preprocessing. ``dtype`` is the type of the network's input: FLOAT, DOUBLE or INT64."""
    graph = Graph()
    if isinstance(known, Tabular):
        values = {p.name: graph.input(p.name, "STRING" if p.text else "DOUBLE") for p in known.columns}
        parts = [encoded(graph, part, values[part.name]) for part in known.columns]
        # training rounds to float32 here, too
        made = graph.cast(graph.add("Concat", *parts, axis=1), "FLOAT")
        shape: list[int | str] = ["rows", sum(part.width for part in known.columns)]
    elif isinstance(known, Texts):
        ids = list(range(2, len(known.vocabulary) + 2))
        text = graph.input("words", "STRING", ("rows", known.length))
        made = graph.add(
            "LabelEncoder",
            text,
            domain="ai.onnx.ml",
            keys_strings=["", *known.vocabulary],
            values_int64s=[0, *ids],
            default_int64=1,
        )
        shape = ["rows", known.length]
    elif isinstance(known, Symbols):
        raise BadInput("export: ONNX cannot compute the symbols of a text")
    else:
        made, shape = array(graph, known), ["rows", *known.shape]
    return graph.model(graph.cast(made, dtype), dtype, shape)


def array(graph: Graph, known: Array) -> str:
    over = (1,) * (len(known.shape) - len(known.over) + 1) + known.over
    rows = graph.add("Div", graph.input("rows", "DOUBLE", ("rows", *known.shape)), graph.constant(known.divisor))
    moved = graph.add("Sub", rows, graph.constant(known.mean, over))
    return graph.cast(graph.add("Div", moved, graph.constant(known.scale, over)), "FLOAT")


def about(known: Preprocessing, classes: Sequence[str]) -> dict[str, str]:
    """Return the metadata of the ONNX file as JSON: the classes, the columns of times, and the column of texts."""
    times = [p.name for p in known.columns if isinstance(p, Number) and p.time] if isinstance(known, Tabular) else []
    facts = {"classes": list(classes), "times": times, "text": known.column if isinstance(known, Texts) else ""}
    return {name: json.dumps(fact) for name, fact in facts.items()}
