"""Written by `derby tune derby_moe_topk_gating_softmax`: GPU name -> {date, table: tuning key -> configuration,
losses: of measured shapes, by how many thousandths each of `configs` was above the least time}.
"""

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
        "configs": [
            {"rows": 1, "warps": 1},
            {"rows": 2, "warps": 1},
            {"rows": 2, "warps": 2},
            {"rows": 4, "warps": 1},
            {"rows": 4, "warps": 4},
            {"threads": 128},
            {"threads": 256},
            {"threads": 64},
        ],
        "losses": [
            ["experts=256 tokens<=1024", [46, 103, None, 816, None, 0, 12, 11]],
            ["experts=256 tokens<=2", [0, 200, None, 1036, None, 18, 36, 18]],
            ["experts=256 tokens<=512", [0, 139, None, 937, None, 38, 0, 25]],
            ["experts=32 tokens<=128", [0, 471, 98, None, 137, 294, 314, 235]],
            ["experts=32 tokens<=256", [1, 358, 0, None, 36, 161, 251, 90]],
            ["experts=32 tokens<=64", [59, 392, 0, None, 20, 216, 255, 196]],
            ["experts=512 tokens<=1024", [138, 404, None, 1423, None, 9, 0, 19]],
            ["experts=512 tokens<=256", [0, 659, None, 1907, None, 83, 118, 59]],
            ["experts=512 tokens<=64", [0, 609, None, 1890, None, 37, 109, 37]],
            ["experts=64 tokens<=32", [0, 480, 0, None, 0, 96, 231, 154]],
        ],
    },
}
