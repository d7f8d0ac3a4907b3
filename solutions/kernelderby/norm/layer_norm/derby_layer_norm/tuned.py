"""Written by `derby tune derby_layer_norm`: GPU name -> {date, table: tuning key -> configuration}."""

FOUND = {
    "NVIDIA H200": {
        "date": "2026-11-22",
        "table": {
            "h1152 t<=1024": {"ahead": 0, "stream": "both", "threads": 160},
            "h1152 t<=16384": {"chunk": 128, "per_sm": 8, "rows": 2, "stages": 3, "stream": "", "warps": 2},
            "h1152 t<=2048": {"chunk": 256, "per_sm": 0, "rows": 4, "stages": 0, "stream": "both", "warps": 4},
            "h1152 t<=32768": {"chunk": 256, "per_sm": 0, "rows": 2, "stages": 0, "stream": "", "warps": 2},
            "h1152 t<=512": {"ahead": 0, "stream": "", "threads": 160},
            "h1152 t<=65536": {"chunk": 256, "per_sm": 0, "rows": 2, "stages": 0, "stream": "", "warps": 2},
            "h1152 t<=8192": {"chunk": 128, "per_sm": 16, "rows": 1, "stages": 3, "stream": "", "warps": 1},
            "h2048 t<=1": {"ahead": 0, "stream": "", "threads": 256},
            "h2048 t<=131072": {"chunk": 512, "per_sm": 0, "rows": 1, "stages": 0, "stream": "", "warps": 2},
            "h4096 t<=1": {"ahead": 0, "stream": "", "threads": 512},
            "h5120 t<=1": {"ahead": 0, "stream": "", "threads": 640},
        },
    },
}
