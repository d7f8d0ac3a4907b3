#!/usr/bin/env bash
# A race on this machine's GPU in its first two minutes; ALL=1 measures everything. Without a GPU: correctness at small
# sizes in Triton's interpreter, then the ranking of recorded traces. Ends with the report. Arguments go to `derby bench`.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$(realpath "${VENV:-.venv}")/bin:$PATH"

moe=moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048
if derby doctor --has-gpu >/dev/null; then
  if [ -n "${ALL:-}" ] || [ $# -gt 0 ]; then
    derby bench --this-gpu "$@"
    derby rank
  else
    solutions=derby_moe_sm90,triton_compact,deepgemm_grouped,cutlass_grouped,triton_fused_v2,flashinfer_moe
    printf '\nThe first race at four sizes, with the libraries that are here, then rms_norm.\n\n'
    derby bench --this-gpu --definitions $moe --solutions $solutions --workloads 1,56,901,14107 --most-rounds 5
    derby rank --definitions $moe --workloads 1,56,901,14107
    derby bench --this-gpu --definitions rms_norm --workloads hidden_size=5120 --most-rounds 5
    derby rank --definitions rms_norm --workloads hidden_size=5120
    printf '\nAll of it, with `make bench ALL=1`:\n'
    derby bench --this-gpu --plan | tail -n 1  # about how long
  fi
  printf '\n'
  derby report
  derby pack  # last: no time is measured from what it writes, flashinfer-bench reads it
else
  printf '\nNo GPU here: %s.\nNothing is timed on this machine.\n' "$(derby doctor --has-gpu || true)"
  printf '1. Correctness at small sizes on this CPU, one line an operator.\n   `derby check OPERATOR` shows its cases.\n\n'
  checked=0
  derby check --quick || checked=$?
  printf '\n2. Ranking of times that were recorded earlier on the GPU in the table, not here.\n\n'
  derby rank
  printf '\n3. All of it on one page:\n\n'
  derby report
  exit "$checked"
fi
