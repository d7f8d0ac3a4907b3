"""The runtime of a package of winners, copied into it unchanged (package.py becomes its `__init__`). Nothing here
imports other rooms, and only selector.py is used here too."""
