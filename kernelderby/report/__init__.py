"""A report is built once (model.Report) and rendered as text or Markdown; rendering computes nothing."""
