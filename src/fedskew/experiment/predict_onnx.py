"""Answers for the rows of a CSV file: python predict.py rows.csv > answers.csv. It needs onnxruntime only.

The file is UTF-8, with commas between cells. rows.columns.toml beside it renames and maps columns, as in training. Times are
YYYY-MM-DD or YYYYMMDD, if given with the time of the day and the offset from UTC; or times and numbers are spelt as in training.
Other cells in a column of times or numbers count as missing, and a line says so.
"""

import csv
import json
import os
import re
import sys
import tomllib
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
TRUTH = {"true": 1.0, "false": 0.0, "1": 1.0, "0": 0.0}
NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", re.ASCII | re.IGNORECASE)
TIME = re.compile(r"\s*(\d{4}-\d\d-\d\d|\d{8})([T ][\d:.]+ *(Z|[+-][\d:]+)?)?\s*", re.ASCII)
NAN = float("nan")
Columns = dict[str, list[str]]


def number(cell: str) -> float:
    return float(cell) if NUMBER.fullmatch(cell.strip()) else NAN


def seconds(cell: str) -> float:
    try:
        time = datetime.fromisoformat(cell.strip() if TIME.fullmatch(cell) else "")
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
    except ValueError:
        return NAN


def plain(cell: str, spelling: list[str]) -> str:
    """The plain number or time of a cell that is spelt as the training rows were; any other cell as it is."""
    if len(spelling) == 2:
        if not (match := re.fullmatch(spelling[0], cell.strip())):
            return cell
        before, sign, digits, power = match.groups()
        return before + sign + digits.translate(dict.fromkeys(map(ord, spelling[1]))).replace(",", ".") + (power or "")
    try:
        time = datetime.strptime(cell.strip(), *spelling)
    except ValueError:
        return cell
    return (
        time.isoformat()
        if "%d" in spelling[0] or "%Y" in spelling[0]
        else repr((time - datetime(1900, 1, 1)).total_seconds())
    )


def numbers(cells: list[str], is_time: bool) -> list[float]:
    """A column's cells as numbers, times as seconds; NaN where they are neither."""
    known = [cell.strip().lower() for cell in cells if cell not in MISSING]
    if set(known) <= TRUTH.keys():
        return [TRUTH.get(cell.strip().lower(), NAN) for cell in cells]
    read = seconds if is_time and not all(map(NUMBER.fullmatch, known)) else number
    return [read(cell) for cell in cells]


