"""Written by `derby tune derby_fused_qkv_rope`: GPU name -> {date, table: tuning key -> configuration}."""

FOUND = {
    "NVIDIA H200": {
        "date": "2026-11-22",
        "table": {
            "rows<=128": {"heads": 1, "warps": 1},
            "rows<=64": {"heads": 1, "warps": 1},
        },
    },
}
