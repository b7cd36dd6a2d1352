"""A run's preprocessing as an ONNX graph. It comes before the network, so that the exported model takes raw rows."""

import json
from collections.abc import Sequence
from functools import partialmethod
from typing import Any

import numpy as np

from fedskew.core.errors import BadInput
from fedskew.data.preprocessing import Array, Number, Preprocessing, Tabular, Text, Texts
from fedskew.execution.learned import Sites

OPSET = 20
"""The first version of ONNX with all operators that are used, such as the comparison of strings."""
INPUT = "preprocessing/inputs"
"""Name of the graph's output, which is the network's input."""


class Graph:
    """An ONNX graph under construction. Its functions have the names of NumPy's, and add a node where these compute an array."""

    def __init__(self) -> None:
        from onnx import TensorProto, helper

        self.helper, self.types = helper, TensorProto
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []

    def add(self, kind: str, *inputs: object, domain: str = "", **attributes: Any) -> "Value":
        """Add a node; return its result. Inputs that are no results become constants."""
        names = [part.name if isinstance(part, Value) else self.constant(part) for part in inputs]
        name = f"preprocessing/{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(self.helper.make_node(kind, names, [name], domain=domain, **attributes))
        return Value(self, name)

    def constant(self, values: object) -> str:
        """Add a constant of texts, whole numbers or numbers; return its name."""
        array = np.asarray(values)
        kind = {"i": self.types.INT64, "f": self.types.DOUBLE}.get(array.dtype.kind, self.types.STRING)
        flat: Any = [value.encode() if isinstance(value, str) else value for value in array.ravel().tolist()]
        name = f"preprocessing/constant_{len(self.constants)}"
        self.constants.append(self.helper.make_tensor(name, kind, array.shape, flat))
        return name

    def input(self, name: str, kind: str, shape: Sequence[int | str] = ("rows",)) -> "Value":
        """Add an input of the graph."""
        self.inputs.append(self.helper.make_tensor_value_info(name, getattr(self.types, kind), list(shape)))
        return Value(self, name)

    def model(self, result: "Value", kind: str, shape: Sequence[int | str]) -> Any:
        """Return the ONNX model from the graph's inputs to ``result``, as the type ``kind``."""
        number = getattr(self.types, kind)
        self.nodes.append(self.helper.make_node("Cast", [result.name], [INPUT], to=number))
        output = self.helper.make_tensor_value_info(INPUT, number, list(shape))
        whole = self.helper.make_graph(self.nodes, "preprocessing", self.inputs, [output], self.constants)
        opsets = [self.helper.make_opsetid("", OPSET), self.helper.make_opsetid("ai.onnx.ml", 3)]
        return self.helper.make_model(whole, opset_imports=opsets)

    def rounded(self, value: "Value") -> "Value":
        """Round to float32, as training does."""
        return self.add("Cast", value, to=self.types.FLOAT)

    where = partialmethod(add, "Where")
    abs = partialmethod(add, "Abs")
    isnan = partialmethod(add, "IsNaN")
    sin = partialmethod(add, "Sin")
    cos = partialmethod(add, "Cos")

    def expand_dims(self, value: "Value", axis: int) -> "Value":
        return self.add("Unsqueeze", value, [axis])

    def concatenate(self, parts: "Sequence[Value]", axis: int) -> "Value":
        return self.add("Concat", *parts, axis=axis)


