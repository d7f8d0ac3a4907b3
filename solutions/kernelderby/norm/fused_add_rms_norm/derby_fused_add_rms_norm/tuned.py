"""Written by `derby tune derby_fused_add_rms_norm`: GPU name -> {date, table: tuning key -> configuration}."""

FOUND = {
    "NVIDIA H200": {
        "date": "2026-11-22",
        "table": {
            "h1280 t<=32768": {"chunk": 256, "per_sm": 0, "rows": 1, "stages": 0, "stream": "", "warps": 1},
            "h2048 t<=1024": {"chunk": 1024, "per_sm": 0, "rows": 1, "stages": 0, "stream": "loads", "warps": 4},
            "h2048 t<=128": {"chunk": 2048, "per_sm": 0, "rows": 1, "stages": 0, "stream": "loads", "warps": 8},
            "h2048 t<=2048": {"chunk": 512, "per_sm": 0, "rows": 1, "stages": 0, "stream": "loads", "warps": 2},
            "h2048 t<=4096": {"chunk": 512, "per_sm": 6, "rows": 1, "stages": 4, "stream": "both", "warps": 2},
            "h2048 t<=512": {"chunk": 1024, "per_sm": 0, "rows": 1, "stages": 0, "stream": "loads", "warps": 8},
            "h5120 t<=1024": {"chunk": 1024, "per_sm": 0, "rows": 1, "stages": 0, "stream": "loads", "warps": 8},
            "h5120 t<=2048": {"chunk": 2048, "per_sm": 0, "rows": 1, "stages": 0, "stream": "", "warps": 4},
            "h5120 t<=256": {"chunk": 1024, "per_sm": 0, "rows": 1, "stages": 0, "stream": "both", "warps": 8},
            "h5120 t<=512": {"chunk": 1024, "per_sm": 0, "rows": 1, "stages": 0, "stream": "both", "warps": 4},
            "h5120 t<=8192": {"chunk": 1024, "per_sm": 0, "rows": 1, "stages": 0, "stream": "", "warps": 4},
            "h7168 t<=1024": {"chunk": 1024, "per_sm": 0, "rows": 1, "stages": 0, "stream": "", "warps": 4},
            "h7168 t<=2048": {"chunk": 1024, "per_sm": 0, "rows": 1, "stages": 0, "stream": "", "warps": 4},
            "h7168 t<=256": {"chunk": 4096, "per_sm": 0, "rows": 1, "stages": 0, "stream": "loads", "warps": 16},
            "h7168 t<=4096": {"chunk": 1024, "per_sm": 0, "rows": 1, "stages": 0, "stream": "", "warps": 4},
            "h7168 t<=64": {"chunk": 4096, "per_sm": 0, "rows": 1, "stages": 0, "stream": "both", "warps": 16},
        },
    },
}
