"""Written by `derby tune derby_per_token_group_quant_fp8`: GPU name -> {date, table: tuning key -> configuration}."""

FOUND = {
    "NVIDIA H200": {
        "date": "2026-11-22",
        "table": {
            "groups<=1048576": {"chunk": 128, "per_sm": 0, "rows": 8, "stages": 0, "stream": "", "warps": 1},
            "groups<=131072": {"chunk": 128, "per_sm": 0, "rows": 8, "stages": 0, "stream": "loads", "warps": 1},
            "groups<=16": {"chunk": 128, "per_sm": 0, "rows": 2, "stages": 0, "stream": "loads", "warps": 1},
            "groups<=16777216": {"chunk": 128, "per_sm": 0, "rows": 8, "stages": 0, "stream": "", "warps": 1},
            "groups<=2097152": {"chunk": 128, "per_sm": 0, "rows": 8, "stages": 0, "stream": "", "warps": 1},
            "groups<=262144": {"chunk": 128, "per_sm": 0, "rows": 8, "stages": 0, "stream": "loads", "warps": 1},
            "groups<=33554432": {"chunk": 128, "per_sm": 0, "rows": 8, "stages": 0, "stream": "", "warps": 1},
            "groups<=4194304": {"chunk": 128, "per_sm": 0, "rows": 8, "stages": 0, "stream": "", "warps": 1},
            "groups<=524288": {"chunk": 128, "per_sm": 0, "rows": 8, "stages": 0, "stream": "", "warps": 1},
            "groups<=64": {"chunk": 128, "per_sm": 0, "rows": 16, "stages": 0, "stream": "", "warps": 4},
            "groups<=65536": {"chunk": 128, "per_sm": 0, "rows": 32, "stages": 0, "stream": "", "warps": 2},
            "groups<=67108864": {"chunk": 128, "per_sm": 0, "rows": 8, "stages": 0, "stream": "", "warps": 1},
            "groups<=8388608": {"chunk": 128, "per_sm": 0, "rows": 8, "stages": 0, "stream": "", "warps": 1},
        },
    },
}
