"""Profile tables as reports, one module a table."""
