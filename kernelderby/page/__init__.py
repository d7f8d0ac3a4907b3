"""The HTML page: one typed model of a set's results (model, build), and one file that shows it.

The page computes nothing: what it shows stands in the model, and the scripts under assets/ place and format it.
"""
