"""Rankings as an answer: the tables of each, its notes, and one table of all."""
