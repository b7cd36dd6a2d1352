"""What every method promises, checked on a miniature federation: engines agree, resume is exact, inputs stay as they are, ...

And what a method costs, measured there.
"""