def read(path: Path) -> Columns:
    """The columns of a file, with the agreed names, units and words. Raises `ValueError`."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        header, *rows = [row for row in csv.reader(file, strict=True) if row] or [[]]
    if len(header) == 1 and re.search("[;\t|]", header[0]):
        raise ValueError(f"put commas between cells; the first line is {header[0][:60]!r}")
    toml = path.with_name(f"{path.name.partition('.')[0]}.columns.toml")
    mapping: dict[str, Any] = tomllib.loads(toml.read_text(encoding="utf-8-sig")) if toml.is_file() else {}
    kinds = {"absent": list, "rename": dict, "units": dict, "words": dict}
    if strange := [key for key in mapping if not isinstance(mapping[key], kinds.get(key, ()))]:
        raise ValueError(f"{toml}: wrong {strange[0]!r}; write absent, [rename], [units] and [words.COLUMN]")
    absent, rename, units, words = (mapping.get(key, kind()) for key, kind in kinds.items())
    header = [name.strip() for name in header]
    if unknown := rename.keys() - {*header}:
        raise ValueError(f"no column {min(unknown)!r}, which {toml} renames")
    names = [rename.get(name, name) for name in header]
    if twice := [name for name in (*names, *absent) if (*names, *absent).count(name) > 1]:
        raise ValueError(f"two columns are called {twice[0]!r}; give each its own name")
    if odd := [row for row in rows if len(row) != len(header)]:
        raise ValueError(
            f"{len(odd)} of {len(rows)} rows have too few or too many cells, such as {','.join(odd[0])[:60]!r}"
        )
    if not rows:
        raise ValueError("no rows")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    columns |= {name: [""] * len(rows) for name in absent}
    for name, factor in units.items():
        if text := [
            cell for cell in column(columns, name) if cell not in MISSING and not NUMBER.fullmatch(cell.strip())
        ]:
            raise ValueError(f"column {name!r} has a unit in {toml}, but holds {text[0]!r}, which is no number")
        columns[name] = [repr(number(cell) * factor) for cell in columns[name]]
    for name, agreed in words.items():
        agreed = {own.strip(): word.strip() for own, word in agreed.items()}
        columns[name] = [agreed.get(cell.strip(), cell) for cell in column(columns, name)]
    return columns


def column(columns: Columns, name: str) -> list[str]:
    if name not in columns:
        raise ValueError(f"no column {name!r}; it has {', '.join(columns)[:200]}")
    return columns[name]


def answers(columns: Columns) -> tuple[Any, list[str], bool]:
    """The answers for the rows, probabilities (n, K) or numbers (n,); the classes; whether a row may have several."""
    session = onnxruntime.InferenceSession(str(Path(__file__).with_name("model.onnx")))
    known = session.get_modelmeta().custom_metadata_map
    text, times, feed = known["text"], json.loads(known["times"]), {}
    spellings, missing, gaps = (json.loads(known[name]) for name in ("spellings", "missing", "gaps"))
    missing = {*missing, *MISSING}
    for part in session.get_inputs():
        if text:
            length = part.shape[1]
            cells = ["" if cell in MISSING else cell.lower() for cell in column(columns, text)]
            found = [re.findall(r"[^\W_]+(?:'[^\W_]+)*", cell)[:length] or ["?"] for cell in cells]
            feed[part.name] = np.array([words + [""] * (length - len(words)) for words in found], dtype=object)
        elif len(part.shape) > 1:  # an array: its numbers, row by row
            flat = np.array([[float(cell) for cell in cells] for cells in columns.values()]).T
            feed[part.name] = flat.reshape(len(flat), *part.shape[1:])
        elif part.type == "tensor(string)":
            cells = ["" if cell.strip() in missing else cell.strip() for cell in column(columns, part.name)]
            feed[part.name] = np.array(cells, dtype=object)
        else:
            cells = column(columns, part.name)
            if part.name in spellings:
                cells = [plain(cell, spellings[part.name]) for cell in cells]
            feed[part.name] = np.array(numbers(cells, part.name in times))
            gone = zip(column(columns, part.name), np.isnan(feed[part.name]), strict=True)
            if odd := [cell for cell, gap in gone if gap and cell not in MISSING and cell.strip().lower() not in gaps]:
                what = "times" if part.name in times else "numbers"
                print(
                    f"column {part.name!r}: {len(odd)} cells are no {what}, such as {odd[0]!r}; they are missing",
                    file=sys.stderr,
                )
    return session.run(None, feed)[0], json.loads(known["classes"]), json.loads(known["several"])


def write(found: Any, classes: list[str], several: bool) -> None:
    out = csv.writer(sys.stdout)
    out.writerow(["prediction", *(f"probability_{name}" for name in classes if found.ndim == 2)])
    for row in found if found.ndim == 2 else ():
        chosen = np.flatnonzero(row >= 0.5) if several else [row.argmax()]
        out.writerow(["|".join(classes[at] for at in chosen), *row])
    for one in found if found.ndim == 1 else ():
        out.writerow([one])
    sys.stdout.flush()


if __name__ == "__main__":
    path = " ".join(sys.argv[1:])
    try:
        if len(sys.argv) != 2:
            raise ValueError("write python predict.py rows.csv > answers.csv")
        write(*answers(read(Path(path))))
    except (OSError, ValueError, csv.Error) as error:
        print(f"predict.py {path}: {error}", file=sys.stderr)
        # what could not be written must not be tried again when Python ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(2)
