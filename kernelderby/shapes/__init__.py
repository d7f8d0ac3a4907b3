"""The shapes that a model's configuration implies, by rules as data: operators, sizes, load."""
