"""The help text of each verb: what it does, and examples."""

TOP = """\
Federated learning when clients' data differ: simulate it, measure the drift,
compare methods over seeds, and get a report.

  fedskew compare                     the demo: FedAvg, FedProx and SCAFFOLD on
                                      digits, 10 clients with skewed labels
  fedskew compare --dataset uci-har --skew natural --lr 0.05 --momentum 0.9 \\
          --batch-size 32 --epochs 1 --algorithms fedavg fedprox:mu=0.01
  fedskew list algorithms             all methods, with their papers
  fedskew run my.toml                 an experiment from a file
"""

HELP = {
    "run": """\
Run one experiment and keep every number in the run store.

Start from the built-in example (digits, 10 clients, Dirichlet label skew
alpha 0.1, FedAvg) or from a TOML file, and change what you need:

  fedskew run --algorithm scaffold --lr 0.05
  fedskew run my.toml --rounds 50
  fedskew run runs/7/experiment.toml        repeats run 7 to the last bit
""",
    "compare": """\
Run several methods on the same partitions and seeds, print a table with 95 %
intervals, and write an HTML report.

  fedskew compare
  fedskew compare --algorithms fedavg scaffold feddyn:alpha=0.1 --seeds 10
  fedskew compare --dataset uci-har --skew natural --seeds 3
""",
    "tune": """\
Find the best settings of each method for a fair comparison. It measures
settings on rows that clients hold out from training, never on test rows. Every
trial is a run in the store: the same command continues after an interruption,
and `fedskew compare --tuned` with the same options uses the stored runs.

  fedskew tune --algorithms fedavg fedprox --grid solver.lr=0.03,0.1,0.3 \\
          --grid fedprox.mu=0.01,0.1,1
  fedskew tune --algorithms scaffold --grid solver.lr=0.01,1 --trials 20
""",
    "watch": """\
Follow runs of another terminal: rounds, accuracy, drift, pace and warnings.
On a terminal the table is updated until all runs have ended. In a pipe it is
printed once.

  fedskew watch               the latest run or comparison
  fedskew watch c2 --runs there
  fedskew watch c2 --to tensorboard:folder=logs --to wandb:mode=offline
""",
    "diagnose": """\
Measure how clients' data differ - in labels, inputs, sizes, or in what a label
means - on one scale, with intervals and the value expected by chance.

  fedskew diagnose visits.csv --label outcome --client hospital
  fedskew diagnose folder-with-one-file-a-client --label outcome
  fedskew diagnose air.csv --target pm25 --client station
  fedskew diagnose --dataset uci-har --skew natural --html har.html
""",
    "resume": """\
Continue interrupted runs from their last checkpoints. The numbers equal an
uninterrupted run's, bit for bit.

  fedskew resume              the latest run or comparison
  fedskew resume 7            run 7
  fedskew resume c2           the unfinished runs of comparison 2
""",
    "list": """\
List the runs of the store, or the built-in components of a kind:
algorithms, datasets, skews, tasks, models, solvers, servers, refines,
augmentations, availabilities, selections, sharings, codecs, engines.
""",
    "tag": """\
Tag runs. A tag stands for its runs wherever a verb takes runs.

  fedskew tag c2 final
  fedskew tag 3-5 draft --remove
  fedskew show final
""",
    "rename": """\
Give a run or a comparison the name that tables and titles show.

  fedskew rename c2 "Four hospitals"
""",
    "rm": """\
Remove runs with their numbers, checkpoints and reports. Runs that a process
is still working on stay.

  fedskew rm 7
  fedskew rm c2 --yes
""",
    "show": """\
Print a run (result, curve), or the table of methods for several runs
or a comparison.

  fedskew show 7
  fedskew show c2
""",
    "report": """\
Write one self-contained HTML page about some runs.

  fedskew report              the latest run or comparison
  fedskew report c2 --output c2.html
  fedskew report c2 --figures paper --tables paper
  fedskew report --watch      a page that follows the runs until they end
""",
    "landscape": """\
Draw the loss around the global model of a run, on the test set and on the rows
of chosen clients, from the run's newest checkpoint. The run's report then has
the pictures, too.

  fedskew landscape 3             the plane through the global model and the
                                  models of clients 0 and 1 after a round
  fedskew landscape 3 --kind path the path of the global model over the rounds
  fedskew landscape 3 --clients 2 7 --output plane.png
  fedskew landscape 3 --kind line --points 51
""",
    "check": """\
Check what a component promises, on a miniature federation. A method: equal
numbers in every engine and client order, exact resume, no changes in place, no
effect of padding, and the reductions to other methods that it declares. Other
kinds have other promises: a codec decodes what it encodes, a skew deals no row
twice.

  fedskew check ./mine.py::Mine
  fedskew check ./mine.py          (lists the classes of the file)
  fedskew check feddyn:alpha=0.3
""",
    "skew": """\
Split a data set among clients that differ, show the result beside the request,
and write it to a folder of plain files for other programs.

  fedskew skew --skew label-dirichlet:alpha=0.1 \\
          --skew quantity-lognormal:sigma=0.6
  fedskew skew --clients 20 --skew label-shards:shards=2 --export clients
  fedskew run --skew from-folder:path=clients       trains on the exported files

`fedskew list skews` lists all skews.
""",
    "cite": """\
Print BibTeX of what runs used: methods, server optimisers, solvers, selections,
skews, data sets, models, and fedskew itself.

  fedskew cite                the latest run or comparison
  fedskew cite c2 > used.bib
""",
    "data": """\
List data sets, download their files from the public source, verify the files,
or print their paths. An interrupted download continues, and checksums are
verified. You can also place files by hand: in the folder that FEDSKEW_DATA
names, or in its subfolder with the data set's name.

  fedskew data list
  fedskew data get cifar-10
  fedskew data verify
  fedskew data path mnist
""",
    "reproduce": """\
Repeat a document's experiments, print its numbers beside ours, and judge each
of its claims: holds, fails or undecided. Runs that are in the store are not
repeated, so the same command continues after an interruption.

  drift-demo      section 14.4 of a textbook, 'Non-IID Data': its listing,
                  exercises 14.4.2 and 14.4.3, the ladder of mitigations
  iid-to-noniid   From IID to Non-IID: Figures 2 to 10, 12, 13
  fedpbs          FedPBS: Tables 3 and 4, Figures 3 to 7
  failure-modes   Failure Modes: Tables II to IV, Figures 1 to 7
  dualmetric      DualMetric: Tables 5.1 and 5.2, Figure 5.1
  contradictions  eight experiments on which these documents contradict one
                  another

  fedskew reproduce drift-demo
  fedskew reproduce fedpbs --only table-4
""",
    "export": """\
Write the model of a run's newest checkpoint to a file: its parameters by name
(safetensors), or a program from rows to logits (TorchScript, ONNX).

  fedskew export 7
  fedskew export 7 --format torchscript --output model.pt
  fedskew export 7 --format onnx         needs the extra onnx
""",
    "flower init": """\
Write a Flower app that runs an experiment; `flwr run` starts it.

  fedskew flower init FOLDER --recipe my.toml
""",
    "flower node": """\
Run one client on its machine, with its rows, next to a SuperNode.

  fedskew flower node --client 0 --table my.csv,label=ill --superlink HOST:PORT
  fedskew flower node --client 0 --rows my.npz --superlink HOST:PORT
""",
    "flower diagnose": """\
Measure how the nodes' rows differ: only counts and sums leave a site.
Run it on the SuperLink's machine. Each node needs --share-diagnosis.

  fedskew flower diagnose SUPERLINK --clients 4 --html sites.html
""",
    "flower check": """\
Test within seconds whether a SuperLink answers, and with which certificate.

  fedskew flower check HOST:PORT --root-certificates ca.pem
""",
    "flower demo": """\
Run a server and its nodes on this machine.

  fedskew flower demo --nodes 4
""",
    "flower": """\
Run an experiment on real machines with Flower (pip install 'fedskew[flower]').

  fedskew flower init FOLDER --recipe my.toml    a Flower app for `flwr run`
  fedskew flower node --client 0 --table my.csv,label=ill --superlink HOST:PORT
                                                 one client, on its machine
  fedskew flower diagnose --clients 4            how do the nodes' rows differ?
  fedskew flower check HOST:PORT --root-certificates ca.pem
                                                 does the SuperLink answer?
  fedskew flower demo --nodes 4                  everything on this machine
""",
}
"""By verb."""
