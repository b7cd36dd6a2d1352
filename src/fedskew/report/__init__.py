"""Tables, figures and the HTML page, all made from the run store and nothing else."""
