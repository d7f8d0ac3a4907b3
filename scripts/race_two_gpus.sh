#!/usr/bin/env bash
# The MoE race on one GPU and then on two of one machine, by Ray: prints both times, their ratio (at most 0.6 is wanted)
# and both rankings. Measures into copies of the set under OUT (default reports/two_gpus).
set -euo pipefail
cd "$(dirname "$0")/.."
out=${OUT:-reports/two_gpus}
moe=moe_fp8_block_scale_ds_routing_topk8_ng8_kg4_e32_h7168_i2048
mkdir -p "$out"
for gpus in 0 0,1; do
  set=$out/gpus_${gpus//,/_}
  rm -rf "$set" && mkdir -p "$set" && cp -r definitions workloads solutions profiles "$set"
  start=$(date +%s.%N)
  CUDA_VISIBLE_DEVICES=$gpus derby bench --ray local --root "$set" --definitions "$moe" "$@"
  echo "$gpus $(echo "$(date +%s.%N) - $start" | bc)" | tee "$set/seconds"
  derby rank --root "$set" "$moe"
done
paste "$out"/gpus_0/seconds "$out"/gpus_0_1/seconds | awk '{ printf "two GPUs: %.2f of the time on one\n", $4 / $2 }'
