"""The page of the evidence, and the table that sorts and filters."""

from builder.methods import table

from fedskew.advice import evidence as protocol
from fedskew.advice.advise import BEYOND, check, verdict_on, winner
from fedskew.advice.evidence import MEASURES, cells, described, packaged, summary
from fedskew.core.text import percent, title
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
        "seeds. All of it is measured: 12,408 runs, tuning included. 12,120 of them took 84 minutes on two cores. The runs with "
        f"`{protocol.ADAPTED}` came later, on another machine, each beside FedAvg on the same machine.",
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
