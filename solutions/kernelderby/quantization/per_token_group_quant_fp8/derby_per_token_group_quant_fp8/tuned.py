"""Written by `derby tune derby_per_token_group_quant_fp8`: GPU name -> {date, table: tuning key -> configuration}."""

FOUND = {
    "NVIDIA H200": {
        "date": "2026-11-22",
        "table": {
            "groups<=1048576": {"chunk": 128, "per_sm": 0, "rows": 8, "stages": 0, "stream": "", "warps": 1},
            "groups<=16": {"chunk": 128, "per_sm": 0, "rows": 2, "stages": 0, "stream": "loads", "warps": 1},
            "groups<=16777216": {"chunk": 128, "per_sm": 0, "rows": 8, "stages": 0, "stream": "", "warps": 1},
            "groups<=2097152": {"chunk": 128, "per_sm": 0, "rows": 8, "stages": 0, "stream": "", "warps": 1},
            "groups<=4194304": {"chunk": 128, "per_sm": 0, "rows": 8, "stages": 0, "stream": "", "warps": 1},
            "groups<=8388608": {"chunk": 128, "per_sm": 0, "rows": 8, "stages": 0, "stream": "", "warps": 1},
        },
    },
}
