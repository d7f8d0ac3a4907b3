"""Written by `derby tune derby_fused_qk_rmsnorm`: GPU name -> {date, table: tuning key -> configuration}."""

FOUND = {
    "NVIDIA H200": {
        "date": "2026-11-22",
        "table": {
            "heads40 t<=1": {"chunk": 128, "per_sm": 0, "rows": 4, "stages": 0, "stream": "", "warps": 2},
            "heads48 t<=1": {"chunk": 128, "per_sm": 0, "rows": 8, "stages": 0, "stream": "", "warps": 4},
            "heads56 t<=1": {"chunk": 128, "per_sm": 0, "rows": 4, "stages": 0, "stream": "", "warps": 2},
            "heads80 t<=1": {"chunk": 128, "per_sm": 0, "rows": 8, "stages": 0, "stream": "", "warps": 4},
        },
    },
}
