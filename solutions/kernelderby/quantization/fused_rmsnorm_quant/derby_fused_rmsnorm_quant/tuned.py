"""Written by `derby tune derby_fused_rmsnorm_quant`: GPU name -> {date, table: tuning key -> configuration,
losses: of measured shapes, by how many thousandths each of `configs` was above the least time}.
"""

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
            ["h10240 t<=1024", [None, None, None, 24, 36, 0, 86, None, 64]],
            ["h10240 t<=1024", [None, None, None, 0, 17, 5, 65, None, 73]],
            ["h10240 t<=4", [None, None, None, 39, 0, 13, 78, None, 91]],
            ["h14336 t<=1024", [None, None, None, 0, 39, 30, 135, None, 95]],
            ["h14336 t<=256", [None, None, None, 32, 0, 12, 323, None, 302]],
            ["h14336 t<=64", [None, None, None, 15, None, 0, 46, 46, 31]],
            ["h6656 t<=1024", [34, 26, 0, 59, None, 59, 110, None, None]],
            ["h6656 t<=2048", [0, 36, 13, 27, None, 21, 70, None, None]],
            ["h6656 t<=256", [6, None, 0, 32, None, None, 44, 51, 70]],
            ["h6656 t<=8", [70, None, None, 0, 0, 14, 56, None, 14]],
        ],
    },
}
