"""Written by `derby tune derby_fused_add_rms_norm`: GPU name -> {date, table: tuning key -> configuration}."""

FOUND = {
    "NVIDIA H200": {
        "date": "2026-11-22",
        "table": {
            "h1280 t<=32768": {"chunk": 256, "per_sm": 0, "rows": 1, "stages": 0, "stream": "", "warps": 1},
            "h2048 t<=1024": {"ahead": 0, "stream": "", "threads": 128},
            "h2048 t<=128": {"ahead": 0, "stream": "", "threads": 256},
            "h2048 t<=2048": {"chunk": 512, "per_sm": 0, "rows": 1, "stages": 0, "stream": "loads", "warps": 2},
            "h2048 t<=384": {"ahead": 0, "stream": "", "threads": 128},
            "h2048 t<=4096": {"chunk": 512, "per_sm": 6, "rows": 1, "stages": 4, "stream": "both", "warps": 2},
            "h2048 t<=512": {"ahead": 0, "stream": "", "threads": 128},
            "h5120 t<=1024": {"ahead": 0, "stream": "", "threads": 320},
            "h5120 t<=192": {"ahead": 0, "stream": "loads", "threads": 640},
            "h5120 t<=2048": {"ahead": 1, "stream": "loads", "threads": 160},
            "h5120 t<=384": {"ahead": 0, "stream": "", "threads": 160},
            "h5120 t<=6144": {"ahead": 1, "stream": "", "threads": 640},
            "h5120 t<=768": {"ahead": 0, "stream": "both", "threads": 160},
            "h7168 t<=1024": {"ahead": 1, "stream": "", "threads": 320},
            "h7168 t<=192": {"ahead": 0, "stream": "", "threads": 448},
            "h7168 t<=2048": {"ahead": 0, "stream": "", "threads": 128},
            "h7168 t<=4096": {"ahead": 1, "stream": "", "threads": 896},
            "h7168 t<=64": {"ahead": 0, "stream": "loads", "threads": 896},
            "h7168 t<=768": {"ahead": 0, "stream": "", "threads": 224},
        },
    },
}
