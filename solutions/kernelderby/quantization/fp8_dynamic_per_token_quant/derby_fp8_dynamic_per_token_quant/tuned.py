"""Written by `derby tune derby_fp8_dynamic_per_token_quant`: GPU name -> {date, table: tuning key -> configuration}."""

FOUND = {
    "NVIDIA H200": {
        "date": "2026-11-22",
        "table": {
            "h2048 t<=1": {"chunk": 512, "per_sm": 0, "rows": 1, "stages": 0, "stream": "", "warps": 4},
            "h2048 t<=1024": {"chunk": 1024, "per_sm": 0, "rows": 1, "stages": 0, "stream": "", "warps": 2},
            "h2048 t<=16384": {"chunk": 256, "per_sm": 0, "rows": 1, "stages": 0, "stream": "", "warps": 1},
            "h2048 t<=2048": {"chunk": 1024, "per_sm": 0, "rows": 1, "stages": 0, "stream": "both", "warps": 4},
            "h2048 t<=32768": {"chunk": 2048, "per_sm": 0, "rows": 4, "stages": 0, "stream": "", "warps": 16},
            "h2048 t<=65536": {"chunk": 2048, "per_sm": 0, "rows": 4, "stages": 0, "stream": "", "warps": 16},
            "h2048 t<=8192": {"chunk": 512, "per_sm": 0, "rows": 1, "stages": 0, "stream": "loads", "warps": 2},
            "h4096 t<=1": {"chunk": 2048, "per_sm": 0, "rows": 1, "stages": 0, "stream": "loads", "warps": 16},
            "h4096 t<=1024": {"chunk": 1024, "per_sm": 0, "rows": 1, "stages": 0, "stream": "", "warps": 8},
            "h4096 t<=128": {"chunk": 2048, "per_sm": 0, "rows": 1, "stages": 0, "stream": "", "warps": 8},
            "h4096 t<=16384": {"chunk": 1024, "per_sm": 0, "rows": 2, "stages": 0, "stream": "", "warps": 4},
            "h4096 t<=2048": {"chunk": 512, "per_sm": 0, "rows": 1, "stages": 0, "stream": "loads", "warps": 4},
            "h4096 t<=256": {"chunk": 2048, "per_sm": 0, "rows": 1, "stages": 0, "stream": "loads", "warps": 8},
            "h4096 t<=8192": {"chunk": 2048, "per_sm": 0, "rows": 1, "stages": 0, "stream": "loads", "warps": 2},
            "h5120 t<=1": {"chunk": 2048, "per_sm": 0, "rows": 1, "stages": 0, "stream": "both", "warps": 16},
            "h7168 t<=2048": {"chunk": 1024, "per_sm": 0, "rows": 1, "stages": 0, "stream": "loads", "warps": 4},
            "h7168 t<=4096": {"chunk": 4096, "per_sm": 0, "rows": 1, "stages": 0, "stream": "both", "warps": 16},
        },
    },
}
