"""A solution's pipeline, stage by stage, and the work beside it."""
