"""Written by `derby tune derby_moe_count_and_sort`: GPU name -> {date, table: tuning key -> configuration}."""

FOUND = {
    "NVIDIA H200": {
        "date": "2026-11-22",
        "table": {
            "tokens<=1": {"blocks": 1, "threads": 128},
            "tokens<=1024": {"blocks": 8, "threads": 256},
            "tokens<=128": {"blocks": 1, "threads": 128},
            "tokens<=2048": {"blocks": 16, "threads": 256},
        },
    },
}
