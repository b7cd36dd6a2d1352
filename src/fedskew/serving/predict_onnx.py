"""An example: python predict.py rows.csv > answers.csv. It needs onnxruntime and pandas. `fedskew predict` reads more files."""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pandas as pd

session = onnxruntime.InferenceSession(str(Path(__file__).with_name("model.onnx")))
facts = {name: json.loads(text) for name, text in session.get_modelmeta().custom_metadata_map.items()}
site, words = facts["site"], [part.name for part in session.get_inputs() if part.type == "tensor(string)"]
rows, cells = pd.read_csv(sys.argv[1]), pd.read_csv(sys.argv[1], dtype=str, keep_default_na=False)
whole = {name: {r"^(-?\d+)\.0+$": r"\1"} for name in (site, facts["text"])}  # 1.0 is 1, as in training
cells = cells.map(str.strip).replace(facts["missing"], "").replace(whole, regex=True)
lack = f"no column {repr(site) if site else 'names the site'}: " * (site not in cells)
cells = cells.assign(**{site: cells.get(site, "")})
strange = ~cells[site].isin(facts["sites"])
line = f"{lack}{strange.sum()} of {len(rows)} rows are of unknown sites, {facts['unknown']}\n"
sys.stderr.write(f"{facts['agreed']}\n" * bool(facts["agreed"]) + line * bool(facts["unknown"] and strange.any()))
inputs = {}
for part in session.get_inputs():
    if facts["text"]:
        texts = cells[facts["text"]].map(str.lower).str.findall(r"[^\W_]+(?:'[^\W_]+)*")
        padded = [[*(text[: part.shape[1]] or ["?"]), *[""] * part.shape[1]][: part.shape[1]] for text in texts]
        inputs[part.name] = np.array(padded, dtype=object)
    elif part.name in words:
        inputs[part.name] = cells[part.name].to_numpy(dtype=object)
    elif part.name in facts["times"]:
        times = pd.to_datetime(rows[part.name], utc=True, format="ISO8601")
        inputs[part.name] = (times - pd.Timestamp(0, tz="UTC")).dt.total_seconds().to_numpy(dtype=float)
    else:  # a column of numbers; an array has one input with all columns
        inputs[part.name] = rows.get(part.name, rows).to_numpy(dtype=float).reshape(len(rows), *part.shape[1:])
answers = session.run(None, inputs)[0]
pd.DataFrame(answers, columns=facts["classes"] if answers.ndim > 1 else ["prediction"]).to_csv(sys.stdout, index=False)
