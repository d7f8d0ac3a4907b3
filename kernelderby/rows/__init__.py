"""A recorded row: as a line of traces/, as a record, by the hundred thousand."""
