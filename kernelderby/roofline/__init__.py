"""What light allows and what was reached: floors, recorded times, the tables over all operators."""