class Value:
    """A value in a graph. Operators add a node."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, graph: Graph, name: str) -> None:
        self.graph, self.name = graph, name

    def add(self, kind: str, other: object) -> "Value":
        return self.graph.add(kind, self, other)

    __sub__ = partialmethod(add, "Sub")
    __add__ = partialmethod(add, "Add")
    __mul__ = partialmethod(add, "Mul")
    __truediv__ = partialmethod(add, "Div")
    __matmul__ = partialmethod(add, "MatMul")
    __le__ = partialmethod(add, "LessOrEqual")
    __eq__ = partialmethod(add, "Equal")  # type: ignore[assignment]


def harmonised(inputs: Value, sites: Sites) -> Value:
    """Return the inputs (rows, D) after the change of rows by site, and the intercept beside them if a column has the site."""
    graph, at = inputs.graph, None
    if sites.column:
        names = graph.expand_dims(graph.input(sites.column, "STRING"), 1)
        hits = graph.where(names == np.array([sites.names], dtype=object), 1.0, 0.0)
        other = graph.where(hits @ np.ones((len(sites.names), 1)) == 0.0, 1.0, 0.0)
        at = graph.concatenate([hits, other], axis=1)

    def of_site(table: object) -> Any:
        return np.array(table)[-1:] if at is None else at @ np.array(table)

    if sites.factor:
        double: Any = graph.add("Cast", inputs, to=graph.types.DOUBLE)
        inputs = double * of_site(sites.factor) + of_site(sites.offset)
        for place, column in enumerate(sites.protected):
            selected = double @ np.eye(len(sites.factor[0]))[:, [column]]
            inputs = inputs + selected * of_site([effect[place] for effect in sites.effect])
        inputs = graph.rounded(inputs)
    if sites.column and sites.intercept:
        inputs = graph.concatenate([inputs, graph.rounded(of_site(sites.intercept))], axis=1)
    return inputs


def preprocessing_graph(preprocessing: Preprocessing, dtype: str, sites: Sites) -> Any:
    """Return the ONNX model of the preprocessing, and of what differs between ``sites`` of a table.

    ``dtype`` is the type of the network's input: FLOAT, DOUBLE or INT64.
    """
    graph = Graph()
    if isinstance(preprocessing, Tabular):
        parts: list[Any] = []
        for part in preprocessing.columns:
            if isinstance(part, Text):
                raise BadInput(f"export: column {part.name!r} holds texts, whose hashed words ONNX cannot compute")
            cells: Any = graph.input(part.name, "STRING" if part.text else "DOUBLE")
            parts.append(part.encode(cells, graph))
        inputs = harmonised(graph.rounded(graph.concatenate(parts, axis=1)), sites)
        beside = len(sites.intercept[0]) if sites.column and sites.intercept else 0
        return graph.model(inputs, dtype, ["rows", sum(part.width for part in preprocessing.columns) + beside])
    if isinstance(preprocessing, Array):
        rows: Any = graph.input("rows", "DOUBLE", ("rows", *preprocessing.shape))
        scaled: Any = preprocessing.scaled(rows)
        return graph.model(graph.rounded(scaled), dtype, ["rows", *preprocessing.shape])
    if isinstance(preprocessing, Texts):
        ids = graph.add(
            "LabelEncoder",
            graph.input("words", "STRING", ("rows", preprocessing.length)),
            domain="ai.onnx.ml",
            keys_strings=["", *preprocessing.vocabulary],
            values_int64s=[0, *range(2, len(preprocessing.vocabulary) + 2)],
            default_int64=1,
        )
        return graph.model(ids, dtype, ["rows", preprocessing.length])
    raise BadInput("export: ONNX cannot compute the symbols of a text")


def about(preprocessing: Preprocessing, classes: Sequence[str], sites: Sites, agreed: str) -> dict[str, str]:
    """Return the metadata of the ONNX file as JSON: classes, columns, sites, and three rules for rows.

    ``missing`` are the cells of words and texts that are missing values; pandas has others, such as None. ``unknown``
    says how rows of unknown sites are treated, ``agreed`` which units and words rows must have.
    """
    from pyarrow.csv import ConvertOptions

    columns = preprocessing.columns if isinstance(preprocessing, Tabular) else ()
    facts = {
        "classes": list(classes),
        "times": [part.name for part in columns if isinstance(part, Number) and part.time],
        "text": preprocessing.column if isinstance(preprocessing, Texts) else "",
        "missing": sorted({*ConvertOptions().null_values, *getattr(preprocessing, "missing", ())}),
        "site": sites.column,
        "sites": [*sites.names] if sites.column else [],
        "unknown": sites.unknown,
        "agreed": agreed,
    }
    return {name: json.dumps(fact) for name, fact in facts.items()}
