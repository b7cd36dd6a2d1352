"""``flower``: write an app, run a node, check the SuperLink, measure the nodes' skew, or show a demo."""

import argparse
import json
import secrets
import tempfile
from importlib.util import find_spec
from pathlib import Path

from fedskew.cli.output import print_json, summary_json
from fedskew.core.component import build, from_table, parse
from fedskew.core.errors import BadInput, FedskewError, require
from fedskew.core.text import count
from fedskew.data.datasets.table import TableData
from fedskew.execution.build import assemble
from fedskew.experiment.combinations import with_method
from fedskew.experiment.config import Experiment, read
from fedskew.flower.node import Node
from fedskew.flower.tables import rows_of, write_rows
from fedskew.report.console import Console
from fedskew.report.series import Results
from fedskew.store.runs import RunStore
from fedskew.studies.progress import stop_on_signal

if find_spec("flwr") is None:
    raise BadInput("flower: the package flwr is not installed; pip install '.[flower]' in the clone")


def recipe(name: str) -> Experiment:
    """Return the experiment of a file ``*.toml``, or the built-in experiment with the method ``name``."""
    return read(Path(name)) if name.endswith(".toml") else with_method(Experiment(), name)


def init(parsed: argparse.Namespace) -> None:
    """Write the Flower app. With ``--rows``, also write the rows of each client."""
    from fedskew.flower.app import write_app

    experiment = recipe(parsed.recipe)
    console = Console()
    write_app(parsed.folder, experiment, parsed.runs)
    console.print(f"wrote {parsed.folder}: flwr run {parsed.folder}")
    if parsed.rows:
        folder = parsed.folder.with_name(f"{parsed.folder.name}-rows")
        nodes = write_nodes(experiment, folder)
        console.print(f"wrote {folder}: {count(len(nodes), 'file')}, one a client")


def write_nodes(experiment: Experiment, folder: Path) -> list[Node]:
    """Write the rows of each simulated client to its own file. Return a node for each client."""
    # a node harmonises its rows itself
    assembly = assemble(experiment.replace(harmonisation="none"), experiment.dataset.load())
    if len(assembly.partition) != experiment.clients.number:
        raise BadInput(
            f"clients: only {len(assembly.partition)} of {experiment.clients.number} have rows, but every node needs rows"
        )
    nodes = [Node(k, folder / f"{k}.npz", folder / f"states-{k}") for k in range(len(assembly.partition))]
    for node in nodes:
        write_rows(node.rows, rows_of(assembly, node.client))
    return nodes


def node(parsed: argparse.Namespace) -> int:
    """Run the node of one client until it is stopped."""
    from fedskew.flower.limits import Limits
    from fedskew.flower.resident import keep_running
    from fedskew.flower.superlink import Trust, check_superlink
    from fedskew.flower.tables import check_table, read_rows
    from fedskew.flower.wire import NAME_RULE, is_name

    require(parsed.client >= 0, f"--client must be at least 0, got {parsed.client}")
    require(is_name(parsed.name), f"--name {parsed.name!r}: {NAME_RULE}")
    require(bool(parsed.table) != bool(parsed.rows), "flower node: give the client's rows, --table or --rows")
    table: TableData | None = None
    if parsed.table:
        table = build("dataset", {"table": TableData}, f"table:{parsed.table}", "--table")
        check_table(table)
    rows = Path(table.path if table else parsed.rows).expanduser().resolve()
    if not table:
        read_rows(rows)
    numbers = dict(parse("limits:" + ",".join(parsed.limit), "--limit")[1])
    consent = {"allow": parsed.allow, "summary": parsed.share_summary, "diagnosis": parsed.share_diagnosis}
    consent["fewest"] = parsed.fewest
    for name in sorted(numbers.keys() & consent.keys()):
        raise BadInput(f"--limit {name}: use the separate option instead; see fedskew flower node --help")
    limits = from_table(Limits, {**numbers, **consent}, "flower node")
    if warning := check_superlink(parsed.superlink, Trust.of_options(parsed.options)):
        Console(stderr=True).print(f"warning: {warning}")
    states = parsed.states or rows.with_name(f"{rows.stem}-states")
    resident = Node(parsed.client, rows, states, limits, table, parsed.name)
    return keep_running(resident, parsed.superlink, parsed.options, parsed.status, parsed.json_log)


