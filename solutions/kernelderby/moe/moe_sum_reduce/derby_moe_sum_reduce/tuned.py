"""Written by `derby tune derby_moe_sum_reduce`: GPU name -> {date, table: tuning key -> configuration}."""

FOUND = {
    "NVIDIA H200": {
        "date": "2026-11-22",
        "table": {
            "k8 h2048 t<=16384": {"chunk": 512, "per_sm": 0, "rows": 1, "stages": 0, "stream": "", "warps": 2},
            "k8 h2048 t<=8192": {"chunk": 128, "per_sm": 0, "rows": 8, "stages": 0, "stream": "both", "warps": 4},
        },
    },
}
