"""The hardware's limit and the recorded times: floors, and the tables over all operators."""
