"""Written by `derby tune derby_fused_rmsnorm_quant`: GPU name -> {date, table: tuning key -> configuration}."""

FOUND = {
    "NVIDIA H200": {
        "date": "2026-11-22",
        "table": {
            "h2048 t<=1024": {"chunk": 512, "per_sm": 0, "rows": 1, "stages": 0, "stream": "loads", "warps": 4},
            "h2048 t<=128": {"chunk": 1024, "per_sm": 0, "rows": 1, "stages": 0, "stream": "both", "warps": 8},
            "h2048 t<=16384": {"chunk": 512, "per_sm": 0, "rows": 1, "stages": 0, "stream": "", "warps": 2},
            "h2048 t<=2048": {"chunk": 512, "per_sm": 0, "rows": 1, "stages": 0, "stream": "both", "warps": 2},
            "h2048 t<=32768": {"chunk": 512, "per_sm": 0, "rows": 1, "stages": 0, "stream": "", "warps": 2},
            "h2048 t<=4096": {"chunk": 2048, "per_sm": 0, "rows": 1, "stages": 0, "stream": "loads", "warps": 8},
            "h4096 t<=1024": {"chunk": 2048, "per_sm": 0, "rows": 1, "stages": 0, "stream": "both", "warps": 2},
            "h4096 t<=16384": {"chunk": 512, "per_sm": 0, "rows": 1, "stages": 0, "stream": "", "warps": 2},
            "h4096 t<=4096": {"chunk": 1024, "per_sm": 0, "rows": 1, "stages": 0, "stream": "", "warps": 4},
        },
    },
}
