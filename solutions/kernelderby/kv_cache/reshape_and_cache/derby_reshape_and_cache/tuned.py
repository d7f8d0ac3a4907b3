"""Written by `derby tune derby_reshape_and_cache`: GPU name -> {date, table: tuning key -> configuration,
losses: of measured shapes, by how many thousandths each of `configs` was above the least time}.
"""

FOUND = {
    "NVIDIA H200": {
        "date": "2026-11-22",
        "table": {
            "row=1024 tokens<=1 slots<=16": {"items": 2, "keepers_vectors": 1},
            "row=1024 tokens<=256 slots<=256": {"items": 2, "keepers_vectors": 1},
            "row=1024 tokens<=8192 slots<=8192": {"items": 4, "keepers_vectors": 1},
            "row=4096 tokens<=1024 slots<=1024": {"items": 2, "keepers_vectors": 1},
            "row=4096 tokens<=2048 slots<=2048": {"items": 4, "keepers_vectors": 1},
            "row=4096 tokens<=256 slots<=256": {"items": 2, "keepers_vectors": 1},
        },
        "configs": [
            {"items": 1, "keepers_vectors": 1},
            {"items": 2, "keepers_vectors": 1},
            {"items": 4, "keepers_vectors": 1},
        ],
        "losses": [
            ["row=1024 tokens<=256 slots<=256", [148, 0, 278]],
            ["row=1024 tokens<=32 slots<=32", [36, 0, 339]],
            ["row=1024 tokens<=512 slots<=512", [186, 0, 215]],
            ["row=2048 tokens<=128 slots<=128", [76, 0, 227]],
            ["row=2048 tokens<=16 slots<=16", [36, 0, 345]],
            ["row=2048 tokens<=512 slots<=512", [192, 0, 141]],
            ["row=256 tokens<=1024 slots<=1024", [76, 0, 243]],
            ["row=256 tokens<=128 slots<=128", [0, 18, 228]],
            ["row=256 tokens<=16 slots<=16", [196, 0, 109]],
        ],
    },
}
