"""Tables, figures and the HTML report. All are made from the run store alone."""
