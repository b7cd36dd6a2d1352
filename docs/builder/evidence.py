"""The page of the evidence, and the table that sorts and filters."""

import math
from statistics import fmean

from builder.methods import table

from fedskew.advice import evidence as protocol
from fedskew.advice.advise import BEYOND, check, verdict_on, winner
from fedskew.advice.evidence import FACES, MEASURES, cells, described, packaged, summary
from fedskew.core.text import percent, title
from fedskew.measure.statistics import mean_interval
from fedskew.report.html import evidence_page as html

TABLE = "evidence-table.html"


def pages() -> dict[str, str]:
    return {"evidence.md": page()}


def tables() -> dict[str, str]:
    """The table as a page of its own, which needs no theme."""
    cases = packaged().cases
    return {TABLE: html(list(cells(cases)), described(cases))}


def page() -> str:
    cases = packaged().cases
    rows = summary(cases)
    parts = [
        "# What our runs say",
        f"`fedskew evidence run` measures what each method gains over FedAvg. {described(cases)} "
        f"[All gains]({TABLE}) are in a table that sorts and filters, each with its interval, its verdict and the "
        f"command that repeats it. "
        "The same file is in the package: `fedskew diagnose` advises from it.",
        "## How much is measured",
        f"The protocol has {len(protocol.CASES)} cases, {len(protocol.METHODS)} methods with FedAvg, and {len(protocol.SEEDS)} "
        "seeds. All of it is measured: 13,512 runs, tuning included. 12,120 of them took 84 minutes on two cores. The runs with "
        f"`{protocol.ADAPTED}` and with the four harmonisations came later, on other machines, each beside FedAvg on the same "
        "machine.",
        "A gain counts as decided only after Holm's correction for all methods of its case.",
        "## The protocol",
        f"- Each method sees the same clients, batches and {protocol.ROUNDS} rounds. Models are small: `mlp:norm=group` with one "
        "hidden layer of 64.\n"
        f"- Each method gets the same tuning: the learning rates {', '.join(map(str, protocol.RATES))} on one more "
        f"seed. The rate with "
        f"the best value on the clients' held-out rows ({percent(protocol.HELD_OUT)} of their training rows) counts. "
        f"Other settings "
        "are not tuned.\n"
        f"- The server holds {percent(protocol.SERVER_SHARE)} of the training rows. Only methods that need such rows use them.\n"
        "- A method is left out of a case if its contract refuses it, for example a method for classes where the target "
        "is a number.\n"
        "- *One model, test rows*: the global model; its interval covers seeds and test rows, with all of Satterthwaite's degrees "
        "of freedom, the rule until 26 November 2026. [The rule since](explanations/statistics.md#pairs) is stricter: "
        "some gains that are decided here would be undecided. "
        "*Clients' own held-out rows*: each client's model, or the global one; its interval covers seeds.\n"
        f"- A model for each client must beat `{protocol.ADAPTED}`, FedAvg that each client fine-tunes. The table shows gains over "
        "FedAvg; the overall winner's gain is the share beyond this method.\n"
        "- A run that diverges counts as its untrained model.\n"
        f"- DP-FedAvg is left out, because it needs another selection of clients. {', '.join(protocol.BOUNDS)} are "
        f"measured and never "
        "advised.",
        "## The cases",
        "`fedskew diagnose` measures the strengths of the four faces. The table has their means over three partitions.",
        table(rows, rows[0]),
        "## Data or method?",
        "Four methods change the sites' rows or outputs instead of the training: [harmonisations](how-to/harmonise.md). The table "
        "has the share of FedAvg's error that they remove on the clients' own held-out rows, by the face that differs most. "
        "Beside them stand FedAvg that each client fine-tunes, and the best of all other methods. A share is a mean over data sets "
        "with its 95 % interval. Best is chosen on the same cases, among four harmonisations and some forty methods, so the best "
        "method has the luckier number.",
        table(*by_face()),
        "Where features differ most, no harmonisation beats the best method on average. Where labels differ, `fedavg-prior` does, "
        "but the intervals overlap. `fedavg-site-scale` and `fedavg-combat` lose most where clients differ in labels. Why was not "
        "tested. The intervals of harmonisations follow the stricter rule.",
        "## The overall winner",
        "The advice of `fedskew diagnose` names the method with the largest mean gain over the data sets, and the best methods of "
        "the measured cases whose faces are nearest to yours. A gain counts as a share of FedAvg's error, so that data sets can be "
        "compared: 0.1 means that a tenth of the wrong predictions goes. `fedskew evidence check` leaves out each data set in "
        "turn, chooses the winner on the others, and measures it on the one that was left out.",
        checks(),
        "## Add your own",
        "`fedskew evidence add c7` makes a case of the finished comparison c7. It is written to `evidence.json` in the "
        "folder of your "
        "runs. `fedskew diagnose` and `fedskew evidence` read it beside the package's cases.",
    ]
    return "\n\n".join(parts) + "\n"


HARMONISED = ("fedavg-site-scale", "fedavg-combat", "fedavg-site-bias", "fedavg-prior")


def by_face() -> tuple[list[dict[str, str]], dict[str, str]]:
    """The best harmonisation and the best other method on own rows, by dominant face."""
    rows = []
    for face in (*FACES, ""):
        cases = [case for case in packaged().cases if case.dominant == face]
        shares: dict[str, dict[str, list[float]]] = {}
        won = 0
        for case in cases:
            best = dict.fromkeys((True, False), -math.inf)
            for line in case.methods:
                if line.measure == "own" and line.method not in (*protocol.BOUNDS, *protocol.PUBLISHED):
                    shares.setdefault(line.method, {}).setdefault(case.data_set, []).append(case.share(line))
                    kind = line.method in HARMONISED
                    best[kind] = max(best[kind], line.gain)
            won += best[True] > best[False]
        often = [method for method, of in shares.items() if 2 * sum(map(len, of.values())) >= len(cases)]
        gains = {method: [fmean(of_set) for of_set in shares[method].values()] for method in often}
        first, other = (
            max((method for method in gains if (method in HARMONISED) is kind), key=lambda method: fmean(gains[method]))
            for kind in (True, False)
        )
        rows.append(
            {
                "differs most": face or "nothing",
                "cases (data sets)": f"{len(cases)} ({len({case.data_set for case in cases})})",
                title(protocol.ADAPTED): share_of(gains[protocol.ADAPTED]),
                "best harmonisation": f"{title(first)}: {share_of(gains[first])}",
                "best other method": f"{title(other.partition(':')[0])}: {share_of(gains[other])}",
                "cases where a harmonisation is best": str(won),
            }
        )
    return rows, rows[0]


def share_of(gains: list[float]) -> str:
    """A mean share in percent, with its interval over data sets."""
    half = mean_interval(gains)[1]
    return f"{100 * fmean(gains):.0f} %" + (f" ± {100 * half:.0f}" if math.isfinite(half) and len(gains) > 1 else "")


def checks() -> str:
    """Say of both measures who wins, and if the winner of other data sets beats FedAvg."""
    cases = packaged().cases
    said = []
    for measure, meaning in MEASURES.items():
        if best := winner(cases, measure):
            gain = f"{percent(best['gain'])} ± {100 * best['half']:.0f}"
            said.append(
                f"- {title(best['method'].partition(':')[0])} has the largest mean gain {meaning}: {gain}{BEYOND[measure]}."
            )
        else:
            rival = "FedAvg" if measure == "test" else title(protocol.ADAPTED)
            said.append(f"- No method has a larger mean gain than {rival} {meaning}.")
        said.append(f"- {verdict_on(check(cases, measure), measure)}")
    return "\n".join(said)
