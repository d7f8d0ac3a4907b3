"""Written by `derby tune derby_gated_rms_norm`: GPU name -> {date, table: tuning key -> configuration}."""

FOUND = {
    "NVIDIA H200": {
        "date": "2026-11-22",
        "table": {
            "h128 t<=262144": {"chunk": 128, "per_sm": 0, "rows": 4, "stages": 0, "stream": "", "warps": 1},
            "h128 t<=524288": {"chunk": 128, "per_sm": 0, "rows": 4, "stages": 0, "stream": "", "warps": 1},
        },
    },
}
