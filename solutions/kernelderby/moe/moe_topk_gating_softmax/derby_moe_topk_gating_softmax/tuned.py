"""Written by `derby tune derby_moe_topk_gating_softmax`: GPU name -> {date, table: tuning key -> configuration}."""

FOUND = {
    "NVIDIA H200": {
        "date": "2026-11-22",
        "table": {
            "experts=128 tokens<=1": {"rows": 1, "warps": 1},
            "experts=128 tokens<=1024": {"rows": 4, "warps": 4},
            "experts=128 tokens<=2048": {"rows": 4, "warps": 4},
            "experts=128 tokens<=256": {"rows": 2, "warps": 2},
            "experts=128 tokens<=4096": {"threads": 256},
            "experts=128 tokens<=8192": {"threads": 256},
            "experts=256 tokens<=16384": {"threads": 256},
            "experts=256 tokens<=8192": {"threads": 128},
        },
    },
}
