"""Fastest measured kernels of operators of LLM serving, made by `derby export`; what runs where: `python -m` of this.

Every operator is an attribute and stands in torch.ops: `rms_norm(hidden_states, weight, eps)`, `rms_norm_out(...,
output)`, and `fused_add_rms_norm_(...)` where servers update in place.
"""

from .operators import DATA, OPERATORS, only, register

globals().update(found := register())
__all__ = ["DATA", "OPERATORS", "only", *found]
del found
