"""Written by `derby tune derby_mrope`: GPU name -> {date, table: tuning key -> configuration}."""

FOUND = {
    "NVIDIA H200": {
        "date": "2026-11-22",
        "table": {
            "heads=16+1 rows<=262144": {"rows": 16, "warps": 4},
            "heads=16+1 rows<=524288": {"rows": 16, "warps": 4},
            "heads=16+1 rows<=65536": {"heads": 6, "threads": 64},
            "heads=16+4 rows<=32768": {"heads": 2, "threads": 128},
            "heads=16+4 rows<=65536": {"heads": 2, "threads": 128},
        },
    },
}
