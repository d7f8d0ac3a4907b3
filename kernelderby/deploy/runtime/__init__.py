"""What a package of winners runs, copied into it as it stands (package.py becomes its `__init__`): nothing here imports
the rest of ours, and only selector.py is used here too."""
