"""Written by `derby tune derby_layer_norm`: GPU name -> {date, table: tuning key -> configuration,
losses: of measured shapes, by how many thousandths each of `configs` was above the least time}.
"""

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
        "configs": [
            {"chunk": 1024, "per_sm": 0, "rows": 1, "stages": 0, "stream": "", "warps": 4},
            {"chunk": 1024, "per_sm": 0, "rows": 1, "stages": 0, "stream": "both", "warps": 4},
            {"chunk": 1024, "per_sm": 0, "rows": 1, "stages": 0, "stream": "loads", "warps": 4},
            {"chunk": 2048, "per_sm": 0, "rows": 1, "stages": 0, "stream": "", "warps": 8},
            {"chunk": 2048, "per_sm": 0, "rows": 1, "stages": 0, "stream": "both", "warps": 8},
            {"chunk": 2048, "per_sm": 0, "rows": 1, "stages": 0, "stream": "loads", "warps": 8},
            {"chunk": 4096, "per_sm": 0, "rows": 1, "stages": 0, "stream": "", "warps": 16},
            {"chunk": 4096, "per_sm": 0, "rows": 1, "stages": 0, "stream": "both", "warps": 16},
            {"chunk": 4096, "per_sm": 0, "rows": 1, "stages": 0, "stream": "loads", "warps": 16},
        ],
        "losses": [
            ["h10240 t<=128", [None, None, None, 9, None, 0, 37, 18, 18]],
            ["h10240 t<=128", [None, None, None, 0, None, 0, 18, 27, 18]],
            ["h10240 t<=2048", [None, None, None, 21, 21, 0, 38, 68, 60]],
            ["h10240 t<=8", [None, None, None, 48, None, 0, 60, None, 36]],
            ["h5376 t<=512", [21, 28, 14, 0, 0, 7, 390, None, None]],
            ["h5376 t<=8", [29, None, None, 29, None, 14, 43, None, 0]],
            ["h6144 t<=1024", [77, None, 70, 28, 0, 14, 449, None, None]],
            ["h6144 t<=1024", [66, None, 45, 14, 3, 0, 444, None, None]],
            ["h6144 t<=16384", [0, 23, 1, 2, None, 4, 690, None, None]],
            ["h6144 t<=64", [103, None, None, 13, None, 0, 64, None, 52]],
        ],
    },
}
