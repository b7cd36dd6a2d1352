"""Answers for the rows of a CSV file: python predict.py rows.csv > answers.csv. It needs onnxruntime only."""

import csv
import json
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

MISSING = {
    "",
    "#N/A",
    "#N/A N/A",
    "#NA",
    "-1.#IND",
    "-1.#QNAN",
    "-NaN",
    "-nan",
    "1.#IND",
    "1.#QNAN",
    "N/A",
    "NA",
    "NULL",
}
MISSING |= {"NaN", "n/a", "nan", "null"}
TRUTH = {"true": 1.0, "false": 0.0}


def number(cell: str, is_time: bool) -> float:
    """A cell as a number, a time as seconds; NaN where it is neither."""
    try:
        if is_time:
            time = datetime.fromisoformat(cell)
            return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
        return TRUTH[cell.lower()] if cell.lower() in TRUTH else float(cell)
    except ValueError:
        return float("nan")


def answers(rows: list[dict[str, str]]) -> tuple[Any, list[str], bool]:
    """The answers for rows of cells, probabilities (n, K) or numbers (n,); the classes; whether a row may have several."""
    session = onnxruntime.InferenceSession(str(Path(__file__).with_name("model.onnx")))
    known = session.get_modelmeta().custom_metadata_map
    text, times, feed = known["text"], json.loads(known["times"]), {}
    for part in session.get_inputs():
        if text:
            length = part.shape[1]
            found = [re.findall(r"[^\W_]+(?:'[^\W_]+)*", row[text].lower())[:length] or ["?"] for row in rows]
            feed[part.name] = np.array([words + [""] * (length - len(words)) for words in found], dtype=object)
        elif len(part.shape) > 1:  # an array: its numbers, row by row
            flat = np.array([[float(cell) for cell in row.values()] for row in rows])
            feed[part.name] = flat.reshape(-1, *part.shape[1:])
        elif part.type == "tensor(string)":
            cells = [row[part.name] for row in rows]
            feed[part.name] = np.array(["" if cell in MISSING else cell for cell in cells], dtype=object)
        else:
            feed[part.name] = np.array([number(row[part.name], part.name in times) for row in rows])
    return session.run(None, feed)[0], json.loads(known["classes"]), json.loads(known["several"])


if __name__ == "__main__":
    with Path(sys.argv[1]).open(newline="", encoding="utf-8-sig") as file:
        found, classes, several = answers(list(csv.DictReader(file)))
    out = csv.writer(sys.stdout)
    out.writerow(["prediction", *(f"probability_{name}" for name in classes if found.ndim == 2)])
    for row in found if found.ndim == 2 else ():
        chosen = np.flatnonzero(row >= 0.5) if several else [row.argmax()]
        out.writerow(["|".join(classes[at] for at in chosen), *row])
    for one in found if found.ndim == 1 else ():
        out.writerow([one])
