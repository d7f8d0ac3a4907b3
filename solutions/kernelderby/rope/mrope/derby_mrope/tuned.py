"""Written by `derby tune derby_mrope`: GPU name -> {date, table: tuning key -> configuration,
losses: of measured shapes, by how many thousandths each of `configs` was above the least time}.
"""

FOUND = {
    "NVIDIA H200": {
        "date": "2026-11-22",
        "table": {
            "heads=16+1 rows<=262144": {"rows": 16, "warps": 4},
            "heads=16+1 rows<=524288": {"rows": 16, "warps": 4},
            "heads=16+1 rows<=65536": {"heads": 6, "threads": 64},
            "heads=16+4 rows<=32768": {"heads": 2, "threads": 128},
            "heads=16+4 rows<=65536": {"heads": 2, "threads": 128},
        },
        "configs": [
            {"heads": 2, "threads": 128},
            {"heads": 2, "threads": 64},
            {"heads": 3, "threads": 128},
            {"heads": 4, "threads": 128},
            {"heads": 4, "threads": 64},
            {"heads": 5, "threads": 128},
            {"heads": 5, "threads": 64},
            {"heads": 6, "threads": 64},
            {"rows": 16, "warps": 2},
            {"rows": 16, "warps": 4},
            {"rows": 32, "warps": 4},
            {"rows": 32, "warps": 8},
            {"rows": 8, "warps": 1},
            {"rows": 8, "warps": 2},
        ],
        "losses": [
            ["heads=16+8 rows<=4096", [95, 111, 127, 127, 143, 206, 222, 254, 317, 0, 302, 63, 79, 95]],
            ["heads=16+8 rows<=4096", [66, 49, 114, 148, 98, 214, 180, 246, 279, 16, 295, 0, 16, 49]],
            ["heads=16+8 rows<=64", [200, 111, 222, 222, 244, 222, 333, 312, 400, 0, 266, 67, 67, 22]],
            ["heads=32+8 rows<=1024", [188, 125, 271, 271, 312, 375, 375, 438, 438, 42, 396, 146, 42,
             0]],
            ["heads=32+8 rows<=32768", [35, 82, 70, 65, 105, 105, 88, 94, 47, 0, 141, 12, 53, 71]],
            ["heads=32+8 rows<=32768", [94, 41, 64, 82, 70, 58, 64, 93, 94, 0, 88, 0, 76, 41]],
            ["heads=40+8 rows<=512", [191, 191, 255, 255, 255, 383, 340, 362, 383, 0, 511, 128, 64,
             21]],
            ["heads=64+8 rows<=32768", [16, 31, 55, 109, 16, 23, 55, 109, 94, 16, 94, 0, 31, 16]],
            ["heads=64+8 rows<=32768", [40, 40, 56, 71, 40, 87, 79, 79, 135, 0, 127, 16, 32, 32]],
            ["heads=64+8 rows<=8192", [111, 69, 56, 42, 56, 139, 153, 153, 264, 0, 222, 0, 56, 0]],
        ],
    },
}
