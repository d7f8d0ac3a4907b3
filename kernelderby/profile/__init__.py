"""Where the time of a profile goes: sources, attribution, pipeline stages, layers, what-if, comparison."""
