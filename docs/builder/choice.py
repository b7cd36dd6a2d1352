"""The page that helps to choose a method, with the gains that our own runs decide."""

from builder.methods import table

from fedskew.advice.evidence import BOUNDS, cells, packaged

CANDIDATES = (
    ("labels", "SCAFFOLD, FedDyn, FedAvg with momentum", "they correct the drift of clients that have few classes"),
    ("features", "FedBN, FedPer", "each client keeps the layers that fit its own inputs"),
    ("sizes", "FedNova, equal weights (`weighting=uniform`)", "large clients take more steps and get more weight"),
    ("concepts", "IFCA, Ditto, FedPer, local-only", "no single model can give equal inputs two labels"),
    ("some clients attack or fail", "median, trimmed mean, Krum", "a mean follows a single extreme update"),
    ("the worst client matters", "AFL, q-FedAvg, DRFA", "they train for the clients with the largest loss"),
    ("one client must stay hidden", "DP-FedAvg", "it bounds what the models reveal about one client"),
    ("clients have different models", "FedMD", "clients exchange predictions, not parameters"),
)
"""Kind of difference or goal, methods made for it, and why."""


def pages() -> dict[str, str]:
    return {"methods/choose.md": page()}


def page() -> str:
    tried = [{"your clients": who, "methods made for it": names, "why": why} for who, names, why in CANDIDATES]
    found = list(cells(packaged().cases))
    decided = [cell for cell in found if cell["verdict"] != "undecided"]
    gains = [
        {
            "data and skew": f"{cell['data']}, `{cell['skew']}`",
            "strongest face": cell["dominant"],
            "method": cell["title"],
            "measured on": cell["measured_on"],
            "gain over FedAvg": cell["change"],
        }
        for cell in decided
        if cell["share"] > 0 and cell["method"] not in BOUNDS
    ]
    parts = [
        "# Which method?",
        "Measure first: [`fedskew diagnose`](../how-to/diagnose.md) says how your clients differ. Then "
        "compare FedAvg with one or two "
        "methods that are made for this difference, each [with its own learning rate](../how-to/tune.md). "
        "FedAvg stays the answer "
        "as long as no difference to it is decided: it is simple, and clients keep no state.",
        "## Candidates",
        table(tried, tried[0]),
        "[All methods](index.md) have a page with formulas, cost and results.",
        "## What our runs decide",
        f"[Our runs](../evidence.md) compare methods with FedAvg in {len(packaged().cases)} cases. Of {len(found)} differences "
        f"{len(decided)} are decided after Holm's correction. {sum(cell['share'] < 0 for cell in decided)} are losses, and "
        f"these {len(gains)} are gains of federated methods. A method that is made for your case may still not help. "
        "`fedskew diagnose` advises from all of them.",
        table(gains, gains[0]),
    ]
    return "\n\n".join(parts) + "\n"
