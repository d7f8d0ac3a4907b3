"""Written by `derby tune derby_causal_conv1d`: GPU name -> {date, table: tuning key -> configuration}."""

FOUND = {
    "NVIDIA H200": {
        "date": "2026-11-22",
        "table": {
            "dim=4096 tokens<=1": {"ahead": 0, "channels": 2, "rows": 1, "steps": 1, "threads": 128},
            "dim=4096 tokens<=1024": {"ahead": 0, "channels": 4, "rows": 4, "steps": 1, "threads": 128},
            "dim=4096 tokens<=128": {"ahead": 0, "channels": 2, "rows": 4, "steps": 1, "threads": 128},
            "dim=4096 tokens<=256": {"ahead": 0, "channels": 2, "rows": 4, "steps": 1, "threads": 128},
            "dim=8192 tokens<=1": {"ahead": 0, "channels": 2, "rows": 1, "steps": 1, "threads": 64},
            "dim=8192 tokens<=16384": {"ahead": 0, "channels": 4, "rows": 16, "steps": 2, "threads": 64},
            "dim=8192 tokens<=8192": {"ahead": 1, "channels": 4, "rows": 8, "steps": 3, "threads": 64},
        },
    },
}
