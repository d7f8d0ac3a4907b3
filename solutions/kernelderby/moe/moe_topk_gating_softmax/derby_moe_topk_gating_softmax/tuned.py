"""Found by `derby tune derby_moe_topk_gating_softmax`. GPU name -> table."""

FOUND = {}
