"""Plain torch: cosines and sines of each section side by side, then the rotation in float32, half a head at a time."""

import torch


@torch.no_grad()
def run(query, key, cos, sin, section_time, section_height, section_width, query_out, key_out):
    """query, key bf16 [num_tokens, heads, head_size], cos, sin float32 [3, num_tokens, head_size / 2] -> rotated."""
    height, width, half = section_time, section_time + section_height, cos.shape[-1]
    table = torch.stack((cos, sin))
    cos, sin = torch.cat((table[:, 0, :, :height], table[:, 1, :, height:width], table[:, 2, :, width:]),
                         dim=-1).unsqueeze(2)
    for heads, output in ((query, query_out), (key, key_out)):
        low, high = heads[..., :half], heads[..., half:]
        output[..., :half] = (low * cos).sub_(high * sin)
        output[..., half:] = (high * cos).add_(low * sin)
