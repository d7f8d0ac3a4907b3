"""The page that people look at: one typed model of what a set says (model, build), and one HTML file that shows it.

The page computes nothing: what it shows stands in the model, and the scripts under assets/ place and format it.
"""
