"""Written by `derby tune derby_causal_conv1d`: GPU name -> {date, table: tuning key -> configuration}."""

FOUND = {
    "NVIDIA H200": {
        "date": "2026-11-22",
        "table": {
            "dim=4096 tokens<=1": {"channels": 2, "rows": 1, "threads": 64},
            "dim=4096 tokens<=1024": {"channels": 4, "rows": 2, "threads": 256},
            "dim=4096 tokens<=128": {"channels": 2, "rows": 4, "threads": 256},
            "dim=4096 tokens<=256": {"channels": 4, "rows": 2, "threads": 256},
            "dim=8192 tokens<=1": {"channels": 2, "rows": 1, "threads": 64},
            "dim=8192 tokens<=16384": {"channels": 8, "rows": 8, "threads": 64},
            "dim=8192 tokens<=8192": {"channels": 8, "rows": 8, "threads": 64},
        },
    },
}
