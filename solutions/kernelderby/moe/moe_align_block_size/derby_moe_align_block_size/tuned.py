"""Written by `derby tune derby_moe_align_block_size`: GPU name -> {date, table: tuning key -> configuration}."""

FOUND = {
    "NVIDIA H200": {
        "date": "2026-11-22",
        "table": {
            "tokens<=1": {"blocks": 1, "threads": 256},
            "tokens<=1024": {"blocks": 8, "threads": 256},
            "tokens<=2048": {"blocks": 16, "threads": 512},
            "tokens<=4096": {"blocks": 16, "threads": 512},
            "tokens<=8192": {"blocks": 16, "threads": 1024},
        },
    },
}
