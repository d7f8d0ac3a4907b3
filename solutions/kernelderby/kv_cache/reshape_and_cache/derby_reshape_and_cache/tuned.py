"""Written by `derby tune derby_reshape_and_cache`: GPU name -> {date, table: tuning key -> configuration}."""

FOUND = {
    "NVIDIA H200": {
        "date": "2026-11-22",
        "table": {
            "row=1024 tokens<=1 slots<=16": {"items": 2, "keepers_vectors": 1},
            "row=1024 tokens<=256 slots<=256": {"items": 2, "keepers_vectors": 1},
            "row=1024 tokens<=8192 slots<=8192": {"items": 4, "keepers_vectors": 1},
            "row=4096 tokens<=1024 slots<=1024": {"items": 2, "keepers_vectors": 1},
            "row=4096 tokens<=2048 slots<=2048": {"items": 4, "keepers_vectors": 1},
            "row=4096 tokens<=256 slots<=256": {"items": 2, "keepers_vectors": 1},
        },
    },
}
