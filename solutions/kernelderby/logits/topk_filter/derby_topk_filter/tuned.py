"""Written by `derby tune derby_topk_filter`: GPU name -> {date, table: tuning key -> configuration}."""

FOUND = {
    "NVIDIA H200": {
        "date": "2026-11-22",
        "table": {
            "vocab=151936 tokens<=1 k<=64": {"cluster": 8, "items": 20, "threads": 1024},
            "vocab=152064 tokens<=1 k<=64": {"cluster": 8, "items": 20, "threads": 1024},
            "vocab=2048 tokens<=1024 k<=64": {"cluster": 1, "items": 8, "threads": 256},
            "vocab=4002 tokens<=4 k<=64": {"cluster": 1, "items": 16, "threads": 256},
            "vocab=4096 tokens<=16384 k<=64": {"cluster": 1, "items": 32, "threads": 128},
            "vocab=4096 tokens<=8192 k<=64": {"cluster": 1, "items": 32, "threads": 128},
            "vocab=4215 tokens<=4 k<=64": {"cluster": 1, "items": 8, "threads": 1024},
        },
    },
}