def check(parsed: argparse.Namespace) -> None:
    """Test whether nodes reach the SuperLink, and whether its certificate allows it to start runs."""
    from fedskew.flower.superlink import Trust, check_superlink

    certificates = parsed.root_certificates
    require(not (parsed.insecure and certificates), "flower check: give --root-certificates or --insecure, not both")
    if warning := check_superlink(parsed.superlink, Trust(parsed.insecure, certificates)):
        raise FedskewError(warning)
    Console().print(f"superlink {parsed.superlink}: it answers")


def diagnose(parsed: argparse.Namespace) -> None:
    """Measure how the rows of connected nodes differ."""
    from fedskew.cli.diagnose import present
    from fedskew.flower.app import write_diagnosis_app
    from fedskew.flower.nodes import Deployment
    from fedskew.flower.superlink import SuperLink
    from fedskew.report.files import writable

    require(parsed.clients >= 2, f"--clients must be at least 2, got {parsed.clients}")
    deployment = Deployment(wait=parsed.wait)
    output = parsed.runs.resolve() / f"diagnosis-{secrets.token_hex(4)}.json"
    with writable(output.parent):
        output.touch()
        output.unlink()
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory(prefix="fedskew-flower-") as name, stop_on_signal() as stop:
        app = write_diagnosis_app(Path(name) / "diagnosis", parsed.clients, output, deployment)
        there = SuperLink(Path(name), {}, parsed.connection)
        submitted = there.submit(app)
        console.print(f"asking {count(parsed.clients, 'site')}; Flower's run {submitted}")
        status = there.await_end(submitted, stop)
        last = there.last_line(submitted) if status != "finished:completed" else ""
    if not output.exists():
        reason = f"ended as {status}: {last}" if last else f"wrote {output} on the SuperLink's machine; run this there"
        raise FedskewError(f"flower diagnose: Flower's run {submitted} {reason}")
    diagnosis = json.loads(output.read_text(encoding="utf-8"))
    if "error" in diagnosis:
        output.unlink()
        raise FedskewError(f"flower diagnose: {diagnosis['error']}")
    present(diagnosis, parsed.html, parsed.json)
    console.print(f"result: {output}", soft_wrap=True)


def demo(parsed: argparse.Namespace) -> None:
    """Start a SuperLink and nodes on this machine, carry out one run and stop them. Only the run is kept."""
    from fedskew.flower.app import write_app
    from fedskew.flower.superlink import loopback

    require(parsed.nodes >= 1, f"--nodes must be at least 1, got {parsed.nodes}")
    experiment = recipe(parsed.recipe).replace(clients__number=parsed.nodes, training__rounds=parsed.rounds)
    console = Console(stderr=True)
    runs = parsed.runs.resolve()
    store = RunStore(runs)
    before = {record.id for record in store.runs()}
    with tempfile.TemporaryDirectory(prefix="fedskew-flower-") as name, stop_on_signal() as stop:
        folder = Path(name)
        nodes = write_nodes(experiment, folder / "rows")
        app = write_app(folder / "demo", experiment, str(runs))
        console.print(f"{len(nodes)} nodes and a SuperLink on 127.0.0.1; Flower needs some seconds a round")
        with loopback(folder / "flower", nodes) as there:
            submitted = there.submit(app)
            printed = 0

            def print_round() -> None:
                nonlocal printed
                for record in (r for r in store.runs() if r.id not in before):
                    if record.rounds_done > printed:
                        printed = record.rounds_done
                        console.print(f"run {record.id}: round {printed} of {record.rounds}")

            status = there.await_end(submitted, stop, print_round)
            print_round()
            records = [record for record in store.runs() if record.id not in before]
            if status != "finished:completed" or not records:
                raise FedskewError(f"flower demo: the run ended as {status}: {there.last_line(submitted)}")
    if parsed.json:
        print_json(summary_json(Results(store, records)))
    else:
        console.print(f"`fedskew show {records[-1].id}` and `fedskew report {records[-1].id}` show the run")
