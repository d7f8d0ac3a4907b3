"""A solution's pipeline, stage by stage, and what lies beside it."""
