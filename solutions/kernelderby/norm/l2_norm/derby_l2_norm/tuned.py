"""Written by `derby tune derby_l2_norm`: GPU name -> {date, table: tuning key -> configuration}."""

FOUND = {
    "NVIDIA H200": {
        "date": "2026-11-22",
        "table": {
            "h2048 t<=1": {"ahead": 0, "stream": "", "threads": 256},
            "h2048 t<=128": {"ahead": 0, "stream": "loads", "threads": 256},
            "h2048 t<=131072": {"chunk": 256, "per_sm": 0, "rows": 1, "stages": 0, "stream": "", "warps": 1},
            "h2048 t<=16384": {"ahead": 1, "stream": "loads", "threads": 128},
            "h2048 t<=256": {"ahead": 0, "stream": "", "threads": 256},
            "h2048 t<=32768": {"chunk": 256, "per_sm": 0, "rows": 1, "stages": 0, "stream": "", "warps": 1},
            "h2048 t<=4096": {"chunk": 256, "per_sm": 0, "rows": 1, "stages": 0, "stream": "loads", "warps": 1},
            "h2048 t<=512": {"ahead": 0, "stream": "loads", "threads": 128},
            "h2048 t<=65536": {"chunk": 256, "per_sm": 0, "rows": 1, "stages": 0, "stream": "", "warps": 1},
        },
    },
}
