"""The (token, expert) pairs of a routing in the order of their experts, and how many each expert has."""

import torch

NUM_EXPERTS = 128

SMALL_AXES = {"num_tokens": 5, "top_k": 8, "num_experts": NUM_EXPERTS, "num_offsets": NUM_EXPERTS + 1}
SMALL_VARIANTS = [{}, {"num_tokens": 0}, {"num_tokens": 1}, {"num_tokens": 70}, {"num_tokens": 1030}]
AXES_SPACE = {"num_tokens": (1, 32768)}


@torch.no_grad()
def run(topk_ids):
    experts = topk_ids.flatten().long()
    counts = torch.bincount(experts, minlength=NUM_EXPERTS)
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    order = experts.argsort(stable=True).view(topk_ids.shape)
    return order.to(torch.int32), counts.to(torch.int32), offsets.to(torch.int32)


def canonical_outputs(outputs, inputs):
    """sorted_pairs in rising order within each expert: that order means nothing to the GEMM that follows, and kernels
    that count with atomics give another one at each call."""
    found = outputs["sorted_pairs"]
    expert = inputs["topk_ids"].flatten().long().sort().values
    # One number for expert and pair, the pairs moved to 0 .. 2**32: any int32 keeps its expert.
    key = expert * 2**32 + (found.flatten().long() + 2**31)
    return {**outputs, "sorted_pairs": (key.sort().values % 2**32 - 2**31).view(found.shape)}


def generate_inputs(axes_and_scalars, device):
    """topk_ids: the experts of the token's largest logits, best first, so a token's experts are distinct.

    The load of served mixture-of-experts models is uneven (the reason why DeepSeek's EPLB replicates busy experts), and
    uneven counts are what a kernel that counts with atomics has to live with. logit = popularity of the expert +
    affinity of the token's topic + noise of the token, normal with standard deviations 0.35, 0.4 and 0.9. With
    thousands of tokens the busiest of 128 experts is then 4 to 6 times as busy as the mean. Topics are shared, since
    the tokens of a batch come from few requests: 6 of them, with Zipf weights 1/rank.

    `seed` in axes_and_scalars (an integer that the workload's uuid gives) fixes every value; drawn on the CPU, so the
    same on every device. Returns name -> tensor on `device`.
    """
    size = axes_and_scalars
    num_tokens = size["num_tokens"]
    generator = torch.Generator().manual_seed(int(size.get("seed", 0)))

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    popularity, topics = 0.35 * normal(NUM_EXPERTS), 0.4 * normal(6, NUM_EXPERTS)
    topic = torch.multinomial(1.0 / torch.arange(1, 7), max(num_tokens, 1), replacement=True,
                              generator=generator)[:num_tokens]
    logits = popularity + topics[topic] + 0.9 * normal(num_tokens, NUM_EXPERTS)
    return {"topk_ids": logits.topk(size["top_k"], dim=-1).indices.to(torch.int32).to(device)}


def count_cost(axes, inputs):
    """No arithmetic; counts and offsets are int32 like the pairs."""
    pairs = axes["num_tokens"] * axes["top_k"]
    return {"flops": {}, "bytes_read": 4 * pairs,
            "bytes_written": 4 * (pairs + axes["num_experts"] + axes["num_offsets"])}
